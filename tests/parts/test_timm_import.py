"""timm is imported beside a torchvision that does not match torch, and nothing is left behind.

What torchvision and timm do at import is played by small packages, each in a process of its own;
the slow test installs the real ones as the documentation says.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TORCHVISION = """
import torch
from torchvision import before

for name in {describes}:
    torch.library.register_fake("torchvision::" + name)(lambda *inputs: inputs[0])
"""
TIMM = "import timm.layers\n"
LAYERS = "import torchvision\nFROZEN = 1\n"
BROKEN = {"torchvision/__init__.py": TORCHVISION.format(describes=("nms", "qnms"))}
ASK = """
import torch
from dovetail.core.errors import MissingExtraError
from dovetail.parts.foreign.timm_import import import_timm

def declared(name):
    try:
        return bool(torch._C._dispatch_find_schema_or_throw("torchvision::" + name, ""))
    except RuntimeError:
        return False
"""


def asked(folder, code, packages=None):
    """What a fresh process prints that finds these packages before all others."""
    files = {
        "torchvision/before.py": "",
        "timm/__init__.py": TIMM,
        "timm/layers.py": LAYERS,
        **BROKEN,
        **(packages or {}),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", ASK + textwrap.dedent(code)],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout.split("\n")[:-1]


def test_a_torchvision_without_its_library_is_enough_for_timm(tmp_path):
    said = asked(
        tmp_path,
        """
        try:
            import timm
        except RuntimeError as error:
            print(error)
        timm = import_timm()
        print(timm.layers.FROZEN, timm is import_timm(), declared("nms"), declared("qnms"))
        """,
    )
    assert said == ["operator torchvision::nms does not exist", "1 True False False"]


def test_a_torchvision_that_works_is_not_touched(tmp_path):
    healthy = """
        import torch
        from torchvision import before
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor own) -> Tensor")
        torch.library.register_fake("torchvision::nms")(lambda own: own)
        """
    said = asked(
        tmp_path,
        "import_timm(); print(torch.ops.torchvision.nms.default._schema, declared('qnms'))",
        {"torchvision/__init__.py": textwrap.dedent(healthy)},
    )
    assert said == ["torchvision::nms(Tensor own) -> Tensor False"]


@pytest.mark.parametrize(
    ("packages", "message"),
    [
        (
            {"torchvision/__init__.py": TORCHVISION.format(describes=("nms", "roi_align"))},
            "timm cannot start, because its torchvision does not match torch {torch} (operator "
            "torchvision::roi_align does not exist); install both from one index: "
            "pip install --force-reinstall torch torchvision",
        ),
        (
            {"timm/layers.py": "raise OSError('no such library')"},
            'Building timm networks needs timm (no such library): pip install "dovetail[timm]"',
        ),
    ],
)
def test_where_nothing_helps_a_remedy_is_named(tmp_path, packages, message):
    code = """
        try:
            import_timm()
        except MissingExtraError as error:
            print(error)
        print(torch.__version__, declared("nms"))
        """
    said, rest = asked(tmp_path, code, packages)
    version, left = rest.split()
    assert (said, left) == (message.format(torch=version), "False")


STORY = """
import sys
import torch
import dovetail as dt

shelf = dt.Shelf(sys.argv[1])
for name, args in {
    "resnet18": {},
    "convnext_atto": {},
    "vit_tiny_patch16_224": {"img_size": 64},
}.items():
    part = dt.build("timm/" + name, num_classes=3, **args)
    points = dt.cut_points(part)
    front, back = dt.cut(part, at=points[len(points) // 2])
    shelf.add(front, name + ".front"), shelf.add(back, name + ".back")
    again = dt.join(shelf.get(name + ".front"), shelf.get(name + ".back"))
    x = torch.rand(2, *again.contract.takes[0].shape)
    same = dt.predict(part, x).probabilities - dt.predict(again, x).probabilities
    print(name, again.contract.gives[0].shape, bool(same.abs().max() < 1e-5))
"""


@pytest.mark.slow
def test_the_documented_install_builds_cuts_shelves_and_predicts(tmp_path):
    """In an environment of its own, so that nothing but what pip brought can be what helps."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    if subprocess.run(
        [*pip, "download", "--no-deps", "-d", tmp_path, "timm"], check=False
    ).returncode:
        pytest.skip("no package index can be reached")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    alone = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    install = ["-m", "pip", "install", "-q", "-c", "constraints.txt", ".[timm]"]
    subprocess.run([python, *install], cwd=ROOT, env=alone, check=True)
    told = subprocess.run(
        [python, "-c", STORY, tmp_path / "shelf"],
        cwd=tmp_path,
        env=alone,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.stdout.splitlines() == [
        "resnet18 (3,) True",
        "convnext_atto (3,) True",
        "vit_tiny_patch16_224 (3,) True",
    ], told.stderr[-2000:]
