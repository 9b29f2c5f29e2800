"""Ranking: the order, the certainty and the refusals, against slow and obvious ways."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import nn

import dovetail as dt
from dovetail.core.errors import CutError, SettingsError, TaskError
from dovetail.parts.contract import Contract, Port
from dovetail.ranking.candidates import sampled
from dovetail.ranking.expected import expected_accuracy
from dovetail.ranking.measuring import dealt
from dovetail.ranking.ranker import rank, rank_over
from dovetail.ranking.scores import score
from dovetail.report.page import write_report
from dovetail.tasks.derive import only_classes
from dovetail.tasks.pairs import Pairs

DIGITS = dt.load_task("digits")


class Columns(nn.Module):
    """The first so many columns of a vector: a part of which everything is known."""

    def __init__(self, width, after=lambda x: x):
        super().__init__()
        self.width, self.after = width, after

    def forward(self, x):
        return self.after(x.flatten(1)[:, : self.width])


def vectors(n=160, classes=4, d=12, seed=0, **options):
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    x = torch.randn(n, d, generator=draw).abs()
    x[:, :classes] += 1.5 * torch.eye(classes)[labels]
    return dt.Task(x, labels, name="vectors", **options)


def nets(*widths):
    return {f"{width} wide": dt.build("mlp", hidden=(width,)) for width in widths}


@pytest.mark.parametrize(
    "by", ["al", "logme", "knn-1", "gbc", "nmse-neo", "ridge-loo", "cts", "expected-accuracy"]
)
def test_order_and_values_are_those_of_the_score(by):
    found = rank(nets(2, 8, 64), DIGITS, at="hidden1", samples=200, by=by)
    small = sampled(DIGITS, 200, "train", seed=0)
    plain = {}
    for name, net in nets(2, 8, 64).items():
        rows = dt.features(dt.cut(net, at="hidden1")[0], small)
        plain[name] = score(rows.values, rows.targets, by=by, activation="relu")
    assert [place.part for place in found] == sorted(plain, key=lambda name: -plain[name])
    for place in found:
        assert place.score == pytest.approx(plain[place.part], rel=1e-9)
        assert place.at == "hidden1"
        assert place.low <= place.score <= place.high


@pytest.mark.parametrize("by", ["al", "utal-neo", "logme", "hscore", "knn-1"])
def test_the_interval_is_the_jackknife_of_refits(by):
    task, groups = vectors(split=(0.9, 0.05, 0.05)), 6
    part = dt.adopt(Columns(12, torch.tanh), example=torch.zeros(2, 12))
    found = rank({"a": part.changed(contract=_after(part, "tanh"))}, task, by=by, groups=groups)
    inputs, labels = task.subset("train")
    group = dealt(labels, groups, seed=0)
    rows = torch.tanh(inputs)
    without = [
        score(rows[group != g], labels[group != g], by=by, activation="tanh") for g in range(groups)
    ]
    mean = sum(without) / groups
    error = math.sqrt((groups - 1) / groups * sum((each - mean) ** 2 for each in without))
    half = stats.t.ppf(0.95, groups - 1) * error
    assert (found.best.high - found.best.low) / 2 == pytest.approx(half, rel=1e-6)


def test_shuffled_labels_give_no_z_and_real_ones_do():
    real = vectors(split=(0.9, 0.05, 0.05))
    order = torch.randperm(160, generator=torch.Generator().manual_seed(1))
    noise = dt.Task(real.inputs, real.targets[order], split=(0.9, 0.05, 0.05))
    part = dt.Part(Columns(12))
    for by in ("logme", "ridge-loo", "centred-al"):
        assert rank(part, real, by=by).best.z > 6
        assert abs(rank(part, noise, by=by).best.z) < 3.5


def test_a_twin_beats_its_twin_half_the_time_and_noise_never():
    task = vectors(split=(0.9, 0.05, 0.05))
    found = rank({"one": Columns(4), "two": Columns(4), "bad": Columns(1)}, task, by="logme")
    assert found.places[0].beats_next == 0.5
    assert found.places[1].beats_next > 0.99
    assert found.places[2].beats_next is None


def test_expected_accuracy_is_that_of_the_rows_and_the_first_is_corrected():
    task = vectors(split=(0.9, 0.05, 0.05))
    inputs, labels = task.subset("train")
    found = rank({f"{w}": Columns(w) for w in (12, 4, 2)}, task, by="ridge-loo")
    for place in found.places[1:]:
        alone = expected_accuracy(inputs[:, : int(place.part)], labels)
        assert (place.expected, place.expected_low) == pytest.approx((alone.value, alone.low))
        assert place.chosen_among is None
    first = expected_accuracy(inputs[:, : int(found.best.part)], labels)
    assert found.best.chosen_among == 3
    assert found.best.expected <= first.value


def test_one_candidate_is_not_corrected():
    assert rank(Columns(4), vectors(), by="ridge-loo").best.chosen_among is None


def test_every_cut_point_of_a_network():
    task = dt.Task(torch.rand(60, 3, 32, 32), [0, 1, 2] * 20)
    net = dt.build("resnet8")
    found = rank(net, task, at="every", by="ridge-loo", permutations=0)
    # The average over positions is what pool and flatten give: they are not ranked again.
    assert {place.at for place in found} == {"stem", "layer1", "layer2", "layer3"}
    assert {place.width for place in found if place.at == "layer3"} == {64}
    assert any("Layer by layer" in getattr(block, "title", "") for block in found.view())
    for place in found:
        alone = rank(net, task, at=place.at, by="ridge-loo", permutations=0)
        assert alone.best.score == pytest.approx(place.score)


def test_checkpoints_and_the_best_over_several_targets():
    low, high = (only_classes(DIGITS, names) for names in ("01234", "56789"))
    keep = dt.train.Snapshots()
    net = dt.build("mlp", classes=5, hidden=(16,))
    fit = dt.train.end_to_end(net, low, epochs=4, callbacks=(keep,))
    parts = keep.parts(fit.part)
    found = rank(parts, high, samples=200, by="ridge-loo")
    assert sorted(place.epoch for place in found) == [1, 2, 3, 4]
    assert any(getattr(block, "title", "") == "Epoch by epoch" for block in found.view())
    over = rank_over(parts, [low, high], samples=200, by="ridge-loo")
    means = [sum(place.values) / 2 for place in over.places]
    assert means == sorted(means, reverse=True)
    assert over.best.behind == min(place.behind for place in over.places) >= 0
    assert over.tasks == (low.name, high.name)
    assert any(getattr(block, "title", "") == "Epoch by epoch" for block in over.view())


def test_regression_and_multilabel():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(200, 6, generator=draw)
    y = x[:, :2] @ torch.tensor([2.0, -1.0]) + 0.1 * torch.randn(200, generator=draw)
    numbers = dt.Task(x, y, kind="regression")

    def last(x):
        return x[:, 5:]

    labels = dt.Task(x, (x[:, :3] > 0).float(), kind="multilabel")
    for task, measure in ((numbers, "R²"), (labels, "label accuracy")):
        for by in ("ridge-loo", "logme", "centred-al", "expected-accuracy"):
            found = rank({"all": Columns(6), "none": Columns(6, last)}, task, by=by)
            assert found.best.part == "all"
            assert found.measure == measure
            assert found.best.expected > 0.7
    with pytest.raises(SettingsError, match=r"'gbc' does not rank for a task of kind 'regression'"):
        rank(Columns(6), numbers, by="gbc")


def test_pairs_alone():
    real = vectors(n=200, split=(0.9, 0.05, 0.05))
    rows = real.indices("train")
    drawn = real.pairs("train", count=400)
    task = dt.Task(
        real.inputs,
        kind="pairs",
        pairs=drawn,
        split={"train": rows, "validation": real.indices("validation"), "test": [199]}
        if 199 not in rows.tolist()
        else (0.9, 0.05, 0.05),
    )
    found = rank({"all": Columns(4), "noise": Columns(12, lambda x: x[:, 4:])}, task, by="al")
    assert found.best.part == "all"
    assert found.best.expected is None
    assert found.best.z > 3
    with pytest.raises(SettingsError, match="'logme' does not rank for a task of kind 'pairs'"):
        rank(Columns(4), task, by="logme")


def test_contradictory_pairs_are_named():
    x = torch.rand(20, 4)
    first, second = torch.tensor([0, 1]), torch.tensor([1, 0])
    pairs = Pairs(first, second, torch.tensor([True, False]))
    task = dt.Task(x, kind="pairs", pairs=pairs, split={"train": range(18), "test": [18, 19]})
    with pytest.raises(TaskError, match="both"):
        rank(Columns(4), task, by="al")


def test_a_score_of_ones_own():
    def spread(features, labels):
        centres = torch.stack([features[labels == c].mean(0) for c in labels.unique()])
        return centres.var(0).sum().item()

    found = rank({"four": Columns(4), "one": Columns(1)}, vectors(), by=spread)
    assert found.by == "spread"
    assert found.best.part == "four"


def test_scores_that_need_a_head_leave_out_parts_without():
    trained = dt.train.end_to_end(dt.build("mlp", hidden=(8,)), DIGITS, epochs=1).part
    front, _ = dt.cut(trained, at="hidden1")
    found = rank({"whole": trained, "front": front}, DIGITS, by="leep", samples=200)
    assert [place.part for place in found] == ["whole"]
    assert "no head of its own" in found.left_out[0].why
    assert found.best.at == "hidden1"


def test_what_cannot_be_ranked_is_listed_with_the_reason():
    _, back = dt.cut(dt.build("lenet5", size=8), at="conv2")
    broken = Columns(4, lambda x: x * float("nan"))
    parts = {"good": Columns(64), "back": back, "nan": broken, "big": dt.build("lenet5")}
    found = rank(parts, DIGITS, samples=100)
    assert [place.part for place in found] == ["good"]
    reasons = {out.part: out.why for out in found.left_out}
    assert "rank the front" in reasons["back"]
    assert "nan" in reasons["nan"]
    assert "1×28×28" in reasons["big"]
    with pytest.raises(TaskError, match="no part can be ranked"):
        rank({"back": back}, DIGITS)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"by": "logmee"}, "did you mean logme"),
        ({"groups": 2}, "at least 3 groups"),
        ({"confidence": 1.0}, "between 0 and 1"),
        ({"permutations": -1}, "not be negative"),
        ({"split": "test"}, "not ranked on the test split"),
        ({"samples": 1}, "at least 2"),
    ],
)
def test_mistakes_are_named(options, words):
    with pytest.raises(SettingsError, match=words):
        rank(Columns(4), vectors(), **options)


def test_few_and_odd_samples():
    two_each = dt.Task(torch.rand(40, 5), torch.arange(40) % 4, split=(0.2, 0.4, 0.4))
    assert two_each.size("train") == 8
    found = rank(Columns(5), two_each)
    assert math.isfinite(found.best.score)
    constant = rank({"constant": Columns(4, torch.ones_like), "good": Columns(4)}, vectors())
    assert constant.best.part == "good"


def test_the_same_seed_gives_the_same_record_but_for_the_time():
    def facts(seed):
        found = rank(nets(4, 16), DIGITS, at="hidden1", samples=150, seed=seed)
        return [(p.name, p.score, p.low, p.z, p.beats_next, p.expected_low) for p in found]

    assert facts(0) == facts(0)
    assert facts(0) != facts(1)


def test_the_record_goes_to_disk_and_into_a_report(tmp_path):
    found = rank(nets(4, 16), DIGITS, at="hidden1", samples=150)
    again = dt.load_record(found.save(tmp_path / "ranking.json"))
    assert again == found
    page = write_report([found], tmp_path / "report.html", title="Ranking")
    assert "16 wide" in page.read_text()


def _after(part, activation):
    return Contract(part.contract.takes, (Port(activation=activation),))


def test_many_classes_have_a_score_though_nothing_can_be_expected():
    labels = torch.arange(40) // 1
    task = dt.Task(torch.rand(80, 6), labels.repeat(2), split=(0.5, 0.0, 0.5))
    found = rank(Columns(6), task, by="logme", permutations=0)
    assert math.isfinite(found.best.score)
    assert found.best.expected is None


def test_a_part_that_was_trained_on_these_examples_is_named():
    net = dt.train.end_to_end(dt.build("mlp", hidden=(8,)), DIGITS, epochs=1).part
    found = rank({"seen": net, "fresh": dt.build("mlp")}, DIGITS, at="hidden1", samples=100)
    assert "Trained on these very examples: seen." in found.notes[0]
    assert rank(net, DIGITS, samples=100, split="validation").notes == ()


def test_a_class_of_one_example_does_not_spoil_the_interval():
    task = vectors(n=120, split=(0.9, 0.05, 0.05))
    rows = task.indices("train")
    targets = task.targets.clone()
    alone = dt.Task(task.inputs, targets, split=(0.9, 0.05, 0.05))
    targets[rows[0]] = 9
    odd = task.derived("odd", targets=targets, classes=tuple("0123456789"))
    for by in ("logme", "knn-1", "gbc"):
        wide = rank(Columns(12), odd, by=by).best
        usual = rank(Columns(12), alone, by=by).best
        assert (wide.high - wide.low) < 3 * (usual.high - usual.low)


def test_pairs_are_sampled_as_pairs():
    real = vectors(n=3000, split=(0.9, 0.05, 0.05))
    pairs = real.pairs("train", count=2000)
    task = dt.Task(real.inputs, kind="pairs", pairs=pairs, split=(0.9, 0.05, 0.05))
    small = sampled(task, 200, "train", seed=0)
    assert 150 < small.size("train") <= 200
    assert len(small.pairs("train")) >= 70
    assert rank(Columns(4), task, samples=200).by == "al"


def test_the_same_network_is_cut_alike_however_it_is_given():
    trained = dt.train.end_to_end(dt.build("lenet5", size=8), DIGITS, epochs=1).part
    found = rank({"trained": trained, "plain": trained.module}, DIGITS, samples=150)
    assert {place.at for place in found} == {"fc2"}
    assert rank(dt.build("lenet5", size=8), DIGITS, samples=150).best.at == "fc2"
    assert rank(dt.cut(trained, at="fc2.linear")[0], DIGITS, samples=150).best.at is None


def test_a_score_of_ones_own_must_be_a_number():
    def picky(features, labels):
        return float("nan") if features.shape[1] == 12 else 1.0

    found = rank({"nan": Columns(12), "good": Columns(4)}, vectors(), by=picky)
    assert [place.part for place in found] == ["good"]
    assert "nan" in found.left_out[0].why
    with pytest.raises(TaskError, match="not a number"):
        rank(Columns(4), vectors(), by=lambda features, labels: None)


def test_features_that_say_nothing_have_no_z_worth_reading():
    task = dt.Task(torch.ones(200, 3), [0, 1] * 100)
    assert rank(Columns(3), task).best.z is None
    draw = torch.Generator().manual_seed(0)
    found = []
    for _ in range(12):
        noise = dt.Task(torch.randn(200, 5, generator=draw), [0, 1] * 100)
        found.append(rank(Columns(5), noise).best.z or 0.0)
    assert max(map(abs, found)) < 4


def test_small_slips():
    point = dt.cut_points(dt.build("lenet5", size=8))[-1]
    assert rank(dt.build("lenet5", size=8), DIGITS, at=point, samples=100).best.at == "fc2"
    squeezed = Columns(1, lambda x: x[:, 0])
    assert rank({"one": squeezed, "all": Columns(4)}, vectors()).best.part == "all"
    with pytest.raises(SettingsError, match="must be a Task"):
        rank(Columns(4), "digits")
    with pytest.raises(TaskError, match="no place to cut"):
        rank(nn.Flatten(), vectors(), at="every")
    numbers = dt.Task(torch.rand(40, 12), torch.rand(40), kind="regression")
    with pytest.raises(SettingsError, match="no measure in common"):
        rank_over(Columns(4), [vectors(), numbers])


def test_the_choice_never_moves_the_first_place_up():
    for seed in range(6):
        found = rank({f"{w}": Columns(w) for w in (4, 5, 6)}, vectors(seed=seed), seed=seed)
        if found.best.before_choice is not None:
            assert found.best.expected <= found.best.before_choice


def test_rows_of_the_table_are_numbers_of_one_sort():
    """The first is corrected for its choice in the summary, where it says so, not in the table."""
    task = vectors(split=(0.9, 0.05, 0.05))
    found = rank({f"{w}": Columns(w) for w in (4, 5, 6, 7)}, task)
    table = next(block for block in found.view() if hasattr(block, "columns"))
    assert table.columns[:2] == ("part", "expected accuracy")
    assert "expected-accuracy" not in table.columns
    shown = [float(row[1].split(" ")[0]) for row in table.rows]
    assert shown == sorted(shown, reverse=True)
    assert shown[0] == pytest.approx(100 * found.best.before_choice, abs=0.06)
    assert f"worth {found.best.expected:.1%}" in table.caption
    assert f"{found.best.expected:.1%}" in found.summary
    assert f"{found.best.before_choice:.1%} was seen" in found.summary


def test_a_score_s_name_may_be_in_capitals_and_is_one():
    assert rank(Columns(4), vectors(), by="AL").by == "al"
    with pytest.raises(SettingsError, match="not a list; rank once for each"):
        rank(Columns(4), vectors(), by=["al", "logme"])


def test_a_wrong_cut_point_is_told_before_anything_runs():
    class Never(nn.Module):
        def forward(self, x):
            raise AssertionError("it ran")

    net = dt.build("lenet5", size=8)
    parts = {"never": nn.Sequential(Never(), nn.Linear(4, 2)), "net": net}
    for anytime in (False, True):
        with pytest.raises(CutError, match="no part has a cut point 'fc9'; did you mean fc2"):
            rank(parts, DIGITS, at=["fc1", "fc9"], anytime=anytime)
    some = rank({"net": net, "small": dt.build("mlp")}, DIGITS, at="fc1", samples=100)
    assert [place.name for place in some] == ["net at fc1"]
    assert [out.part for out in some.left_out] == ["small"]


def test_kernels_of_several_ranges_are_held_against_one():
    """After a tanh a kernel may be -1, after a ReLU not: against its own each has another score."""
    task = vectors(split=(0.9, 0.05, 0.05))
    inputs, labels = task.subset("train")

    def part(width, activation):
        module = Columns(width, getattr(torch, activation))
        made = dt.adopt(module, example=torch.zeros(2, 12))
        return made.changed(contract=_after(made, activation))

    signed = {f"tanh {w}": part(w, "tanh") for w in (4, 12)}
    plain = {f"relu {w}": part(w, "relu") for w in (4, 12)}
    for by in ("al", "utal", "nmse"):
        mixed = {place.part: place.score for place in rank(signed | plain, task, by=by)}
        for name, value in mixed.items():
            rows = getattr(torch, name.split()[0])(inputs[:, : int(name.split()[1])])
            assert value == pytest.approx(score(rows, labels, by=by, activation="relu"))
        alone = rank(signed, task, by=by)
        assert alone.notes == ()
        for place in alone:
            rows = torch.tanh(inputs[:, : int(place.part.split()[1])])
            own = score(rows, labels, by=by, activation="tanh")
            assert place.score == pytest.approx(own)
    assert "zeros and ones" in rank(signed | plain, task, by="al").notes[0]
