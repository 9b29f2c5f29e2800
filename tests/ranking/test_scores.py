"""Every score by name: what it takes, what it refuses, and what must not matter."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references import scores as slow

from dovetail.core.errors import SettingsError, TaskError
from dovetail.ranking import scores
from dovetail.ranking.scores import DEFAULT, SCORES, find_score, score
from dovetail.ranking.scores_from_sums import ALIASES
from dovetail.testing import check_score

VECTORS = json.loads((Path(slow.__file__).parent / "ranking_vectors.json").read_text())
F, Y, R, PROBS = (VECTORS["inputs"][name] for name in ("F", "y", "R", "source_probs"))
EXPECTED = VECTORS["expected"]
NEEDS_BOTH_SIGNS = ("al-neo", "utal-neo")  # with features that are never negative they are 0/0

OF_ROWS = [name for name, entry in SCORES.items() if not entry.needs_network]  # see test_ntk.py
OF_FEATURES = [name for name in OF_ROWS if not SCORES[name].needs_probs]
OF_NUMBERS = [name for name in OF_ROWS if "regression" in SCORES[name].fits]
EVERY = pytest.mark.parametrize("name", OF_ROWS)


def by_name(name, features, labels, **options):
    """A score with what it needs besides features and labels."""
    options.setdefault("activation", "tanh" if name in NEEDS_BOTH_SIGNS else "relu")
    if SCORES[name].needs_probs and "source_probs" not in options:
        # softmax of the features: probabilities that move with the rows
        options["source_probs"] = torch.as_tensor(features).double().softmax(1)
    return score(features, labels, by=name, **options)


def test_the_names_are_those_of_the_design():
    assert set(SCORES) == {
        *("al", "utal", "nmse", "cts", "al-neo", "utal-neo", "nmse-neo", "cts-neo"),
        *("centred-al", "centred-al-unit", "logme", "leep", "nce", "hscore", "hscore-lw"),
        *("transrate", "transrate-scaled", "gbc", "gbc-spherical", "parc", "nleep"),
        *("knn-1", "knn-3", "ridge-loo", "expected-accuracy"),
        *("ntk-centred-al", "ntk-loo"),
    }
    assert ALIASES == {"cka": "centred-al"}
    assert DEFAULT in SCORES
    assert all(entry.name == name and entry.words for name, entry in SCORES.items())
    assert all(entry.from_sums == (entry.function is None) for entry in SCORES.values())


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("logme", "logme_classification_converged"),
        ("leep", "leep"),
        ("nce", "nce"),
        ("cka", "cka_linear_features_labels"),
        ("hscore", "hscore"),
        ("hscore-lw", "hscore_regularised_LW_covg_n"),
        ("transrate", "transrate_raw_unweighted_eps1e-4"),
        ("transrate-scaled", "transrate_trace_normalised_weighted_eps1e-4"),
        ("gbc", "gbc_diagonal"),
        ("gbc-spherical", "gbc_spherical"),
        ("parc", "parc_x100"),
        ("knn-1", "knn_loo_acc_k1_euclid"),
        ("knn-3", "knn_loo_acc_k3_euclid"),
    ],
)
def test_the_variants_are_those_of_the_vectors(name, key):
    expected = EXPECTED[key]["value"] if isinstance(EXPECTED[key], dict) else EXPECTED[key]
    found = score(F, Y, by=name, source_probs=PROBS)
    assert found == pytest.approx(expected, rel=1e-8 if name == "logme" else 1e-9)


@pytest.mark.parametrize("kernel", ["tanh", "relu"])
def test_the_eight_proxies_are_those_of_the_vectors(kernel):
    rows = np.tanh(F) if kernel == "tanh" else np.maximum(F, 0)
    for key, expected in EXPECTED["proxies"][f"{kernel}_unit"].items():
        if "RAW" not in key and expected is not None:
            name = key.lower().replace("_", "-")
            found = score(rows, Y, by=name, activation=kernel)
            assert found == pytest.approx(expected, rel=1e-9), name


def test_cka_is_the_centred_alignment():
    unit = np.array(F) / np.linalg.norm(F, axis=1, keepdims=True)
    one_hot, centre = np.eye(3)[Y], np.eye(12) - 1 / 12
    for name, rows in [
        ("cka", np.array(F)),
        ("centred-al", np.array(F)),
        ("centred-al-unit", unit),
    ]:
        a, b = (centre @ x @ x.T @ centre for x in (rows, one_hot))
        expected = (a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum())
        assert score(F, Y, by=name) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", OF_FEATURES)
@pytest.mark.parametrize("tensors", [False, True], ids=["arrays", "tensors"])
def test_every_score_of_features_passes_our_own_check(name, tensors):
    check_score(lambda x, y: by_name(name, x, y), tensors=tensors)


@EVERY
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10**6), wide=st.booleans())
def test_neither_order_nor_names_nor_containers_matter(name, seed, wide):
    draw = np.random.default_rng(seed)
    labels = np.concatenate([[0, 0, 0, 1, 1, 1, 2, 2], draw.integers(3, size=12)])
    rows = draw.normal(size=(20, 30 if wide else 4)) + labels[:, None]
    rows[7] = rows[3]
    rows[11] = 0
    plain = by_name(name, rows, labels)
    assert isinstance(plain, float)
    order = draw.permutation(20)
    moved = by_name(name, rows[order], np.array([9, -2, 10**9])[labels[order]])
    # duplicates that are fitted exactly have evidence without bound; only a floor on the noise
    # of about 1e-12, which rounding reaches in the second digit, keeps logme finite there
    exactness = 1e-2 if wide and name == "logme" else 1e-6
    assert moved == pytest.approx(plain, rel=exactness, abs=1e-9)
    words = [["emu", "cat", "dog"][label] for label in labels]
    assert by_name(name, rows.tolist(), words) == pytest.approx(plain, rel=exactness, abs=1e-9)
    kept = rows.copy(), labels.copy()
    by_name(name, torch.from_numpy(rows), torch.from_numpy(labels))
    assert np.array_equal(kept[0], rows)
    assert np.array_equal(kept[1], labels)


@EVERY
def test_separable_classes_get_more_than_shuffled_labels(name):
    draw = np.random.default_rng(0)
    labels = np.arange(60) % 3
    rows = np.eye(3)[labels] * 4 + draw.normal(size=(60, 3)) * 0.3
    assert by_name(name, rows, labels) > by_name(name, rows, draw.permutation(labels))


@EVERY
def test_two_rows_a_class_are_enough(name):
    rows = np.array([[1.0, 0.1], [0.9, -0.2], [-0.1, 1.0], [0.2, 1.1], [-1.0, 0.3], [-0.9, 0.2]])
    assert np.isfinite(by_name(name, rows, [0, 0, 1, 1, 2, 2]))


@EVERY
def test_what_is_no_task_is_refused(name):
    rows = np.random.default_rng(0).normal(size=(6, 3))
    labels = [0, 0, 0, 1, 1, 1]
    probs = np.full((6, 2), 0.5)
    for bad, given_labels, words in [
        (np.where(np.eye(6, 3) > 0, np.nan, rows), labels, "row 0 .* nan"),
        (np.where(np.eye(6, 3, -2) > 0, np.inf, rows), labels, "row 2 .* nan or inf"),
        (rows, [4] * 6, "one class"),
        (rows[:1], [0], "one class"),
        (rows, labels[:5], "6 rows of features but 5 labels"),
        (rows[:0], [], "no features"),
        (rows[:, :0], labels, "no features"),
        (rows[:, 0], labels, "must be rows"),
        (rows[:, None], labels, "pool or flatten"),
        (rows + 1j, labels, "complex"),
        (object(), labels, "not an array"),
        (rows * 1e150, labels, "scale them down"),
        (rows, [[0], [1, 2], [0], [1], [0], [1]], "several lengths"),
        (rows, [0, 1, None, 0, 1, 0], "missing"),
        (rows, ["a", "b", float("nan"), "a", "b", "a"], "missing"),
    ]:
        with pytest.raises(TaskError, match=words):
            by_name(name, bad, given_labels, source_probs=probs)


# Numbers ------------------------------------------------------------------------------------------


def test_the_regression_vector():
    expected = EXPECTED["logme_regression_converged"]["value"]
    assert score(F, R, by="logme") == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_numbers_and_several_labels_are_scored(name):
    draw = np.random.default_rng(1)
    rows = draw.normal(size=(50, 4))
    several = (rows[:, :2] > 0).astype(int)
    for targets in (rows @ [1.0, 2.0, 0.0, 0.0], rows[:, :2] * 3, several):
        found = score(rows, targets, by=name)
        assert found > score(rows, draw.permutation(targets), by=name)
        assert found == pytest.approx(score(torch.tensor(rows), torch.tensor(targets), by=name))


@pytest.mark.parametrize("name", sorted(set(OF_ROWS) - set(OF_NUMBERS)))
def test_other_scores_name_those_that_take_numbers(name):
    with pytest.raises(TaskError, match=r"for numbers there is centred-al, .*logme, ridge-loo"):
        by_name(name, F, R)


def test_numbers_that_are_not_finite_are_refused():
    with pytest.raises(TaskError, match="row 3 of the labels"):
        score(F, [0.0, 1.0, 2.0, np.nan, *[1.0] * 8], by="logme")


# Settings -----------------------------------------------------------------------------------------


def test_unknown_names_are_answered_with_near_ones():
    with pytest.raises(SettingsError, match="did you mean transrate"):
        score(F, Y, by="transrat")
    with pytest.raises(SettingsError, match="unknown activation"):
        score(F, Y, by="logme", activation="rleu")
    assert find_score("cka") is SCORES["centred-al"]


@pytest.mark.parametrize("name", ["leep", "nce"])
def test_probabilities_are_asked_for_and_judged(name):
    with pytest.raises(SettingsError, match="needs source_probs"):
        score(F, Y, by=name)
    with pytest.raises(TaskError, match="12 labels"):
        score(F, Y, by=name, source_probs=PROBS[:5])
    with pytest.raises(TaskError, match="softmax"):
        score(F, Y, by=name, source_probs=F)
    with pytest.raises(TaskError, match="row 1 of the source_probs"):
        score(F, Y, by=name, source_probs=[PROBS[0], [np.nan] * 5, *PROBS[2:]])


def test_the_default_is_used():
    assert score(F, Y) == score(F, Y, by=DEFAULT)


def test_a_function_is_a_score_too():
    seen = []

    def spread(features, labels):
        seen.append((features, labels))
        return np.float32(2.5)

    assert score(F, Y, by=spread) == 2.5
    assert seen[0][0] is F
    with pytest.raises(SettingsError, match="check_score"):
        score(F, Y, by=lambda x, y: "much")
    with pytest.raises(SettingsError, match="gave nan"):
        score(F, Y, by=lambda x, y: float("nan"))


def test_half_precision_and_gradients_are_taken():
    rows = torch.tensor(F, requires_grad=True)
    assert score(rows, torch.tensor(Y), by="knn-1") == 0.5
    assert score(rows.half(), torch.tensor(Y, dtype=torch.uint8), by="knn-3") > 0


def test_a_hundred_thousand_classes_are_scored_or_refused_clearly():
    n = 200_000
    labels = torch.arange(n) % 100_000
    rows = torch.randn(100_000, 4).repeat(2, 1)
    for name in ("logme", "centred-al", "al", "transrate"):
        assert np.isfinite(score(rows, labels, by=name))
    for name in ("gbc", "parc", "nleep", "ridge-loo", "expected-accuracy"):
        with pytest.raises(TaskError, match=r"sample|classes"):
            score(rows, labels, by=name)


def test_every_entry_is_reached_by_score():
    """No entry of the table is for show."""
    for name in OF_ROWS:
        assert scores.find_score(name) is SCORES[name]
        assert np.isfinite(by_name(name, np.array(F), Y))
