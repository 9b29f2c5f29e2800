"""Scratch, frozen and fine-tuned side by side, against trainings by hand."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch import nn

import dovetail as dt
from dovetail.core.errors import ContractError, DovetailError, SettingsError, TaskError
from dovetail.core.records import load_record
from dovetail.lens import TransferRun, TransferStudy, transfer_study
from dovetail.parts.heads import head_like
from dovetail.tasks.derive import few, only_classes
from dovetail.train.end_to_end import end_to_end

ROOM = import_module("dovetail.lens.transfer_study")
HOW = {"seeds": 1, "epochs": 3, "batch_size": 16}


@pytest.fixture(scope="module")
def digits():
    task = dt.load_task("digits")
    return only_classes(task, "012"), few(only_classes(task, "3456"), 12)


@pytest.fixture(scope="module")
def source(digits):
    net = dt.build("mlp", hidden=(16, 12), classes=3)
    return dt.train.end_to_end(net, digits[0], epochs=3).part


@pytest.fixture(scope="module")
def study(source, digits):
    return transfer_study({"012": source}, digits[1], **HOW)


def state(part):
    return {name: tensor.clone() for name, tensor in part.module.state_dict().items()}


def test_every_way_is_run_and_the_source_left_alone(source, digits):
    before = state(source)
    study = transfer_study({"012": source}, digits[1], **HOW)
    assert [row.name for row in study.rows] == ["scratch", "012, frozen", "012, fine-tuned"]
    assert all(torch.equal(value, before[name]) for name, value in state(source).items())
    assert study.n == 48
    assert all(len(run.errors) == len(run.deviations) == 3 for run in study.runs)


def test_only_the_head_of_a_frozen_source_moves(study):
    layers = study.row("012", "frozen").layers
    moved = [name for name, value in layers.items() if value > 0]
    assert len(moved) == 1
    assert moved[0].endswith("head.weight")
    assert all(value > 0 for value in study.row("012", "fine-tuned").layers.values())


def test_a_run_is_the_training_it_says(source, digits, study):
    """Fine-tuning by hand: the source with a fresh head of the same draw, the same steps."""
    front, back = dt.cut(source, at="hidden2")
    start = dt.join(front, head_like(back, list(digits[1].classes), seed=0), force=True)
    by_hand = dt.train.end_to_end(start, digits[1], seed=0, epochs=3, batch_size=16, lr=0.01)
    (run,) = [run for run in study.runs if run.way == "fine-tuned"]
    assert run.test_error == pytest.approx(
        1 - dt.evaluate(by_hand.part, digits[1]).accuracy, abs=1e-9
    )
    old, new = state(start), state(by_hand.part)
    total = sum(
        float((new[name].double() - old[name].double()).norm()) / 48**0.5
        for name in new
        if name.endswith("weight")
    )
    assert run.deviation == pytest.approx(total, rel=1e-6)
    assert run.deviations[-1] == pytest.approx(run.deviation, rel=1e-6)


def test_runs_are_kept_and_found_again(source, digits, tmp_path, monkeypatch):
    first = transfer_study({"012": source}, digits[1], folder=tmp_path, **HOW)
    files = sorted(file.name for file in tmp_path.iterdir())
    assert len(files) == 3
    assert all(name.endswith(".json") for name in files)
    monkeypatch.setattr(ROOM, "end_to_end", None)
    assert transfer_study({"012": source}, digits[1], folder=tmp_path, **HOW) == first
    again = transfer_study({"renamed": source}, digits[1], folder=tmp_path, **HOW)
    assert again.sources == ("renamed",)
    with pytest.raises(TypeError):  # another rate is another run
        transfer_study({"012": source}, digits[1], folder=tmp_path, **HOW, lr=0.02)


def test_an_interrupt_leaves_what_was_done(source, digits, monkeypatch):
    calls = []

    def impatient(*args, **settings):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return end_to_end(*args, **settings)

    monkeypatch.setattr(ROOM, "end_to_end", impatient)
    study = transfer_study({"012": source}, digits[1], **HOW)
    assert [run.way for run in study.runs] == ["scratch", "frozen"]
    assert "012, fine-tuned, seed 0" in study.stopped
    assert "Interrupted" in str(study.view())
    calls[:] = [None, None]  # the first is the third
    with pytest.raises(KeyboardInterrupt):
        transfer_study({"012": source}, digits[1], **HOW)


def test_epochs_of_one_source_are_a_curve(digits):
    kept = dt.train.Snapshots()
    net = dt.build("mlp", hidden=(8,), classes=3)
    part = dt.train.end_to_end(net, digits[0], epochs=3, callbacks=(kept,)).part
    study = transfer_study(kept.parts(part), digits[1], ways=["frozen"], **HOW)
    titles = [getattr(block, "title", "") for block in study.view()]
    assert "Accuracy on the target, by the epoch of the source" in titles
    assert study.scratch_error is None
    assert study.best.improvement is None


def test_numbers_are_studied_too():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(80, 3, generator=draw)
    task = dt.Task(x, x[:, 0] + x[:, 1], kind="regression", name="sum")
    part = dt.train.end_to_end(dt.build("mlp", shape=(3,), classes=1), task, epochs=5).part
    study = transfer_study(part, task, ways=("scratch", "frozen"), seeds=[4], epochs=3)
    assert study.sources == ("sum",)
    assert all(run.test_error == run.test_error for run in study.runs)


def test_a_module_without_a_recipe_is_drawn_anew(digits):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))
    source = dt.adopt(net, example=torch.rand(1, 1, 8, 8))
    study = transfer_study({"own": source}, digits[1], **HOW)
    assert {row.way for row in study.rows} == {"scratch", "frozen", "fine-tuned"}


def runs(errors, deviations):
    base = [TransferRun("", "scratch", 0, 0.0, 0.4, 3.0, errors=(0.9, 0.5))]
    tuned = [
        TransferRun(name, "fine-tuned", 0, 0.0, error, moved, errors=(0.5, error))
        for name, error, moved in zip("abcd", errors, deviations, strict=True)
    ]
    return (*base, *tuned)


def test_the_record_says_what_helped_and_how_soon(tmp_path):
    found = TransferStudy(
        target="t", sources=tuple("abcd"), n=9, runs=runs((0.1, 0.2, 0.3, 0.5), (1, 2, 3, 4))
    )
    assert found.correlation() == pytest.approx(1.0)
    assert found.row("a", "fine-tuned").improvement == pytest.approx(0.75)
    assert found.row("a", "fine-tuned").epochs == 1  # as good as the 50 % that scratch ends with
    assert replace(found, threshold=0.15).row("b", "fine-tuned").epochs is None
    assert found.summary.endswith("No gain from d.")
    assert load_record(found.save(tmp_path / "study.json")) == found
    backwards = replace(found, runs=runs((0.5, 0.6, 0.7, 0.8), (4, 3, 2, 1)))
    assert backwards.correlation() == pytest.approx(-1.0)
    assert "no source helps" in backwards.summary
    with pytest.raises(SettingsError, match="not in the study"):
        found.row("e", "frozen")


def test_mistakes_are_told(source, digits):
    whole, task = source, digits[1]
    _, head = dt.cut(whole, at="hidden2")
    for wrong, error, said in (
        (lambda: transfer_study({}, task), SettingsError, "no source"),
        (lambda: transfer_study(head, task), ContractError, "takes features"),
        (lambda: transfer_study(whole, 3), TaskError, "must be a Task"),
        (lambda: transfer_study(whole, task, ways=["tuned"]), SettingsError, "unknown way 'tuned'"),
        (lambda: transfer_study(whole, task, ways="scratch"), SettingsError, "some of"),
        (lambda: transfer_study(whole, task, seeds=0), SettingsError, "seeds"),
        (lambda: transfer_study(whole, task, threshold=-1), SettingsError, "threshold"),
        (lambda: transfer_study(whole, task, epochs=0), SettingsError, "epochs"),
        (lambda: transfer_study(whole, task, at="nowhere"), DovetailError, "nowhere"),
        (
            lambda: transfer_study(whole, dt.Task(torch.rand(20, 5), [0, 1] * 10)),
            DovetailError,
            "5",
        ),
    ):
        with pytest.raises(error, match=said):
            wrong()
