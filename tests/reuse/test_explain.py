"""Why a head does not fit a front, and what each repair reaches: against independent arithmetic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from dovetail.closed_form.stitch import stitch as solve_stitch
from dovetail.core.errors import ContractError, SettingsError, ShelfError, TaskError
from dovetail.core.records import load_record
from dovetail.core.seeds import generator
from dovetail.parts.contract import Contract, Port
from dovetail.parts.cutting import cut
from dovetail.parts.facts import Origin
from dovetail.parts.part import Part, build
from dovetail.reuse.explain import explain_fit
from dovetail.reuse.question import NORMS, Question
from dovetail.shelf.store import Shelf
from dovetail.tasks.derive import only_classes
from dovetail.tasks.load import load_task
from dovetail.tasks.task import Task
from dovetail.train.end_to_end import end_to_end
from dovetail.train.stitch import stitch as train_stitch


@pytest.fixture(scope="module")
def digits():
    return load_task("digits")


def trained(digits, *args, at, seed, **sizes):
    net = build(*args, seed=seed, **sizes)
    return cut(end_to_end(net, digits, epochs=3, seed=seed).part, at=at)


@pytest.fixture(scope="module")
def wide(digits):
    return trained(digits, "mlp", at="hidden1", seed=0, hidden=(40,))


@pytest.fixture(scope="module")
def narrow(digits):
    return trained(digits, "mlp", at="hidden1", seed=1, hidden=(24,))


@pytest.fixture(scope="module")
def normed(digits):
    return [
        trained(digits, "lenet5", at="conv2", seed=seed, size=8, norm="batch") for seed in (0, 1)
    ]


@pytest.fixture(scope="module")
def mlp_report(wide, narrow, digits):
    return explain_fit(wide[0], narrow[1], digits, reference=narrow[0], epochs=3)


@pytest.fixture(scope="module")
def normed_report(normed, digits):
    (front, _), (reference, head) = normed
    return explain_fit(front, head, digits, reference=reference, epochs=3)


def prepared(front, task, rows):
    how = front.contract.preprocess
    mean, std = (torch.tensor(v).reshape(-1, 1, 1) for v in (how.mean, how.std))
    return (task.inputs[rows] - mean) / std


@torch.no_grad()
def share_right(task, parts, split="validation"):
    """Images through the parts, one image at a time, right answers counted."""
    rows, right = task.indices(split), 0
    for row in rows.tolist():
        x = prepared(parts[0], task, [row])
        for part in parts:
            x = part.module.eval()(x)
        right += parts[-1].contract.classes[int(x[0].argmax())] == task.classes[task.targets[row]]
    return right / len(rows)


# What is measured, against arithmetic of our own --------------------------------------------------


@torch.no_grad()
def test_the_stitch_of_least_squares_reaches_what_numpy_says(mlp_report, wide, narrow, digits):
    rows = digits.indices("train")
    drawn = rows[torch.randperm(len(rows), generator=generator(0, "stitch"))[:2000]]
    fitted = drawn[len(drawn) // 5 :]
    x = wide[0].module.eval()(prepared(wide[0], digits, fitted)).double().numpy()
    y = narrow[0].module.eval()(prepared(narrow[0], digits, fitted)).double().numpy()
    ones = np.ones((len(x), 1))
    solved = np.linalg.lstsq(np.hstack([x, ones]), y, rcond=None)[0]
    between = nn.Linear(40, 24)
    between.weight.copy_(torch.tensor(solved[:-1].T))
    between.bias.copy_(torch.tensor(solved[-1]))
    expected = share_right(digits, [wide[0], Part(between), narrow[1]])
    repair = mlp_report.repair("stitch")
    assert repair.kind == "measured"
    assert repair.accuracy == pytest.approx(expected, abs=1e-9)
    assert repair.accuracy > 0.6


def test_the_trained_stitch_reaches_what_the_trainer_gives(mlp_report, wide, narrow, digits):
    start = solve_stitch(wide[0], narrow[0], digits)
    fit = train_stitch(wide[0], narrow[1], digits, start=start, norms="stored", epochs=3)
    expected = share_right(digits, [wide[0], fit.parts[0], narrow[1]])
    repair = mlp_report.repair("trained-stitch")
    assert (repair.kind, repair.accuracy) == ("measured", pytest.approx(expected))
    assert "Trained for 3 epochs on 1258 of 1258" in repair.known_by


def test_a_trained_stitch_is_judged_with_the_norms_it_was_trained_for(normed, digits, monkeypatch):
    """The best of all policies would be no accuracy of the network that the command makes."""

    def batch_is_best(self, front, tail, policies=NORMS):
        return {policy: 0.9 if policy == "batch" else 0.5 for policy in policies}

    monkeypatch.setattr(Question, "accuracies", batch_is_best)
    (front, _), (_, head) = normed
    report = explain_fit(front, head, digits, epochs=1)
    assert report.as_it_is["batch"] == 0.9
    stitched = report.repair("trained-stitch")
    chosen = train_stitch(front, head, digits, epochs=1).record.settings["norms"]
    assert (stitched.norms, stitched.accuracy) == (chosen, 0.5)


def test_an_untrained_adapter_is_near_chance_and_says_so(mlp_report):
    repair = mlp_report.repair("adapter")
    assert (repair.applies, repair.kind) == (True, "measured")
    assert repair.accuracy < 0.4
    assert "start of a trained stitch" in repair.does


def test_the_bound_is_the_reference_with_its_own_head(mlp_report, narrow, digits):
    own = share_right(digits, narrow)
    assert mlp_report.bound == {n: pytest.approx(own) for n in ("stored", "batch", "recalibrated")}
    assert mlp_report.as_it_is == {}
    assert mlp_report.chance == pytest.approx(0.1)
    assert mlp_report.n == 180


def test_with_equal_shapes_repairs_beat_the_forced_join_by_far(normed_report, normed, digits):
    (front, _), (reference, head) = normed
    assert [r.about for r in normed_report.reasons] == ["space", "norms"]
    assert normed_report.as_it_is["stored"] == pytest.approx(share_right(digits, [front, head]))
    assert normed_report.bound["stored"] == pytest.approx(share_right(digits, [reference, head]))
    before = max(normed_report.as_it_is.values())
    assert set(normed_report.as_it_is) == {"stored", "batch", "recalibrated"}
    assert before < 0.4
    assert normed_report.repair("stitch").accuracy > before + 0.25
    assert normed_report.repair("trained-stitch").accuracy > before + 0.5
    again = normed_report.repair("recalibrate")
    assert again.accuracy == normed_report.as_it_is["recalibrated"]
    assert again.norms == "recalibrated"
    assert normed_report.best.name == "trained-stitch"
    assert "Best repair that was measured: trained-stitch" in normed_report.summary


def test_a_guess_is_never_called_measured(normed_report):
    for repair in normed_report.applicable:
        assert repair.seconds > 0
    guess = normed_report.repair("retrain")
    known = normed_report.repair("trained-stitch").accuracy
    bounds = sorted([known, max(normed_report.bound.values())])
    assert (guess.kind, [guess.low, guess.high]) == ("expected", bounds)
    assert guess.accuracy == pytest.approx(sum(bounds) / 2)
    assert "guessed, not measured" in guess.known_by
    assert [r.kind for r in normed_report.applicable] == ["measured"] * 3 + ["expected"]
    table = next(b for b in normed_report.view() if getattr(b, "caption", "") == "Repairs")
    shown = {row[0]: row for row in table.shown()}
    assert shown["retrain"][1:3] == (f"{bounds[0]:.1%} to {bounds[1]:.1%}", "expected")


def test_without_measuring_a_training_is_timed_only(wide, narrow, digits):
    report = explain_fit(wide[0], narrow[1], digits, reference=narrow[0], measure=False)
    timed = report.repair("trained-stitch")
    assert (timed.applies, timed.kind, timed.accuracy) == (True, "expected", None)
    assert timed.seconds > 0
    assert "100 steps (5 epochs of 1258 images)" in timed.known_by
    later = report.repair("retrain")
    assert (later.accuracy, later.low, later.high) == (None, None, None)
    assert report.best.name == "stitch"


def test_labels_serve_for_judging_only(wide, narrow, digits, mlp_report, normed, normed_report):
    targets = digits.targets.clone()
    rows = digits.indices("train")
    targets[rows] = targets[rows].roll(1)
    blind = digits.derived("digits", targets=targets)
    report = explain_fit(wide[0], narrow[1], blind, reference=narrow[0], epochs=3)
    assert report.repair("stitch").accuracy == mlp_report.repair("stitch").accuracy
    assert report.repair("trained-stitch").accuracy < 0.5  # it does read them
    (front, _), (_, head) = normed
    report = explain_fit(front, head, blind, measure=False)
    assert report.repair("recalibrate").accuracy == normed_report.repair("recalibrate").accuracy


def test_the_test_split_is_never_looked_at(wide, narrow, digits, mlp_report):
    inputs, targets = digits.inputs.clone(), digits.targets.clone()
    rows = digits.indices("test")
    inputs[rows], targets[rows] = 0.0, 0
    report = explain_fit(
        wide[0],
        narrow[1],
        digits.derived("digits", inputs=inputs, targets=targets),
        reference=narrow[0],
        epochs=3,
    )
    assert [r.accuracy for r in report.repairs] == [r.accuracy for r in mlp_report.repairs]


def test_reports_survive_a_file(normed_report, mlp_report, tmp_path):
    for report in (normed_report, mlp_report, explain_fit(Part(nn.ReLU()), Part(nn.ReLU()))):
        assert load_record(report.save(tmp_path / "r.json")) == report


# Reasons ------------------------------------------------------------------------------------------


def test_own_halves_fit(normed, digits):
    front, head = normed[0]
    report = explain_fit(front, head, digits)
    assert (report.fits, report.reasons) == (True, ())
    assert report.as_it_is["stored"] == pytest.approx(share_right(digits, [front, head]))
    assert [r.name for r in report.applicable] == ["recalibrate"]
    assert "The contract allows the join." in report.summary


def test_maps_of_other_sizes_have_no_stitch(normed, digits):
    early, _ = cut(build("lenet5", size=8), at="conv1")
    report = explain_fit(early, normed[1][1], digits, reference=normed[1][0])
    assert [r.about for r in report.reasons if r.weight == "stops"] == ["channels", "size"]
    assert report.applicable == ()
    assert "position by position" in report.repair("stitch").why_not
    assert "the head cannot take maps of 4×4" in report.repair("retrain").why_not
    assert "cannot enter the head" in report.repair("recalibrate").why_not
    assert report.as_it_is == {}


def test_a_head_that_pools_takes_a_front_of_another_size(digits):
    early, _ = cut(build("resnet8", channels=1, size=8), at="layer1")
    _, head = cut(build("resnet8", channels=1, size=16), at="layer1")
    head = head.changed(contract=replace(head.contract, classes=digits.classes))
    report = explain_fit(early, head)
    assert [r.about for r in report.reasons][:1] == ["size"]
    assert report.repair("retrain").applies
    assert not report.repair("stitch").applies


def test_a_vector_meets_a_map(wide, normed):
    report = explain_fit(wide[0], normed[0][1])
    assert report.reasons[0].about == "axes"
    assert report.applicable == ()


def test_several_tensors_meet_one(digits, normed):
    two, _ = cut(build("resnet8", channels=1, size=8), at="layer2.0.conv1")
    report = explain_fit(two, normed[0][1], digits)
    assert "2 tensors" in report.why_not[0]
    assert report.applicable == ()


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("abcdefghij", "No class is common"),
        ("0bcdefghij", "Only the class '0' is common"),
    ],
)
def test_too_few_classes_in_common(mlp_report, wide, narrow, digits, names, said):
    renamed = digits.derived("letters", classes=tuple(names))
    report = explain_fit(wide[0], narrow[1], renamed, reference=narrow[0])
    assert any(said in sentence for sentence in report.why_not)
    assert said in report.obstacle
    assert (report.as_it_is, report.bound, report.chance, report.n) == ({}, {}, None, 0)
    assert all(r.accuracy is None and r.seconds is None for r in report.repairs)


def test_some_classes_in_common(wide, narrow, digits):
    renamed = digits.derived("some", classes=tuple("0123efghij"))
    report = explain_fit(wide[0], narrow[1], renamed, reference=narrow[0], epochs=3)
    assert report.classes == tuple("0123")
    assert report.chance == 0.25
    assert report.n == only_classes(renamed, "0123").size("validation")
    assert report.repair("trained-stitch").accuracy > 0.7
    assert report.repair("stitch").accuracy > 0.7
    assert any("Only 0, 1, 2, 3 are common" in sentence for sentence in report.why_not)
    for name in ("trained-stitch", "retrain"):
        assert "only_classes(task, ['0', '1', '2', '3'])" in report.repair(name).python


def test_without_a_reference(wide, narrow, digits):
    report = explain_fit(wide[0], narrow[1], digits, epochs=1)
    assert "give that as the reference" in report.repair("stitch").why_not
    guess = report.repair("retrain")
    assert (guess.accuracy, guess.low) == (None, report.repair("trained-stitch").accuracy)
    assert report.bound == {}


def test_without_a_task_there_are_no_figures(wide, narrow):
    report = explain_fit(wide[0], narrow[1], reference=narrow[0])
    names = {repair.name for repair in report.applicable}
    assert names == {"adapter", "stitch", "trained-stitch", "retrain"}
    assert all((r.accuracy, r.seconds, r.kind) == (None, None, "expected") for r in report.repairs)
    assert any("give a task" in getattr(block, "caption", "") for block in report.view())


def test_preprocessing_that_differs_is_told(wide, narrow):
    other = replace(narrow[0].contract.preprocess, mean=(0.0,))
    reference = narrow[0].changed(contract=replace(narrow[0].contract, preprocess=other))
    report = explain_fit(wide[0], narrow[1], reference=reference)
    assert any("prepares its inputs in another way" in said for said in report.why_not)


# The shelf ----------------------------------------------------------------------------------------


def test_a_reference_and_a_chain_are_found_on_the_shelf(wide, narrow, digits, tmp_path, mlp_report):
    store = Shelf(tmp_path / "shelf")
    store.add(wide[0], "wide.front")
    store.add(narrow[1], "narrow.back")
    report = explain_fit(wide[0], narrow[1], digits, shelf=store, measure=False)
    assert report.reference is None
    assert "leads from the space" in report.repair("chain").why_not
    store.add(narrow[0], "narrow.front")
    start = solve_stitch(wide[0], narrow[0], digits)
    made = train_stitch(wide[0], narrow[1], digits, start=start, epochs=3).parts[0]
    store.add(made, "between")
    report = explain_fit(wide[0], narrow[1], digits, shelf=tmp_path / "shelf", measure=False)
    assert report.reference == "narrow.front@1"
    assert report.repair("stitch").accuracy == mlp_report.repair("stitch").accuracy
    chain = report.repair("chain")
    assert chain.accuracy == mlp_report.repair("trained-stitch").accuracy
    assert (chain.kind, "between@1" in chain.does) == ("measured", True)
    assert chain.command == (
        "dovetail join wide.front@1 between@1 narrow.back@1 --task digits --name NAME"
    )
    assert "--reference narrow.front@1" in report.repair("stitch").command


# What cannot be explained -------------------------------------------------------------------------


class Broken(nn.Module):
    def forward(self, x):
        return x.flatten(1)[:, :24] * float("nan")


def test_a_front_that_gives_nan(narrow, digits):
    contract = Contract(gives=(Port((24,), activation="relu", space="nan/1"),))
    report = explain_fit(Part(Broken(), contract), narrow[1], digits, reference=narrow[0])
    assert report.as_it_is == {}
    assert "NaN" in report.obstacle
    assert report.best is None
    assert all(r.why_not for r in report.repairs if not r.applies)


def test_one_example_to_judge_on(normed, digits):
    rows = {split: digits.indices(split) for split in ("train", "validation", "test")}
    tiny = digits.derived("tiny", indices=rows | {"validation": rows["validation"][:1]})
    (front, _), (_, head) = normed
    report = explain_fit(front, head, tiny, measure=False)
    assert set(report.as_it_is) == {"stored", "recalibrated"}  # a batch of one has no variance
    none = digits.derived("none", indices=rows | {"validation": rows["validation"][:0]})
    report = explain_fit(front, head, none, measure=False)
    assert "no examples in its validation split" in report.obstacle
    assert report.as_it_is == {}


def test_a_task_that_has_no_accuracies(wide, narrow):
    numbers = Task(torch.rand(40, 1, 8, 8), torch.rand(40), kind="regression", name="numbers")
    report = explain_fit(wide[0], narrow[1], numbers, reference=narrow[0])
    assert "of kind 'regression'" in report.obstacle
    assert [r.accuracy for r in report.repairs] == [None] * 6
    assert report.reasons[0].weight == "stops"


def test_inputs_that_the_front_does_not_take(wide, narrow):
    vectors = Task(torch.rand(40, 5), list("0123456789") * 4, name="vectors")
    report = explain_fit(wide[0], narrow[1], vectors)
    assert any("does not take the inputs of 'vectors'" in said for said in report.why_not)
    assert report.obstacle is not None


def test_mistakes_are_told(wide, narrow, digits, tmp_path):
    with pytest.raises(ContractError, match="no front of the head's space"):
        explain_fit(wide[0], narrow[1], reference=wide[0])
    with pytest.raises(SettingsError, match="limit must be at least 2"):
        explain_fit(wide[0], narrow[1], limit=1)
    with pytest.raises(SettingsError, match="epochs must be at least 1"):
        explain_fit(wide[0], narrow[1], epochs=0)
    with pytest.raises(SettingsError, match="task must be a Task"):
        explain_fit(wide[0], narrow[1], "digits")
    with pytest.raises(TaskError, match="unknown split"):
        explain_fit(wide[0], narrow[1], digits, split="valid")
    with pytest.raises(ShelfError, match="there is no shelf"):
        explain_fit(wide[0], narrow[1], shelf=tmp_path / "nowhere")


def test_whole_networks_are_told_to_be_cut_first(digits):
    nets = [build("lenet5", size=8, seed=seed) for seed in (0, 1)]
    first = explain_fit(*nets, digits).reasons[0]
    assert (first.about, first.weight) == ("whole", "stops")
    assert "Cut first: front, head = dt.cut(network, at=...)" in first.says
    assert "dovetail cut NAME --at POINT" in first.says


def test_parts_are_called_after_what_they_learnt():
    learnt = build("lenet5", size=8).changed(origin=Origin("train", task="digits"))
    front, head = cut(learnt, at="conv2")
    report = explain_fit(front, head)
    assert report.front == "front of lenet5 at conv2 for digits"
    assert report.head == "back of lenet5 at conv2 for digits"
