"""The filters of ``dovetail shelf ls`` find what :meth:`Shelf.find` finds."""

import json
import os
import time
from dataclasses import replace

import pytest

from dovetail.cli.main import main
from dovetail.parts.cutting import cut
from dovetail.shelf.store import Shelf


@pytest.fixture(scope="module")
def full(tmp_path_factory, tiny):
    shelf = Shelf(tmp_path_factory.mktemp("shelf"))
    for seed in range(2):
        front, head = cut(tiny(seed), at="hidden1")
        shelf.add(front, f"front-{seed}", tags=["front", f"seed {seed}"])
        contract = replace(head.contract, classes=("cat", "dog"))
        origin = replace(head.origin, task="pets" if seed else "digits")
        shelf.add(head.changed(contract=contract, origin=origin), f"head-{seed}")
    shelf.add(tiny(), "net")
    (shelf.add(tiny(1), "broken").folder / "config.json").unlink()
    return shelf


def listed(shelf, capsys, *arguments):
    assert main(["shelf", "ls", *arguments, "--shelf", str(shelf.folder), "--json"]) == 0
    return [row["ref"].removesuffix("@1") for row in json.loads(capsys.readouterr().out)["rows"]]


def test_every_filter(full, capsys):
    space = full.entry("front-1").contract.gives[0].space
    assert listed(full, capsys) == ["broken", "front-0", "front-1", "head-0", "head-1", "net"]
    for arguments, found in {
        ("front-*",): ["front-0", "front-1"],
        ("--fits", "front-1"): ["head-1"],
        ("--fits", "head-0@1"): ["front-0"],
        ("--space", space): ["front-1", "head-1"],
        ("--classes", "dog, cat"): ["head-0", "head-1"],
        ("--classes", "dog,fox"): [],
        ("--task", "pets"): ["head-1"],
        ("--tag", "seed 0"): ["front-0"],
        ("--takes", "4"): ["head-0", "head-1"],
        ("--takes", "?"): ["front-0", "front-1", "head-0", "head-1", "net"],
        ("--gives", "2"): ["head-0", "head-1", "net"],
        ("--gives", "2x2"): [],
        ("head-*", "--task", "digits", "--takes", "4"): ["head-0"],
    }.items():
        assert listed(full, capsys, *arguments) == found, arguments


def test_nothing_found_is_not_an_empty_shelf(full, capsys):
    assert main(["shelf", "ls", "--tag", "none", "--shelf", str(full.folder)]) == 0
    assert "has no such part" in capsys.readouterr().out


@pytest.mark.parametrize("shape", ["", "4x", "x4", "-1", "4,4", "four"])
def test_a_shape_that_is_none_is_one_line(full, capsys, shape):
    with pytest.raises(SystemExit) as stopped:
        main(["shelf", "ls", f"--takes={shape}", "--shelf", str(full.folder)])
    assert stopped.value.code == 2
    assert "expected a shape such as 16x2x2" in capsys.readouterr().err


def test_a_part_that_is_not_there_fits_nothing(full, capsys):
    assert main(["shelf", "ls", "--fits", "fromt-1", "--shelf", str(full.folder)]) == 2
    assert "did you mean front-1" in capsys.readouterr().err


def test_verify_sweeps_when_asked(shelf, tiny, capsys):
    shelf.add(tiny(), "net")
    old, new = (shelf.folder / ".work" / f".dovetail-{word}" for word in ("old", "new"))
    for path in (old, new):
        path.mkdir()
    os.utime(old, (time.time() - 200_000,) * 2)
    at = ["--shelf", str(shelf.folder), "--json"]
    assert main(["shelf", "verify", *at]) == 0
    assert len(json.loads(capsys.readouterr().out)["leftovers"]) == 2
    assert main(["shelf", "verify", "--sweep", *at]) == 0
    assert json.loads(capsys.readouterr().out)["leftovers"] == [".work/.dovetail-new"]
