"""Derived tasks by name: a name asks for the very task that bears it, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.errors import TaskError
from dovetail.tasks import derive
from dovetail.tasks.known import base_of, changes_of, derived_by_name
from dovetail.tasks.load import load_task
from dovetail.tasks.task import Task


@pytest.fixture(scope="module")
def digits():
    return load_task("digits")


@pytest.fixture(scope="module")
def flags():
    return Task(torch.rand(12, 3, 6, 6), ["a", "b", "c"] * 4, name="flags")


@pytest.mark.parametrize(
    "make",
    [
        derive.inverted,
        derive.rotations,
        lambda task: derive.rotated(task, 90),
        lambda task: derive.rotated(task, -22.5),
        lambda task: derive.blurred(task, 0.75),
        lambda task: derive.noisy(task, 0.2),
        lambda task: derive.noisy(task, 1e-05),
        lambda task: derive.few(task, 3),
        lambda task: derive.resized(task, (4, 5)),
        lambda task: derive.only_classes(task, ["7", "0"]),
        lambda task: derive.rotated(derive.only_classes(derive.inverted(task), ["1", "2"]), 180),
        lambda task: derive.only_classes(derive.rotations(task), ["0°", "90°"]),
    ],
)
def test_a_name_gives_the_task_that_bears_it(digits, make):
    made = make(digits)
    read = load_task(made.name)
    assert read.name == made.name
    assert read.fingerprint == made.fingerprint


def test_colours_are_taken_away(flags):
    assert derived_by_name(flags, "flags~grey").fingerprint == derive.grey(flags).fingerprint


def test_the_seed_draws(digits):
    one, other = (load_task("digits~noise0.2", seed=seed) for seed in (0, 1))
    expected = derive.noisy(load_task("digits", seed=1), 0.2, 1)
    assert other.fingerprint == expected.fingerprint != one.fingerprint


def test_files_are_changed_too_and_files_of_that_name_come_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    x, y = np.random.default_rng(0).random((30, 1, 6, 6), np.float32), np.arange(30) % 3
    np.savez("it.npz", x=x, y=y)
    np.savez("it~inverted.npz", x=x, y=y)
    asked = load_task("it.npz~inverted", name="mine")
    assert asked.name == "mine~inverted"
    assert asked.fingerprint == derive.inverted(load_task("it.npz", name="mine")).fingerprint
    assert load_task("~/it.npz~inverted", name="mine").fingerprint == asked.fingerprint
    there = load_task("it~inverted.npz")
    assert torch.equal(there.inputs, load_task("it.npz").inputs)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("digits~invertd", "unknown change '~invertd'; did you mean ~inverted"),
        ("digits~inverted~", "unknown task"),
        ("digits~rot", "unknown change '~rot'"),
        ("digits~rotninety", "unknown change"),
        ("digits~noise", "unknown change"),
        ("digits~noise-1", "std must be positive"),
        ("digits~blur0", "sigma must be a positive"),
        ("digits~0shot", "per_class must be at least 1"),
        ("digits~9999999shot", "not 9999999"),
        ("digits~0x4", "size must be at least 1"),
        ("digits[0]", "needs two"),
        ("digits[]", "has no class ''"),
        ("digits[0,x]", "has no class 'x'"),
        ("digits[0,1", "unknown task"),
        ("digits[0,0]", "named twice"),
        ("digitz~inverted", "did you mean digits"),
        ("~inverted", "unknown task"),
        ("nowhere/x.npz~inverted", "no such file"),
        ("digits~inverted~grei", "unknown change '~grei'"),
    ],
)
def test_what_is_not_a_task_is_told(name, told):
    with pytest.raises(TaskError, match=told.replace("?", r"\?")):
        load_task(name)


def test_a_word_nobody_knows_is_told_before_the_data_are_read(monkeypatch):
    monkeypatch.setattr("dovetail.tasks.load._digits", lambda seed: pytest.fail("read"))
    with pytest.raises(TaskError, match="unknown change"):
        load_task("digits~grei")


def test_options_of_the_base_are_its_own():
    with pytest.raises(TaskError, match="'digits' takes no options; not 'size'"):
        load_task("digits~inverted", size=4)


@given(st.text(alphabet="ab~[],./x90 \n", max_size=20))
def test_any_text_is_a_name_or_a_clear_refusal(text):
    base = base_of(text)
    assert base is None or (base and text.startswith(base))
    try:
        changes = changes_of(text)
    except TaskError:
        assert base is not None
    else:
        assert (base is None) == (changes == [])
