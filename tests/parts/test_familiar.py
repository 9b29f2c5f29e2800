"""Familiar features travel with a part, and are gone once they are another part's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from dovetail.measure.familiar import familiar_with
from dovetail.pack.compressing import compress
from dovetail.parts.contract import Preprocess
from dovetail.parts.cutting import cut
from dovetail.parts.facts import Origin
from dovetail.parts.joining import join
from dovetail.parts.packed import with_packed, without_packed
from dovetail.parts.part import Part, build
from dovetail.shelf.store import Shelf
from dovetail.tasks.task import Task

FILE = "familiar.safetensors"


@pytest.fixture(scope="module")
def task():
    return Task(torch.rand(300, 4, generator=torch.Generator().manual_seed(0)), [0, 1, 2] * 100)


@pytest.fixture
def part(task):
    part = build("mlp", shape=(4,), hidden=(8,), classes=3)
    return part.changed(familiar=familiar_with(part, task))


def test_a_folder_keeps_it(part, tmp_path):
    found = Part.from_pretrained(part.save_pretrained(tmp_path / "part"), verify=True).familiar
    assert repr(found) == repr(part.familiar)
    z = torch.randn(20, 8)
    torch.testing.assert_close(found.scores(z), part.familiar.scores(z))
    assert found.to_bytes() == part.familiar.to_bytes()


def test_a_part_without_one_has_no_file_and_reads_as_before(part, tmp_path):
    folder = part.changed(familiar=None).save_pretrained(tmp_path / "part")
    assert not (folder / FILE).exists()
    assert Part.from_pretrained(folder).familiar is None


def test_a_shelf_keeps_it_and_a_part_that_came_to_know_is_another_version(part, tmp_path):
    shelf = Shelf(tmp_path / "shelf")
    assert shelf.add(part.changed(familiar=None), "net").version == 1
    assert shelf.add(part, "net").version == 2
    assert shelf.add(part, "net").version == 2
    assert shelf.get("net").familiar.to_bytes() == part.familiar.to_bytes()
    assert shelf.verify().ok
    assert not shelf.verify().foreign


def test_packing_keeps_it(part, tmp_path):
    small = with_packed(part, compress(part.module.state_dict()))
    assert small.familiar is part.familiar
    assert without_packed(small).familiar is part.familiar
    assert Part.from_pretrained(small.save_pretrained(tmp_path / "small")).familiar is not None


def test_another_module_or_other_inputs_lose_it(part):
    assert part.changed(origin=Origin(how="renamed")).familiar is part.familiar
    assert part.changed(contract=replace(part.contract, classes=("a", "b", "c"))).familiar
    assert part.changed(module=build("mlp", shape=(4,), hidden=(8,)).module).familiar is None
    other = replace(part.contract, preprocess=Preprocess(mean=(0.5,), std=(0.5,)))
    assert part.changed(contract=other).familiar is None


def test_cuts_and_joins_have_none(part):
    front, head = cut(part, at="hidden1")
    assert front.familiar is head.familiar is join(front, head).familiar is None


def test_its_file_is_small(tmp_path):
    task = Task(torch.rand(600, 1280, generator=torch.Generator().manual_seed(0)), [0, 1] * 300)
    part = build("mlp", shape=(1280,), hidden=(), classes=2)
    folder = part.changed(familiar=familiar_with(part, task)).save_pretrained(tmp_path / "wide")
    assert (folder / FILE).stat().st_size < 256 << 10
    assert load_file(folder / FILE)["basis"].shape == (1280, 32)
