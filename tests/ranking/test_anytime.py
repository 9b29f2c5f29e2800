"""Ranking on a growing sample: the same numbers for fewer passes, and it says what it did."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import nn

import dovetail as dt
from dovetail.core.errors import SettingsError, TaskError
from dovetail.ranking.candidates import nested, sampled
from dovetail.ranking.ranker import rank, rank_over
from dovetail.tasks.derive import only_classes

DIGITS = dt.load_task("digits")


class Counting(nn.Module):
    """So many pixels of the image, each seen through noise; counts what it is shown."""

    def __init__(self, width, noise=0.0):
        super().__init__()
        self.width, self.noise, self.rows = width, noise, 0

    def forward(self, x):
        self.rows += len(x)
        seen = x.flatten(1)
        # Noise of the example itself, not of when it is seen.
        own = torch.sin(1e4 * (seen.sum(1, keepdim=True) + torch.arange(self.width)))
        return seen[:, 64 - self.width :] + self.noise * own


def shelf():
    return {
        "all": Counting(64),
        "most": Counting(62),
        "half": Counting(32),
        "few": Counting(6),
        "one": Counting(1),
        "noise": Counting(64, 3.0),
    }


@pytest.fixture(scope="module")
def both():
    parts = shelf()
    grown = rank(parts, DIGITS, samples=800, anytime=True)
    shown = {name: part.rows for name, part in parts.items()}
    return grown, rank(shelf(), DIGITS, samples=800), shown


def test_those_left_have_the_numbers_of_the_full_ranking(both):
    grown, full, _ = both
    whole = {place.name: place for place in full}
    assert {place.part for place in grown.survivors} >= {"all", "most"}
    for place in grown.survivors:
        assert place.score == pytest.approx(whole[place.name].score, abs=1e-9)
        assert (place.low, place.z) == pytest.approx((whole[place.name].low, whole[place.name].z))
    assert grown.best.name == full.best.name
    assert grown.n == full.n == 800


def test_a_network_runs_what_it_is_said_to_have_seen_and_no_more(both):
    grown, _, shown = both
    assert shown == {place.part: place.seen or 800 for place in grown}
    assert grown.course.passes == sum(shown.values())
    assert grown.course.passes_in_full == 6 * 800
    assert grown.course.saved == 1 - sum(shown.values()) / 4800 > 0.4
    assert [look.n for look in grown.course.looks] == [50, 100, 200, 400, 800]
    assert grown.course.looks[-1].passes == grown.course.passes
    assert sum(look.fell for look in grown.course.looks) == 6 - grown.course.survivors


def test_the_fallen_come_after_those_left_and_say_why(both):
    grown, _, _ = both
    seen = [place.seen or 800 for place in grown]
    assert seen == sorted(seen, reverse=True)
    one = next(place for place in grown if place.part == "one")
    assert one.seen <= 200
    assert one.fell.startswith(f"fell out at {one.seen} examples")
    assert "behind" in one.fell
    at_its_look = rank({"one": Counting(1)}, DIGITS, samples=one.seen)
    assert one.score == pytest.approx(at_its_look.best.score, abs=1e-9)


def test_it_is_repeatable_and_goes_to_disk(both, tmp_path):
    grown, _, _ = both
    again = rank(shelf(), DIGITS, samples=800, anytime=True)
    facts = [(p.name, p.score, p.low, p.expected, p.expected_low, p.seen, p.fell) for p in grown]
    assert facts == [
        (p.name, p.score, p.low, p.expected, p.expected_low, p.seen, p.fell) for p in again
    ]
    assert dt.load_record(grown.save(tmp_path / "grown.json")) == grown
    assert 0 < grown.course.least_seconds <= grown.course.most_seconds


def test_points_of_one_network_share_a_pass_and_it_runs_while_one_is_left():
    parts = {"net": dt.build("lenet5", size=8), "tiny": dt.build("mlp", hidden=(2,))}
    rows = []
    parts["net"].module.get_submodule("conv1").register_forward_hook(
        lambda module, inputs, output: rows.append(len(output))
    )
    found = rank(parts, DIGITS, samples=400, at="every", anytime=True, permutations=0)
    of_net = [place for place in found if place.part == "net"]
    assert len(of_net) >= 4
    assert any(place.seen for place in of_net)
    passes = {
        name: max(place.seen or 400 for place in found if place.part == name) for name in parts
    }
    assert found.course.passes == sum(passes.values())
    # Shapes at cut points are found with a batch of two; all else is examples.
    assert sum(n for n in rows if n > 2) == passes["net"]


def test_parts_that_are_read_when_asked_for_are_not_held():
    class Read(Mapping):
        read = 0

        def __getitem__(self, name):
            Read.read += 1
            return shelf()[name]

        def __iter__(self):
            return iter(["all", "half", "one"])

        def __len__(self):
            return 3

    lazy = rank(Read(), DIGITS, samples=400, anytime=True)
    held = rank({name: shelf()[name] for name in Read()}, DIGITS, samples=400, anytime=True)
    assert [(p.name, p.score, p.seen) for p in lazy] == [(p.name, p.score, p.seen) for p in held]
    assert Read.read > 3


def test_rows_that_are_kept_on_disk_are_found_again(tmp_path):
    nets = {f"{w}": dt.build("mlp", hidden=(w,)) for w in (2, 32)}
    options = {"samples": 300, "at": "hidden1", "anytime": True, "cache": tmp_path}
    first = rank(nets, DIGITS, **options)
    files = sorted(tmp_path.iterdir())
    assert files
    assert [p.score for p in rank(nets, DIGITS, **options)] == [p.score for p in first]
    assert sorted(tmp_path.iterdir()) == files


def test_numbers_and_several_labels():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(800, 64, generator=draw)
    y = x[:, 60:] @ torch.tensor([1.0, 2.0, -1.0, 0.5]) + 0.1 * torch.randn(800, generator=draw)
    for task in (
        dt.Task(x, y, kind="regression"),
        dt.Task(x, (x[:, 60:] > 0).float(), kind="multilabel"),
    ):
        found = rank({"all": Counting(8), "one": Counting(1)}, task, anytime=True)
        assert found.best.part == "all"
        assert found.places[1].seen is not None


def test_a_few_examples_are_ranked_at_once():
    small = rank(shelf(), DIGITS, samples=60, anytime=True)
    assert [look.n for look in small.course.looks] == [60]
    assert all(place.seen is None for place in small)


def test_when_the_time_is_up_it_says_what_is_known():
    at_once = rank(shelf(), DIGITS, samples=400, anytime=True, seconds=1e-6)
    assert at_once.course.stopped
    assert len(at_once) == 1
    assert {out.part for out in at_once.left_out} == set(shelf()) - {at_once.best.part}
    assert "not reached within" in at_once.left_out[0].why
    assert "Stopped after" in at_once.notes[0]
    patient = rank(shelf(), DIGITS, samples=400, anytime=True, seconds=1e6)
    assert not patient.course.stopped
    assert patient.notes == ()
    assert [p.score for p in patient] == [
        p.score for p in rank(shelf(), DIGITS, samples=400, anytime=True)
    ]


def test_stopped_between_looks_all_are_compared_at_the_same_number(monkeypatch):
    from dovetail.ranking import anytime

    ticks = iter(range(10**9))
    monkeypatch.setattr(anytime.time, "perf_counter", lambda: float(next(ticks)))
    found = rank(shelf(), DIGITS, samples=800, anytime=True, seconds=130.0)
    assert found.course.stopped
    assert found.n == found.course.looks[-1].n < 800
    assert found.survivors
    assert f"{found.n} of 800 examples" in found.notes[0]
    alone = rank({found.best.part: shelf()[found.best.part]}, DIGITS, samples=found.n)
    assert found.best.score == pytest.approx(alone.best.score, abs=1e-9)


def test_what_cannot_run_is_left_out_after_a_few_examples():
    parts = {"big": dt.build("lenet5"), **shelf()}
    found = rank(parts, DIGITS, samples=200, anytime=True)
    assert [out.part for out in found.left_out] == ["big"]
    assert found.course.passes_in_full == 6 * 200
    with pytest.raises(TaskError, match="no part can be ranked"):
        rank({"big": dt.build("lenet5")}, DIGITS, samples=200, anytime=True)


def test_what_it_refuses():
    with pytest.raises(SettingsError, match="only expected-accuracy allows"):
        rank(shelf(), DIGITS, by="logme", anytime=True)
    with pytest.raises(SettingsError, match="seconds= is for anytime=True"):
        rank(shelf(), DIGITS, seconds=3.0)
    with pytest.raises(SettingsError, match="seconds must be above 0"):
        rank(shelf(), DIGITS, anytime=True, seconds=0.0)
    with pytest.raises(SettingsError, match="rank without anytime=True, or task by task"):
        rank_over(shelf(), [DIGITS, DIGITS], anytime=True)
    pairs = only_classes(DIGITS, "01")
    known = dt.Task(
        pairs.inputs, kind="pairs", pairs=pairs.pairs("train", count=50), split=(0.9, 0.05, 0.05)
    )
    with pytest.raises(SettingsError, match="knows pairs only"):
        rank(shelf(), known, anytime=True)


def test_samples_are_nested_and_keep_the_shares_of_the_classes():
    order = nested(DIGITS, 500, "train", seed=3)
    for n in (50, 200, 500):
        small = sampled(DIGITS, n, "train", seed=3)
        assert torch.equal(order[:n].sort().values, small.indices("train"))
    counts = DIGITS.targets[order[:100]].bincount()
    assert counts.min() >= 8
    assert counts.max() <= 12


def test_it_says_what_it_did(both):
    grown, _, _ = both
    words = grown.course.summary
    assert f"{grown.course.passes:,} passes instead of 4,800" in words
    assert words in grown.summary
    tables = [block for block in grown.view() if hasattr(block, "columns")]
    assert "examples" in tables[0].columns
    fell = next(table for table in tables if table.columns == ("candidate", "fell out"))
    assert len(fell.rows) == 6 - grown.course.survivors
    assert all(why.startswith("at ") for _, why in fell.rows)
