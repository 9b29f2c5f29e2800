"""Scores that no sums give: against loops, the vectors, and what must not matter."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references import scores as slow

import dovetail.ranking.cts as cts_module
from dovetail.core.errors import SettingsError, TaskError
from dovetail.ranking.cts import cts, cts_neo
from dovetail.ranking.distances import knn, parc
from dovetail.ranking.heads import ridge_loo
from dovetail.ranking.leep import leep, nce, nleep, principal
from dovetail.ranking.transrate import coding_rate, transrate, transrate_scaled

VECTORS = json.loads((Path(slow.__file__).parent / "ranking_vectors.json").read_text())
F, Y, PROBS = (VECTORS["inputs"][name] for name in ("F", "y", "source_probs"))
EXPECTED = VECTORS["expected"]

OF_FEATURES = {
    "transrate": (transrate, lambda x, y: slow.transrate_by_hand(x, y, scaled=False)),
    "transrate-scaled": (transrate_scaled, lambda x, y: slow.transrate_by_hand(x, y, scaled=True)),
    "parc": (parc, slow.parc_by_hand),
    "knn-1": (lambda x, y: knn(x, y, 1), lambda x, y: slow.knn_by_hand(x, y, 1)),
    "knn-3": (lambda x, y: knn(x, y, 3), lambda x, y: slow.knn_by_hand(x, y, 3)),
    "cts": (lambda x, y: cts(x, y).value, slow.cts_by_hand),
    "cts-neo": (lambda x, y: cts_neo(x, y).value, slow.cts_neo_by_hand),
}
OF_PROBS = {"leep": (leep, slow.leep_by_hand), "nce": (nce, slow.nce_by_hand)}
NAMES = pytest.mark.parametrize("name", OF_FEATURES)


def close(one, two, rel=1e-9):
    return one == pytest.approx(two, rel=rel, abs=1e-11)


def drawn(seed, n, d, classes):
    draw = np.random.default_rng(seed)
    labels = draw.integers(classes, size=n)
    labels[:3] = [0, 1, 0]
    return draw.normal(size=(n, d)) + labels[:, None], (labels * 5 - 3).tolist()


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (lambda: leep(PROBS, Y), "leep"),
        (lambda: nce(PROBS, Y), "nce"),
        (lambda: transrate(F, Y), "transrate_raw_unweighted_eps1e-4"),
        (lambda: transrate_scaled(F, Y), "transrate_trace_normalised_weighted_eps1e-4"),
        (lambda: parc(F, Y), "parc_x100"),
        (lambda: knn(F, Y, 1), "knn_loo_acc_k1_euclid"),
        (lambda: knn(F, Y, 3), "knn_loo_acc_k3_euclid"),
        (lambda: ridge_loo(F, Y, penalty=1.0), "ridge_loo_acc_lambda1"),
    ],
)
def test_the_vectors(value, key):
    assert close(value(), EXPECTED[key])


@pytest.mark.parametrize(("kernel", "act"), [("tanh_unit", np.tanh), ("relu_unit", None)])
def test_the_vectors_of_the_kernel(kernel, act):
    rows = np.tanh(F) if act else np.maximum(F, 0)
    assert close(cts(rows, Y).value, EXPECTED["proxies"][kernel]["CTS"])
    assert close(cts_neo(rows, Y).value, EXPECTED["proxies"][kernel]["CTS_NEO"])


@NAMES
@pytest.mark.parametrize(
    ("n", "d", "classes"), [(23, 4, 3), (9, 30, 2), (40, 2, 6), (31, 1, 2)], ids=str
)
def test_the_loops_agree(name, n, d, classes):
    fast, by_hand = OF_FEATURES[name]
    rows, labels = drawn(n, n, d, classes)
    assert close(fast(rows, labels), by_hand(rows.tolist(), labels))


@NAMES
@settings(max_examples=15, deadline=None)
@given(
    data=st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2), st.integers(0, 2)), min_size=5,
                  max_size=14),
)  # fmt: skip
def test_the_loops_agree_on_a_small_grid(name, data):
    """Repeated rows, rows of zeros, tied distances, columns that may be constant."""
    fast, by_hand = OF_FEATURES[name]
    rows = [[float(a), float(b), float(a * b)] for a, b, _ in data]
    labels = [label for _, _, label in data]
    labels[:3] = [0, 1, 0]
    if name == "transrate-scaled" and len({tuple(row) for row in rows}) == 1:
        assert fast(rows, labels) == 0.0
        return
    if name == "parc" and len({tuple(row) for row in rows}) == 1:
        assert fast(rows, labels) == 0.0
        return
    assert close(fast(rows, labels), by_hand(rows, labels))


@NAMES
@settings(max_examples=10, deadline=None)
@given(order=st.permutations(range(14)), names=st.permutations([-4, 0, 17, 10**12]))
def test_neither_order_nor_names_matter(name, order, names):
    fast, _ = OF_FEATURES[name]
    rows, labels = drawn(5, 14, 3, 4)
    rows[4] = rows[9]  # a duplicate, perhaps of another class
    plain = fast(rows, labels)
    renamed = {label: names[i] for i, label in enumerate(sorted(set(labels)))}
    assert close(fast(rows[order], [renamed[labels[i]] for i in order]), plain)


@pytest.mark.parametrize("name", OF_PROBS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), sources=st.integers(1, 6), dead=st.booleans())
def test_scores_of_probabilities_agree_with_the_loops(name, seed, sources, dead):
    fast, by_hand = OF_PROBS[name]
    draw = np.random.default_rng(seed)
    probs = draw.dirichlet(np.full(sources, 0.3), size=15)
    if dead:
        probs = np.concatenate([np.zeros((15, 2)), probs], axis=1)  # source classes without mass
    labels = [0, 9, *draw.integers(4, size=13).tolist()]
    assert close(fast(probs, labels), by_hand(probs.tolist(), labels))


# Neighbours ---------------------------------------------------------------------------------------


def test_blocks_give_what_one_piece_gives(monkeypatch):
    rows, labels = drawn(3, 90, 4, 3)
    rows[40:70] = rows[0]  # a crowd at one place, larger than the candidates looked at
    whole = [knn(rows, labels, k) for k in (1, 3, 5)]
    monkeypatch.setattr("dovetail.ranking.distances._BLOCK", 90 * 7)
    assert [knn(rows, labels, k) for k in (1, 3, 5)] == whole
    assert close(whole[1], slow.knn_by_hand(rows.tolist(), labels, 3))


def test_a_duplicate_is_a_neighbour_and_the_row_itself_is_not():
    assert knn([[0.0], [0.0], [9.0], [9.0]], [0, 0, 1, 1]) == 1.0
    assert knn([[0.0], [0.0], [9.0], [9.0]], [0, 1, 0, 1]) == 0.0


def test_a_tied_vote_goes_to_the_nearest():
    """Rows 0 and 1 see three classes with a vote each, and their own is the nearest."""
    rows = [[0.0], [1.0], [2.1], [3.3]]
    assert knn(rows, ["c", "c", "b", "a"], 3) == 0.5
    assert knn(rows, ["a", "a", "b", "c"], 3) == 0.5


def test_neighbours_far_from_the_origin_keep_their_digits():
    rows, labels = drawn(8, 60, 5, 3)
    near = knn(np.round(rows, 3), labels, 3)
    assert knn(np.round(rows, 3) + 2.0**33, labels, 3) == pytest.approx(near)


def test_k_is_judged():
    with pytest.raises(SettingsError, match="at least 1"):
        knn(F, Y, 0)


# CTS ----------------------------------------------------------------------------------------------


def test_blocks_of_cts_give_what_one_piece_gives(monkeypatch):
    rows, labels = drawn(4, 80, 5, 4)
    rows[3] = 0
    whole = cts(rows, labels), cts_neo(rows, labels)
    monkeypatch.setattr(cts_module, "_SIDE", 13)
    for one, two in zip((cts(rows, labels), cts_neo(rows, labels)), whole, strict=True):
        assert close(one.value, two.value, 1e-13)
        assert one.standard_error == 0


@pytest.mark.parametrize("function", [cts, cts_neo])
def test_drawn_pairs_err_as_much_as_they_say(function):
    rows, labels = drawn(6, 300, 4, 5)
    truth = function(rows, labels).value
    found = [function(rows, labels, exact_rows=10, pairs=2000, seed=s) for s in range(60)]
    away = np.array([(e.value - truth) / e.standard_error for e in found])
    assert 0.75 < away.std() < 1.25
    assert abs(away.mean()) < 0.45
    assert function(rows, labels, exact_rows=10, pairs=2000, seed=3) == found[3]


def test_pairs_are_drawn_uniformly_from_all_of_their_kind():
    """Kernel values 0 and 1 in unequal numbers, so that a skewed draw shows."""
    rows = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]
    labels = [0, 0, 0, 1]
    truth = cts(rows, labels)
    found = cts(rows, labels, exact_rows=2, pairs=200_000)
    assert abs(found.value - truth.value) < 4 * found.standard_error


def test_cts_needs_a_pair_of_one_class():
    with pytest.raises(TaskError, match="two rows of one class"):
        cts(F[:3], [0, 1, 2])
    with pytest.raises(TaskError, match="two rows of one class"):
        cts(F[:3], [0, 1, 2], exact_rows=2)
    assert cts_neo(F[:3], [0, 1, 2]).value < 0


# PARC, TransRate ----------------------------------------------------------------------------------


def test_parc_is_a_rescaled_area_under_the_curve():
    rows, labels = drawn(1, 40, 6, 3)
    codes = np.unique(labels, return_inverse=True)[1]
    x = (rows - rows.mean(0)) / rows.std(0)
    far = 1 - np.corrcoef(x)
    first, second = np.triu_indices(40, 1)
    far, different = far[first, second], codes[first] != codes[second]
    area = (far[different][:, None] > far[~different]).mean()
    share, count = different.mean(), len(far)
    by_area = (2 * area - 1) * np.sqrt(3 * share * (1 - share)) * count / np.sqrt(count**2 - 1)
    assert close(parc(rows, labels), 100 * by_area)


def test_parc_with_two_columns_has_two_distances_only():
    rows, labels = drawn(2, 30, 2, 3)
    assert close(parc(rows, labels), slow.parc_by_hand(rows, labels))


def test_dead_units_change_nothing_in_parc():
    rows, labels = drawn(2, 30, 5, 3)
    dead = np.concatenate([rows, np.full((30, 2), 0.1)], axis=1)
    assert close(parc(dead, labels), parc(rows, labels))


def test_parc_refuses_what_it_cannot_order():
    with pytest.raises(TaskError, match="two rows of one class and two"):
        parc(F[:3], [0, 1, 2])
    with pytest.raises(TaskError, match="sample of at most 5000"):
        parc(np.zeros((5001, 1)), np.arange(5001) % 2)


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_the_rate_keeps_its_digits_at_any_scale(scale):
    rows = torch.randn(30, 12, dtype=torch.float64) * scale
    rows[:, 5] = rows[:, 4] * 2  # rank deficient, where squares would lose everything
    assert close(float(coding_rate(rows)), slow.rate_by_hand(rows.numpy(), 1e-4))


def test_the_scaled_rate_does_not_see_the_scale():
    assert close(transrate_scaled(np.array(F) * 1e6, Y), transrate_scaled(F, Y))


def test_eps_is_judged():
    with pytest.raises(SettingsError, match="eps"):
        transrate(F, Y, eps=0.0)


# N-LEEP -------------------------------------------------------------------------------------------


def test_principal_components_hold_the_energy():
    from sklearn.decomposition import PCA

    rows, _ = drawn(7, 60, 9, 3)
    ours = principal(torch.from_numpy(rows))
    theirs = PCA(0.8, svd_solver="full").fit_transform(rows)
    assert ours.shape == theirs.shape
    theirs = theirs / np.sqrt((theirs**2).mean())
    assert np.allclose(np.abs(ours.numpy()), np.abs(theirs))


def test_nleep_is_the_likelihood_through_the_mixture():
    from sklearn.mixture import GaussianMixture

    rows, labels = drawn(9, 120, 4, 3)
    order = np.lexsort(rows.T[::-1])
    points = principal(torch.from_numpy(rows[order])).numpy()
    from dovetail.core.seeds import derived_seed

    start = derived_seed(4, "nleep") % 2**32
    mixture = GaussianMixture(12, covariance_type="diag", reg_covar=1e-3, random_state=start)
    probs = mixture.fit(points).predict_proba(points)
    by_hand = slow.leep_by_hand(probs, [labels[i] for i in order])
    assert close(nleep(rows, labels, seed=4), by_hand)
    assert nleep(rows, labels, seed=5) != pytest.approx(by_hand, rel=1e-6)


def test_constant_features_tell_nleep_nothing():
    labels = [0, 0, 0, 1]
    entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    assert close(nleep(np.ones((4, 3)), labels), -entropy)


def test_nleep_refuses_a_mixture_too_large():
    with pytest.raises(TaskError, match="clusters"):
        nleep(np.arange(40_000.0)[:, None], np.arange(40_000) // 2)


# Ridge --------------------------------------------------------------------------------------------


def test_ridge_of_numbers_is_the_explained_share():
    rows, _ = drawn(11, 30, 3, 2)
    y = rows @ np.array([[1.0, 0.0], [0.5, 1.0], [0.0, -1.0]]) + 0.1 * rows**2 @ np.ones((3, 2))
    errors = np.zeros((30, 2))
    for i in range(30):
        others = np.arange(30) != i
        x = rows[others] - rows[others].mean(0)
        centred = y[others] - y[others].mean(0)
        weights = np.linalg.solve(x.T @ x + 2.0 * np.eye(3), x.T @ centred)
        guess = y[others].mean(0) + (rows[i] - rows[others].mean(0)) @ weights
        errors[i] = (guess - y[i]) ** 2
    share = 1 - errors.sum(0) / ((y - y.mean(0)) ** 2).sum(0)
    assert close(ridge_loo(rows, y, penalty=2.0), share.mean(), 1e-8)
    constant = np.concatenate([y, np.ones((30, 1))], axis=1)
    assert close(ridge_loo(rows, constant, penalty=2.0), share.mean(), 1e-8)


def test_ridge_shares_the_credit_of_a_tie():
    """Constant features, three equal classes: the other two always lead, and tie."""
    assert ridge_loo(np.ones((9, 2)), np.arange(9) % 3) == 0.0
    assert ridge_loo(np.ones((8, 2)), [0, 0, 0, 0, 0, 1, 1, 1]) == pytest.approx(5 / 8)


def test_ridge_refuses_what_it_cannot_do():
    with pytest.raises(TaskError, match="nothing to predict"):
        ridge_loo(F, [1.5] * 12)
    with pytest.raises(TaskError, match="too much to hold"):
        ridge_loo(np.zeros((20_000, 1)), np.arange(20_000))


# Many classes -------------------------------------------------------------------------------------


def test_a_hundred_thousand_classes():
    n = 200_000
    labels = torch.arange(n) % 100_000
    rows = torch.randn(100_000, 4).repeat(2, 1)  # every class has one place
    everything = torch.randn(n, 4)
    for function in (transrate, transrate_scaled):
        assert function(rows, labels) > function(everything, labels)
    assert cts(rows, labels, pairs=10_000).value > cts(everything, labels, pairs=10_000).value
    probs = torch.full((n, 2), 0.5)
    assert leep(probs, labels) == pytest.approx(-np.log(100_000))
    assert nce(probs, labels) == pytest.approx(-np.log(100_000))
