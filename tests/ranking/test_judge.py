"""Judging scores: worked by hand, and against correlations read aloud."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.records import load_record
from dovetail.core.views import Figure, Heatmap, Table
from dovetail.ranking.judge import judge, kendall, regret, weighted_tau, wins

few = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=9)


# One target -------------------------------------------------------------------------------------


def pair_by_pair(a, b, weights):
    """A rank correlation whose pair i, j weighs ``weights[i] + weights[j]``."""
    both = own = other = 0.0
    for i, j in itertools.combinations(range(len(a)), 2):
        x, y, weight = np.sign(a[i] - a[j]), np.sign(b[i] - b[j]), weights[i] + weights[j]
        both, own, other = both + weight * x * y, own + weight * x * x, other + weight * y * y
    return both / math.sqrt(own * other) if own * other else math.nan


def hyperbolic(first, second):
    """1 for the greatest by the first (of equals, by the second), 1/2 for the next, and so on."""
    order = sorted(range(len(first)), key=lambda i: (first[i], second[i], i), reverse=True)
    return [1 / (1 + order.index(i)) for i in range(len(first))]


@given(few)
@settings(deadline=None, max_examples=60)
def test_correlations_are_sums_over_pairs(pairs):
    a, b = np.array(pairs, dtype=float).T
    ways = [pair_by_pair(a, b, hyperbolic(a, b)), pair_by_pair(a, b, hyperbolic(b, a))]
    assert weighted_tau(a, b) == pytest.approx(np.mean(ways), nan_ok=True)
    assert kendall(a, b) == pytest.approx(pair_by_pair(a, b, [1] * len(a)), nan_ok=True)


@given(few, st.integers(1, 4))
@settings(deadline=None, max_examples=60)
def test_regret_is_the_mean_over_every_way_to_break_ties(pairs, first):
    a, b = np.array(pairs, dtype=float).T
    first = min(first, len(a))
    lost = [
        b.max() - max(b[list(chosen)])
        for chosen in itertools.combinations(range(len(a)), first)
        # A choice is one the score allows when nothing outside scores above anything inside.
        if max([a[i] for i in range(len(a)) if i not in chosen], default=-1) <= min(a[list(chosen)])
    ]
    assert regret(a, b, first) == pytest.approx(np.mean(lost))


def test_wins_by_hand():
    scores, truths = [4, 3, 2, 1], [0.9, 0.5, 0.8, 0.79]
    # 6 pairs: the best beats three; 0.5 loses to two wrongly; 0.8 beats 0.79.
    assert wins(scores, truths) == pytest.approx(4 / 6)
    assert wins(scores, truths, noise=0.05) == pytest.approx(3 / 5)
    assert wins([1, 1], [0.1, 0.2]) == 0.5
    assert math.isnan(wins([1, 2], [0.1, 0.2], noise=1.0))


def test_infinite_scores_have_an_order():
    assert kendall([-np.inf, 0.0, np.inf], [1, 2, 3]) == 1
    assert weighted_tau([np.inf, np.inf, 0.0], [3, 2, 1]) > 0.5
    assert regret([-np.inf, -np.inf, 0.0], [3, 2, 1]) == 2


# Several targets ----------------------------------------------------------------------------------

TRUTHS = {
    "ants": {"p": 0.9, "q": 0.8, "r": 0.6},
    "bees": {"p": 0.5, "q": 0.7, "r": 0.6},
    "cats": {"p": 0.3, "q": 0.2, "r": 0.9},
}
RIGHT = {target: dict(parts) for target, parts in TRUTHS.items()}
ALWAYS_P = {target: {"p": 3.0, "q": 2.0, "r": 1.0} for target in TRUTHS}
BUT_CATS = {**RIGHT, "cats": {"p": 2.0, "q": 3.0, "r": 1.0}}


def test_means_over_targets_by_hand():
    found = judge({"right": RIGHT, "always": ALWAYS_P}, TRUTHS)
    assert [judged.score for judged in found.scores] == ["right", "always"]
    assert found.best.regret_1.value == 0
    assert found.best.weighted_tau.value == pytest.approx(1)
    always = found["always"]
    assert [round(on.regret_1, 6) for on in always.on] == [0, 0.2, 0.6]
    assert always.regret_1.value == pytest.approx(0.8 / 3)
    assert always.regret_3.value == 0
    # Orders of ants: 3 pairs right; bees (q r p) against p q r: 1; cats (r p q) against p q r: 1.
    assert always.tau.value == pytest.approx(np.mean([1, -1 / 3, -1 / 3]))
    assert always.wins.value == pytest.approx(np.mean([1, 1 / 3, 1 / 3]))
    assert always.regret_1.low <= always.regret_1.value <= always.regret_1.high
    assert always.regret_1.low == pytest.approx(0.2 / 3, abs=0.07)
    assert always.regret_1.high == pytest.approx(1.4 / 3, abs=0.07)
    assert found.parts == {"ants": 3, "bees": 3, "cats": 3}


def test_a_score_is_chosen_by_the_other_targets():
    found = judge({"but cats": BUT_CATS, "always": ALWAYS_P}, TRUTHS)
    chosen = {
        choice.target: (choice.score, choice.regret_1) for choice in found.chosen_leave_one_out
    }
    # Without cats, "but cats" is perfect: cats pays for it (q first, 0.2 instead of 0.9).
    assert chosen["cats"][0] == "but cats"
    assert chosen["cats"][1] == pytest.approx(0.7)
    # Without ants: regrets (0, 0.7) against (0.2, 0.6): still "but cats", which is right on ants.
    assert chosen["ants"] == ("but cats", 0.0)
    # Without bees: (0, 0.7) against (0, 0.6): "always", which loses 0.2 on bees.
    assert chosen["bees"][0] == "always"
    assert chosen["bees"][1] == pytest.approx(0.2)
    assert found.chosen_regret == pytest.approx(0.9 / 3)


def test_parts_without_a_value_are_left_out_and_counted():
    scores = {
        "partial": {
            "ants": {"q": 1.0, "r": 2.0, "p": None},
            "bees": {"p": 1.0, "q": float("nan"), "r": 2.0, "unknown": 9.0},
            "cats": {"p": 1.0},
        },
        "nothing": {"ants": {"p": 1.0}},
    }
    found = judge(scores, TRUTHS)
    assert [judged.score for judged in found.scores] == ["partial"]
    partial = found["partial"]
    assert [(on.target, on.parts) for on in partial.on] == [("ants", 2), ("bees", 2)]
    assert partial.parts == 2
    assert [round(on.regret_1, 6) for on in partial.on] == [0.3, 0.1]
    assert {choice.target for choice in found.chosen_leave_one_out} == {"ants", "bees"}


def test_truths_that_are_missing_are_left_out():
    truths = {"ants": {"p": 0.9, "q": None, "r": 0.6, "s": float("nan")}}
    found = judge({"right": RIGHT}, truths)
    assert found.parts == {"ants": 2}
    assert found["right"].on[0].parts == 2


def test_one_target_has_no_interval():
    found = judge({"right": RIGHT}, {"ants": TRUTHS["ants"]})
    assert found["right"].weighted_tau.low is None
    assert found.chosen_leave_one_out == ()
    assert found.chosen_regret is None
    assert "1 targets" in found.summary


def test_ceiling_is_the_agreement_of_halves():
    halves = {t: (parts, parts) for t, parts in TRUTHS.items()}
    assert judge({"right": RIGHT}, TRUTHS, ceiling=halves).ceiling.value == pytest.approx(1)
    halves["cats"] = (TRUTHS["cats"], {part: -v for part, v in TRUTHS["cats"].items()})
    ceiling = judge({"right": RIGHT}, TRUTHS, ceiling=halves).ceiling
    assert ceiling.value == pytest.approx(1 / 3)
    assert ceiling.low < ceiling.value < ceiling.high
    assert judge({"right": RIGHT}, TRUTHS).ceiling is None


def test_noise_may_differ_between_targets():
    noise = {"ants": 0.15, "bees": 0.0, "cats": 10.0}
    found = judge({"always": ALWAYS_P}, TRUTHS, noise=noise)["always"]
    assert [on.wins for on in found.on] == [pytest.approx(1), pytest.approx(1 / 3), None]
    assert found.wins.value == pytest.approx(2 / 3)


def test_intervals_hold_the_true_mean():
    """Targets drawn from a world where the mean regret is known."""
    rng, held = np.random.default_rng(0), []
    for _ in range(40):
        truths = {f"t{i}": dict(zip("pqrs", rng.random(4), strict=True)) for i in range(15)}
        scores = {t: {p: float(rng.random()) for p in parts} for t, parts in truths.items()}
        found = judge({"dice": scores}, truths, resamples=300)["dice"].regret_1
        held.append(found.low <= 0.8 - 0.5 <= found.high)  # E max of four, minus a random one
    assert 0.75 <= np.mean(held) <= 1


def test_resampling_parts_widens():
    rng = np.random.default_rng(0)
    truths = {t: {str(p): float(rng.random()) for p in range(12)} for t in "abcd"}
    scores = {
        t: {p: v + 0.4 * rng.random() for p, v in parts.items()} for t, parts in truths.items()
    }
    plain = judge({"s": scores}, truths, resamples=200)["s"].weighted_tau
    both = judge({"s": scores}, truths, resamples=200, resample_parts=True)["s"].weighted_tau
    assert both.value == plain.value
    assert both.high - both.low > plain.high - plain.low


def test_seeds_repeat():
    assert judge({"a": ALWAYS_P}, TRUTHS, seed=1) == judge({"a": ALWAYS_P}, TRUTHS, seed=1)


def test_record_and_view(tmp_path):
    halves = {t: (parts, parts) for t, parts in TRUTHS.items()}
    found = judge(
        {"right": RIGHT, "always": ALWAYS_P}, TRUTHS, truth="test accuracy", ceiling=halves
    )
    assert load_record(found.save(tmp_path / "judgement.json")) == found
    blocks = found.view()
    table = next(block for block in blocks if isinstance(block, Table))
    assert [row[0] for row in table.rows] == ["right", "always"]
    bars = next(block for block in blocks if isinstance(block, Figure))
    assert bars.series[0].low[1] <= bars.series[0].y[1] <= bars.series[0].high[1]
    heat = next(block for block in blocks if isinstance(block, Heatmap))
    assert heat.columns == ("ants", "bees", "cats")
    assert heat.values[0] == pytest.approx((1, 1, 1))
    assert "test accuracy" in found.title
    assert "weighted tau 1.000" in found.summary


@pytest.mark.parametrize(
    ("scores", "truths", "options", "error"),
    [
        ({}, TRUTHS, {}, TaskError),
        ({"a": RIGHT}, {}, {}, TaskError),
        ({"a": {"elsewhere": {"p": 1.0, "q": 2.0}}}, TRUTHS, {}, TaskError),
        ({"a": RIGHT}, TRUTHS, {"confidence": 1.5}, SettingsError),
        ({"a": RIGHT}, TRUTHS, {"resamples": 1}, SettingsError),
        ({"a": RIGHT}, TRUTHS, {"noise": {"ants": 0.1}}, SettingsError),
    ],
)
def test_what_cannot_be_judged(scores, truths, options, error):
    with pytest.raises(error):
        judge(scores, truths, **options)


def test_a_score_is_not_rewarded_for_parts_it_cannot_see():
    truths = {"t": {"a": 0.9, "b": 0.5, "c": 0.4}, "u": {"a": 0.8, "b": 0.5, "c": 0.4}}
    blind = {target: {"b": 2.0, "c": 1.0} for target in truths}
    whole = {target: {"a": 1.0, "b": 2.0, "c": 0.0} for target in truths}
    good = {target: {"a": 3.0, "b": 2.0, "c": 1.0} for target in truths}
    found = judge({"blind": blind, "whole": whole, "good": good}, truths)
    assert found["blind"].regret_1.value == pytest.approx(0.35)
    assert found["whole"].regret_1.value == pytest.approx(0.35)
    assert found.scores[0].score == "good"
