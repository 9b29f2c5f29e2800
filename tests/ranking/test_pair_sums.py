"""Scores of labelled pairs equal a visit to each pair."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references.pair_scores import pair_score

from dovetail.core.errors import FormatError, SettingsError, TaskError
from dovetail.objectives.pairwise import KINDS as PAIR_KINDS
from dovetail.ranking.pair_sums import PairSums
from dovetail.ranking.statistics import PairStatistics


def kinds_of(activation):
    return [k for k in PAIR_KINDS if activation == "tanh" or k not in ("al-neo", "utal-neo")]


def data(seed, count=20, pairs=60, activation="tanh"):
    """Pairs that are not transitive, some given twice, and a row of zeros."""
    draw = np.random.default_rng(seed)
    features = draw.normal(size=(count, 5))
    features = np.tanh(features) if activation == "tanh" else np.maximum(features, 0)
    features[3] = 0
    first = draw.integers(0, count, pairs)
    second = (first + draw.integers(1, count, pairs)) % count
    same = (first * second) % 3 == 0
    same[:2], first[:2], second[:2] = [True, False], [0, 0], [1, 2]
    known = (first[2:] + second[2:] > 2) | (first[2:] * second[2:] > 0)
    keep = np.concatenate([[True, True], known])
    return features, first[keep], second[keep], same[keep]


def scores(sums, kinds):
    return {kind: sums.score(kind) for kind in kinds}


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("seed", range(3))
def test_every_score_equals_a_visit_to_each_pair(activation, seed):
    features, *pairs = data(seed, activation=activation)
    sums = PairSums(activation).update(features, *pairs)
    for kind in kinds_of(activation):
        wanted = pair_score(kind, features, list(zip(*pairs, strict=True)), activation)
        assert math.isclose(sums.score(kind), wanted, rel_tol=1e-12, abs_tol=1e-14), kind


def test_all_pairs_of_labelled_rows_equal_the_sums_over_classes():
    draw = np.random.default_rng(0)
    features, labels = draw.normal(size=(40, 6)), draw.integers(0, 3, 40)
    first, second = np.triu_indices(40, 1)
    sums = PairSums("tanh").update(features, first, second, labels[first] == labels[second])
    whole = PairStatistics("tanh").update(features, labels)
    for kind in ("al", "utal", "nmse", "al-neo", "utal-neo", "nmse-neo"):
        assert math.isclose(sums.score(kind), whole.score(kind), rel_tol=1e-12), kind


@given(st.integers(0, 1000), st.integers(1, 4))
@settings(max_examples=15, deadline=None)
def test_pieces_merge_and_can_be_taken_away(seed, pieces):
    kinds = kinds_of("tanh")
    merged, whole = PairSums("tanh"), []
    for piece in range(pieces):
        features, *pairs = data(seed + piece)
        merged.merge(PairSums("tanh").update(features, *pairs))
        offset = 20 * piece
        whole.append((features, pairs[0] + offset, pairs[1] + offset, pairs[2]))
    one = PairSums("tanh").update(*(np.concatenate(column) for column in zip(*whole, strict=True)))
    assert scores(merged, kinds) == pytest.approx(scores(one, kinds), rel=1e-12)
    other = PairSums("tanh").update(*data(seed + 99))
    merged.merge(other).subtract(other)
    assert scores(merged, kinds) == pytest.approx(scores(one, kinds), rel=1e-10)


@pytest.mark.parametrize(
    ("first", "second", "same", "says"),
    [
        ([0, 1], [1, 0], [True, False], "rows 0 and 1 are given both as alike and as different"),
        ([0], [0], [True], "pair 0 joins row 0 with itself"),
        ([0], [9], [True], "names row 9, but there are 4"),
        ([-1], [1], [True], "names row -1"),
        ([0, 1], [1], [True], "one length"),
        ([0.0], [1.0], [True], "must be integers"),
        ([0], [1], [2], "booleans"),
    ],
)
def test_pairs_that_cannot_be(first, second, same, says):
    sums = PairSums()
    with pytest.raises(TaskError, match=says):
        sums.update(torch.eye(4), first, second, same)
    assert sums.n == 0


def test_what_is_undefined_says_so():
    different = PairSums("relu").update(torch.eye(3), [0], [1], [False])
    for kind in ("utal", "cts"):
        with pytest.raises(TaskError, match="known to be alike"):
            different.score(kind)
    alike = PairSums("relu").update(torch.eye(3), [0], [1], [True])
    for kind in ("cts", "cts-neo", "nmse-neo"):
        with pytest.raises(TaskError, match="known to differ"):
            alike.score(kind)
    with pytest.raises(SettingsError, match="nothing aligns with zero"):
        different.score("al-neo")
    with pytest.raises(SettingsError, match="logme"):
        different.score("logme")
    with pytest.raises(TaskError, match="no rows"):
        PairSums().score("al")
    with pytest.raises(TaskError, match="no pairs"):
        PairSums("tanh").update(torch.eye(2), [], [], []).score("utal")
    with pytest.raises(TaskError, match="row 1 of the features holds nan"):
        PairSums().update([[1.0], [math.nan]], [0], [1], [True])
    assert PairSums("tanh").update(torch.zeros(2, 2), [0], [1], [False]).score("al") == 0.0


def test_more_cannot_be_taken_than_was_added():
    one = PairSums().update(torch.eye(3), [0], [1], [False])
    with pytest.raises(TaskError, match="cannot take"):
        one.subtract(PairSums().update(torch.eye(3), [0], [1], [True]))
    with pytest.raises(SettingsError, match="'tanh'"):
        one.merge(PairSums("tanh"))
    assert one.pairs == (0, 1)


def test_a_state_comes_back_as_it_was():
    sums = PairSums("tanh").update(*data(4))
    back = PairSums.from_state(sums.state())
    assert scores(back, kinds_of("tanh")) == scores(sums, kinds_of("tanh"))
    for name in sums.state():
        with pytest.raises(FormatError):
            PairSums.from_state({k: v for k, v in sums.state().items() if k != name})
