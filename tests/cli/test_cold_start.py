"""What needs no network is answered without one: told by the modules that are loaded, not by time.

Each command runs in a fork of a bare interpreter, so that none sees what another has loaded.
"""

import subprocess
import sys

import pytest
from cli.console import environment

from dovetail.cli import main as door

HEAVY = {
    "torch",
    "numpy",
    "scipy",
    "sklearn",
    "rich",
    "PIL",
    "safetensors",
    "dataclasses",
    "typing",
}
MOST = 60
"""Modules beyond a bare Python's.  argparse and what it needs are 30 of them."""

FORKS = """
import os, sys
bare, words = set(sys.modules), sys.argv[1:]
while words:
    end = words.index(";")
    command, words = words[:end], words[end + 1:]
    read, write = os.pipe()
    shown, terminal = os.openpty()
    child = os.fork()
    if not child:
        os.close(read)
        paper = terminal if "@" in command else os.open(os.devnull, os.O_WRONLY)
        os.dup2(paper, 1), os.dup2(paper, 2)
        command = [word for word in command if word != "@"]
        try:
            from dovetail.cli.main import main
            code = main(command)
        except SystemExit as stop:
            code = stop.code
        told = " ".join((str(code), *sorted(set(sys.modules) - bare)))
        os.write(write, told.encode())
        os._exit(0)
    os.close(write), os.close(terminal)
    try:
        while os.read(shown, 4096):
            pass
    except OSError:  # the terminal is closed
        pass
    os.close(shown)
    print(open(read).read(), flush=True)
    os.waitpid(child, 0)
"""

MISTAKES = [
    "",
    "fly",
    "train",
    "train digits --fly",
    "train digits --epochs many",
    "train digts",
    "train digits~invertd",
    "train nowhere/images",
    "train mnist --data nowhere",
    "train digits --epochs 0",
    "train digits --lr nan",
    "train digits --how magic",
    "train digits --pairs 3",
    "train digits --from nosuch",
    "rank nosuchtask",
    "rank digits --part nosuch",
    "rank digits --split tset",
    "rank digits --confidence 0",
    "cut nosuch",
    "export nosuch -o a.onnx",
    "export net -o a.bin",
    "export net",
    "cut net@9",
    "cut net --shelf nowhere",
    "join nosuch net",
    "join net net --explain --force",
    "join net net --task digts",
    "join net net --task digits --repair glue",
    "recombine nosuch --task digits",
    "recombine net --task digts",
    "recombine net --task digits --norms bach",
    "reuse fly",
    "reuse domain nosuch digits",
    "reuse extend net.back digits --front nosuch",
    "reuse transfer net.back digts --epochs 1",
    "reuse transfer net.back digits --epochs -1",
    "adapt nosuch digits",
    "adapt net digts",
    "adapt net digits --seeds 0",
    "adapt net digits --link logit",
    "predict nosuch images.npy",
    "predict net nosuch.npy",
    "predict net images.npy --most 0",
    "pack",
    "pack nosuch",
    "pack net --task digits --points -1",
    "pack net --task digts",
    "unpack nosuch",
    "unpack net --most-gigabytes 0",
    "data get cifar",
    "data get",
    "data get mnist --from nowhere",
    "shelf show nosuch",
    "shelf ls --shelf nowhere",
    "shelf ls --takes three",
    "report",
    "report nosuch.json",
    "report --shelf shelf --format gif",
    "report --shelf nowhere",
    "demo --epochs 0",
]
ANSWERS = [
    "--version",
    "--help",
    *(f"{command} --help" for command in door._COMMANDS),
    "shelf ls --help",
    "reuse domain --help",
    "shelf ls",
    "shelf ls --json",
    "shelf ls --shelf empty",
    "shelf show net",
    "shelf show net --json",
    "data ls --data nowhere",
    "data ls --data nowhere --json",
    *(f"@ {command}" for command in ("shelf ls", "shelf show net", "data ls --data nowhere")),
]


@pytest.fixture(scope="module")
def started(furnished):
    """Of each command, its exit code and the modules it has loaded beyond a bare Python's."""
    (furnished / "empty").mkdir()
    first = [command for command in ANSWERS if "shelf" in command and "--" not in command]
    first += ["shelf ls --json", "shelf show net --json"]
    commands = [*first, *MISTAKES, *ANSWERS]  # what a shelf is asked the first time is read
    words = [word for command in commands for word in (*command.split(), ";")]
    done = subprocess.run(
        [sys.executable, "-c", FORKS, *words],
        cwd=furnished,
        env=environment() | {"TERM": "xterm", "COLUMNS": "120"},
        capture_output=True,
        text=True,
        check=True,
    )
    told = [line.split() for line in done.stdout.splitlines()]
    assert len(told) == len(commands), done.stderr
    return dict(zip(commands, ((int(code), set(found)) for code, *found in told), strict=True))


@pytest.mark.parametrize("command", [*MISTAKES, *ANSWERS])
def test_no_network_is_loaded_where_none_is_needed(started, command):
    code, modules = started[command]
    assert code == (2 if command in MISTAKES else 0)
    assert not modules & HEAVY
    assert len(modules) <= MOST, sorted(modules)


def test_data_are_compared_without_torch(tmp_path):
    code = (
        "import sys; from dovetail.jobs import data\n"
        "assert data.ls(data='.').data['there']['mnist'] is None\n"
        "assert 'torch' not in sys.modules"
    )
    (tmp_path / "mnist").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_a_shelf_is_listed_and_searched_without_torch(furnished):
    code = (
        "import sys; from dovetail.shelf.store import Shelf\n"
        "shelf = Shelf('shelf', create=False)\n"
        "shelf.ls().view(), shelf.show('net').view(), shelf.find(takes=(1, 8, 8))\n"
        "shelf.path('net.front', 'net.back')\n"
        "heavy = {'torch', 'numpy', 'safetensors', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=furnished,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
