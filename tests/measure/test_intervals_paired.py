from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references.paired import coverage, not_rejected

from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.plain import from_plain, to_plain
from dovetail.measure.intervals import PairedDifference, paired_difference, score_interval


def verdicts(*rows):
    return tuple(torch.tensor(row, dtype=torch.bool) for row in rows)


@pytest.mark.parametrize(
    ("gained", "lost", "n"), [(5, 1, 20), (0, 3, 12), (0, 0, 10), (4, 4, 9), (7, 0, 7)]
)
def test_the_interval_is_what_the_score_test_lets_stand(gained, lost, n):
    low, high = score_interval(gained, lost, n)
    slow_low, slow_high = not_rejected(gained, lost, n)
    assert low == pytest.approx(slow_low, abs=2.5e-3)
    assert high == pytest.approx(slow_high, abs=2.5e-3)


def test_a_small_lopsided_example_stays_as_it_is():
    low, high = score_interval(1, 7, 21)
    assert (round(low, 3), round(high, 3)) == (-0.517, -0.026)


@pytest.mark.parametrize("n", [20, 60])
def test_it_holds_its_level(n):
    fast = cache(score_interval)
    rates = [(0.02, 0.02), (0.05, 0.1), (0.2, 0.02), (0.3, 0.3), (0.1, 0.4)]
    held = [coverage(fast, n, gain, loss) for gain, loss in rates]
    assert min(held) > 0.935
    assert 0.945 < sum(held) / len(held) < 0.985


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_it_is_an_interval_around_the_difference(data):
    n = data.draw(st.integers(1, 400))
    gained = data.draw(st.integers(0, n))
    lost = data.draw(st.integers(0, n - gained))
    low, high = score_interval(gained, lost, n)
    assert -1 <= low <= (gained - lost) / n <= high <= 1
    assert high > low
    assert score_interval(lost, gained, n) == (-high, -low)
    narrow = score_interval(gained, lost, n, confidence=0.5)
    assert low <= narrow[0] <= narrow[1] <= high


def test_more_examples_narrow_it_and_the_same_answers_do_not_make_it_a_point():
    widths = [high - low for low, high in (score_interval(0, 0, n) for n in (10, 100, 1000))]
    assert widths[0] > widths[1] > widths[2] > 0


def test_counts_of_two_verdicts():
    before, after = verdicts([1, 1, 0, 0, 1], [1, 0, 1, 1, 1])
    found = paired_difference(before, after)
    assert (found.n, found.both, found.gained, found.lost) == (5, 2, 2, 1)
    assert (found.before, found.after) == (0.6, 0.8)
    assert found.difference == pytest.approx(found.after - found.before)
    assert (found.low, found.high) == score_interval(2, 1, 5)


def test_being_sure():
    n = 200
    worse, better = torch.zeros(n, dtype=torch.bool), torch.ones(n, dtype=torch.bool)
    assert paired_difference(worse, better).sure
    assert paired_difference(better, worse).sure
    assert not paired_difference(better, better).sure


def test_it_is_narrower_than_two_intervals_of_their_own():
    before = torch.arange(400) % 2 == 0
    after = before.clone()
    after[1:8:2] = True
    found = paired_difference(before, after)
    assert found.sure
    assert found.high - found.low < 2 * 1.96 * (0.25 / 400) ** 0.5


def test_to_json_and_back():
    found = paired_difference(*verdicts([1, 0], [1, 1]))
    assert from_plain(PairedDifference, to_plain(found)) == found


def test_one_example():
    found = paired_difference(*verdicts([0], [1]))
    assert found.difference == 1.0
    assert not found.sure


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (torch.ones(3), torch.ones(3).bool(), "booleans"),
        (torch.ones(3, 1).bool(), torch.ones(3, 1).bool(), "booleans"),
        (torch.ones(3).bool(), torch.ones(2).bool(), "the same examples"),
        (torch.ones(0).bool(), torch.ones(0).bool(), "at least one"),
    ],
)
def test_what_cannot_be_compared(before, after, said):
    with pytest.raises(TaskError, match=said):
        paired_difference(before, after)


@pytest.mark.parametrize("counts", [(-1, 0, 5), (3, 3, 5), (0, 0, 0)])
def test_counts_that_cannot_be(counts):
    with pytest.raises(TaskError, match="cannot be"):
        score_interval(*counts)


@pytest.mark.parametrize("confidence", [0.0, 1.0, float("nan")])
def test_confidences_that_cannot_be(confidence):
    with pytest.raises(SettingsError, match="confidence"):
        score_interval(1, 2, 9, confidence=confidence)
