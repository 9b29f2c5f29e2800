"""Scores from sums equal the scores as they are defined, however the rows came."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references.pair_scores import centred_alignment, logme, reference, unit

import dovetail.ranking.sums as class_sums
from dovetail.core.errors import TaskError
from dovetail.ranking.logme import logme as logme_alone
from dovetail.ranking.scores_from_sums import KINDS
from dovetail.ranking.statistics import PairStatistics
from dovetail.testing import check_score

VECTORS = json.loads((Path(__file__).parents[1] / "references/ranking_vectors.json").read_text())
F, Y = np.array(VECTORS["inputs"]["F"]), np.array(VECTORS["inputs"]["y"])
EXPECTED = VECTORS["expected"]
NEO = ("al-neo", "utal-neo")
SHAPES = {"n < d": (30, 50), "n = d": (24, 24), "n near d": (30, 25), "n >> d": (270, 7)}


def kinds_of(activation):
    return [kind for kind in KINDS if activation == "tanh" or kind not in NEO]


@functools.cache
def data(shape, activation):
    """Imbalanced classes with odd names, means apart, rows of zeros and a dead unit."""
    n, d = SHAPES[shape]
    draw = np.random.default_rng(n * d)
    names = np.array([-7, 3, 2**40, 12])
    labels = names[draw.choice(4, size=n, p=[0.5, 0.3, 0.15, 0.05])]
    labels[:8] = np.repeat(names, 2)
    features = draw.normal(size=(n, d)) + np.sin(np.outer(labels % 11, np.arange(d)))
    features = np.tanh(features) if activation == "tanh" else np.maximum(features, 0)
    features[[9, 20]] = 0
    features[:, 1] = 0
    return features, labels


@functools.cache
def truths(shape, activation):
    features, labels = data(shape, activation)
    return {kind: reference(kind, features, labels, activation) for kind in kinds_of(activation)}


def assert_close(found, wanted, tolerance, logme=0.0):
    for kind, value in wanted.items():
        most = max(tolerance, logme) if kind == "logme" else tolerance
        assert math.isclose(found[kind], value, rel_tol=most, abs_tol=most / 10), (
            kind,
            found[kind],
            value,
        )


def without_noise(shape):
    """Features that span their targets: LogME's maximum is then a corner, known less well."""
    return 0.0 if shape in ("n >> d", "n near d") else 1e-9


# The definitions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("hscore", "hscore"),
        ("hscore-lw", "hscore_regularised_LW_covg_n"),
        ("gbc", "gbc_diagonal"),
        ("gbc-spherical", "gbc_spherical"),
        ("centred-al", "cka_linear_features_labels"),
        ("cka", "cka_linear_features_labels"),
    ],
)
def test_the_vectors(kind, key):
    found = PairStatistics().update(F, Y).score(kind)
    assert math.isclose(found, EXPECTED[key], rel_tol=1e-12)


def test_the_vectors_of_logme():
    found = PairStatistics().update(F, Y).score("logme")
    assert math.isclose(found, EXPECTED["logme_classification_converged"]["value"], rel_tol=1e-12)
    targets = np.array(VECTORS["inputs"]["R"])  # the second column is noise: its null value
    found = PairStatistics().update(F, targets).score("logme")
    assert math.isclose(found, EXPECTED["logme_regression_converged"]["value"], rel_tol=1e-12)
    each = [PairStatistics().update(F, column).score("logme") for column in targets.T]
    assert each == pytest.approx(EXPECTED["logme_regression_converged"]["per_target"], rel=1e-12)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_the_vectors_of_the_proxies(activation):
    sums = PairStatistics(activation).update(getattr(torch, activation)(torch.tensor(F)), Y)
    wanted = EXPECTED["proxies"][f"{activation}_unit"]
    checked = 0
    for name, value in wanted.items():
        kind = name.lower().replace("_", "-")
        if kind in KINDS:
            assert math.isclose(sums.score(kind), value, rel_tol=1e-12)
            checked += 1
    assert checked == (6 if activation == "tanh" else 4)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("shape", SHAPES)
def test_one_piece_equals_the_definition(shape, activation):
    features, labels = data(shape, activation)
    found = PairStatistics(activation).update(features, labels).scores(kinds_of(activation))
    assert_close(found, truths(shape, activation), 1e-12, without_noise(shape))


@pytest.mark.parametrize("sizes", [[1], [5, 2, 11], [40]], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_many_pieces_merged_equal_the_definition(shape, sizes):
    features, labels = data(shape, "tanh")
    merged, start, turn = PairStatistics("tanh"), 0, 0
    while start < len(labels):
        size = sizes[turn % len(sizes)]
        part = slice(start, start + size)
        merged.merge(PairStatistics("tanh").update(features[part], labels[part]))
        start, turn = start + size, turn + 1
    assert merged.n == len(labels)
    assert_close(
        merged.scores(kinds_of("tanh")), truths(shape, "tanh"), 1e-11, without_noise(shape)
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_after_subtracting_strangers_the_definition_holds(shape):
    features, labels = data(shape, "tanh")
    draw = np.random.default_rng(1)
    for count in (6, 400):  # kept as rows, or folded into sums
        strangers = draw.normal(size=(count, features.shape[1])) * 3 + 1
        theirs = draw.choice([3, 12, 99], size=count)
        whole = PairStatistics("tanh").update(np.vstack([features, strangers]), [*labels, *theirs])
        whole.score("al")
        whole.subtract(PairStatistics("tanh").update(strangers, theirs))
        assert whole.n == len(labels)
        assert whole.classes == tuple(sorted(set(labels.tolist())))
        assert_close(
            whole.scores(kinds_of("tanh")), truths(shape, "tanh"), 1e-10, without_noise(shape)
        )


@pytest.mark.parametrize(("left", "right"), [(5, 5), (5, 300), (300, 5), (300, 300)])
def test_rows_and_sums_merge_in_every_combination(left, right):
    draw = np.random.default_rng(left + right)
    features, labels = draw.normal(size=(left + right, 12)), draw.integers(0, 3, left + right)
    one = PairStatistics("tanh").update(features[:left], labels[:left])
    two = PairStatistics("tanh").update(features[left:], labels[left:])
    before = two.scores(["logme", "al-neo"])
    both = PairStatistics("tanh").merge(one).merge(two)
    whole = PairStatistics("tanh").update(features, labels)
    assert_close(both.scores(KINDS), whole.scores(KINDS), 1e-11)
    assert both.subtract(one).scores(["logme", "al-neo"]) == pytest.approx(before, rel=1e-9)
    assert two.scores(["logme", "al-neo"]) == before
    both.merge(both)
    assert both.n == 2 * right


def test_a_large_common_offset_costs_few_digits():
    draw = np.random.default_rng(0)
    labels = np.arange(400) % 3
    for n in (400, 20):
        offset = draw.normal(size=30) + 5
        small = (draw.normal(size=(n, 30)) + np.eye(30)[labels[:n]]) * 1e-5
        features = offset + small
        plain = PairStatistics("tanh").update(features, labels[:n])
        merged = PairStatistics("tanh")
        for part in np.array_split(np.arange(n), 7):
            merged.merge(PairStatistics("tanh").update(features[part], labels[part]))
        # The features themselves know their spread to 1e-16 / 1e-6 only.
        moved = features - features.mean(0)
        directions = unit(features) - unit(features).mean(0)
        wanted = {
            "hscore": reference("hscore", moved, labels[:n], "tanh"),
            "hscore-lw": reference("hscore-lw", moved, labels[:n], "tanh"),
            "centred-al": reference("centred-al", moved, labels[:n], "tanh"),
            "centred-al-unit": reference("centred-al", directions, labels[:n], "tanh"),
        }
        assert_close(plain.scores(wanted), wanted, 1e-8)
        assert_close(merged.scores(wanted), wanted, 1e-8)


@pytest.mark.parametrize("shape", SHAPES)
def test_numbers_have_centred_alignment_and_logme(shape):
    features, _ = data(shape, "tanh")
    draw = np.random.default_rng(5)
    numbers = np.hstack(
        [features[:, :2] @ draw.normal(size=(2, 2)), draw.normal(size=features[:, :1].shape)]
    )
    numbers += 0.1 * draw.normal(size=numbers.shape) + 3
    wanted = {
        "logme": logme(features, numbers),
        "cka": centred_alignment(features, numbers),
        "centred-al-unit": centred_alignment(unit(features), numbers),
    }
    plain = PairStatistics("tanh").update(features, numbers)
    assert_close(plain.scores(wanted), wanted, 1e-11)
    pieces = PairStatistics("tanh")
    for part in np.array_split(np.arange(len(features)), 3):
        pieces.merge(PairStatistics("tanh").update(features[part], numbers[part]))
    assert_close(pieces.scores(wanted), wanted, 1e-11)
    strangers = draw.normal(size=(300, features.shape[1])), draw.normal(size=(300, 3))
    pieces.update(*strangers).subtract(PairStatistics("tanh").update(*strangers))
    assert_close(pieces.scores(wanted), wanted, 1e-9)
    with pytest.raises(TaskError, match="'al' needs one class a row"):
        plain.score("al")


def test_zeros_and_ones_of_many_labels_are_numbers_and_absent_ones_left_out():
    features, _ = data("n >> d", "relu")
    ones = (features[:, 2:4] > 0.5).astype(np.int64)
    found = PairStatistics().update(features, ones)
    absent = PairStatistics().update(features, np.hstack([ones, np.zeros_like(ones[:, :1])]))
    assert math.isclose(found.score("logme"), logme(features, ones.astype(float)), rel_tol=1e-12)
    assert absent.score("logme") == found.score("logme")


# LogME's own edges --------------------------------------------------------------------------------


def test_logme_of_features_that_say_nothing_is_the_null_value():
    labels = np.arange(60) % 3
    null = -(1 + math.log(2 * math.pi * 20 / 60)) / 2
    found = PairStatistics().update(np.zeros((60, 4)), labels).score("logme")
    assert math.isclose(found, null, rel_tol=1e-14)
    # A feature orthogonal to every target: the same three values in each class.
    orthogonal = np.repeat([-1.0, 0.0, 1.0, 0.0], 15)[:, None]
    targets = np.tile([1.0, -1.0, 1.0], 20)
    found = PairStatistics().update(orthogonal, targets).score("logme")
    assert math.isclose(found, -(1 + math.log(2 * math.pi)) / 2, rel_tol=1e-14)


def test_logme_does_not_depend_on_the_scale_of_the_features():
    for shape in ("n < d", "n >> d"):
        features, labels = data(shape, "tanh")
        plain = PairStatistics().update(features, labels).score("logme")
        for scale in (1e-6, 1e6):
            scaled = PairStatistics().update(features * scale, labels).score("logme")
            assert math.isclose(scaled, plain, rel_tol=1e-11)


def test_logme_of_a_perfect_fit_is_great_and_finite():
    labels = np.arange(60) % 3
    perfect = PairStatistics().update(np.eye(3)[labels], labels).score("logme")
    noisy = np.eye(3)[labels] + 0.01 * np.random.default_rng(0).normal(size=(60, 3))
    assert PairStatistics().update(noisy, labels).score("logme") < perfect < 15


@given(st.integers(2, 12), st.integers(1, 15), st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_logme_finds_the_greatest_evidence(n, d, seed):
    draw = np.random.default_rng(seed)
    features, target = draw.normal(size=(n, d)), draw.normal(size=n)
    found = PairStatistics().update(features, target).score("logme")
    wanted = logme(features, target[:, None])
    assert math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_logme_alone_is_the_logme_of_the_sums(shape):
    features, labels = data(shape, "tanh")
    for targets in (labels, features[:, 0] + np.arange(len(labels)), np.eye(3)[labels % 3]):
        found = logme_alone(np.float32(features), targets)
        wanted = PairStatistics().update(np.float32(features), targets).score("logme")
        assert math.isclose(found, wanted, rel_tol=1e-10)


@pytest.mark.parametrize("count", [3, 5000])
def test_logme_alone_names_the_row_that_is_not_finite(count):
    features = np.random.default_rng(0).normal(size=(count, 4))
    features[2, 1] = np.nan
    with pytest.raises(TaskError, match="row 2 of the features holds nan or inf"):
        logme_alone(features, np.arange(count) % 2)
    with pytest.raises(TaskError, match="no rows"):
        logme_alone(np.zeros((0, 3)), [])


def test_hscore_stays_in_its_range_where_the_covariance_is_singular():
    draw = np.random.default_rng(0)
    for n, d in [(40, 39), (40, 40), (40, 41), (40, 400)]:
        features = np.float32(draw.normal(size=(n, d)))
        labels = np.arange(n) % 4
        value = PairStatistics().update(features, labels).score("hscore")
        assert 0 <= value <= 3 + 1e-12
    thin = draw.normal(size=(500, 5)) @ draw.normal(size=(5, 60))
    labels = np.arange(500) % 4
    wanted = reference("hscore", thin, labels, "tanh")
    assert wanted < 1
    assert math.isclose(
        PairStatistics().update(np.float32(thin), labels).score("hscore"), wanted, rel_tol=1e-4
    )


# Properties ---------------------------------------------------------------------------------------


@given(st.integers(0, 10_000), st.integers(1, 6), st.sampled_from([3, 40]))
@settings(max_examples=25, deadline=None)
def test_neither_order_nor_names_nor_pieces_matter(seed, pieces, width):
    draw = np.random.default_rng(seed)
    features = draw.normal(size=(24, width))
    codes = draw.integers(0, 3, 24)
    codes[:3] = [0, 1, 2]
    plain = PairStatistics("tanh").update(features, codes).scores(KINDS)
    order = draw.permutation(24)
    names = draw.choice(10_000, size=3, replace=False) - 5000
    other = PairStatistics("tanh")
    for part in np.array_split(order, pieces):
        other.merge(PairStatistics("tanh").update(features[part], names[codes[part]]))
    assert other.classes == tuple(sorted(names.tolist()))
    assert_close(other.scores(KINDS), plain, 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_what_every_score_must_satisfy(kind):
    check_score(
        lambda features, labels: PairStatistics("tanh").update(features, labels).score(kind)
    )


# Size ---------------------------------------------------------------------------------------------


def test_a_hundred_thousand_classes():
    torch.manual_seed(3)
    features, labels = torch.rand(200_000, 8), torch.randint(100_000, (200_000,)) * 7
    sums = PairStatistics("tanh").update(features, labels)
    rows = torch.nn.functional.normalize(features.double(), dim=1)
    _, codes = torch.unique(labels, return_inverse=True)
    totals = torch.zeros(len(sums.classes), 8, dtype=torch.float64).index_add_(0, codes, rows)
    second = torch.zeros(len(sums.classes), 64, dtype=torch.float64)
    second.index_add_(0, codes, (rows[:, :, None] * rows[:, None]).flatten(1))
    alike = float(totals.square().sum())
    different = float(totals.sum(0).square().sum()) - alike
    pairs = 200_000**2 - int(codes.bincount().square().sum())
    squares = float((rows.T @ rows).square().sum()) - float(second.square().sum())
    found = sums.scores(["nmse-neo", "logme", "hscore", "centred-al"])
    assert math.isclose(
        found["nmse-neo"], -(squares + 2 * different + pairs) / pairs, rel_tol=1e-12
    )
    assert 0 < found["hscore"] <= 8
    assert math.isfinite(found["logme"])
    with pytest.raises(TaskError, match="hours"):
        sums.score("gbc")


def test_wide_features_are_never_squared_while_rows_are_few():
    width = 60_000  # one d x d matrix would be 29 GB
    features = torch.randn(6, width)
    sums = PairStatistics("tanh").update(features, [0, 0, 1, 1, 2, 2])
    assert max(value.numel() for value in sums.state().values()) == 6 * width
    wanted = {
        kind: reference(kind, features.numpy(), [0, 0, 1, 1, 2, 2], "tanh")
        for kind in ("al", "nmse-neo", "logme", "gbc", "cka")
    }
    assert_close(sums.scores(wanted), wanted, 1e-11)


def test_second_moments_that_are_too_many_are_not_kept(monkeypatch):
    features, labels = data("n >> d", "tanh")
    wanted = truths("n >> d", "tanh")
    monkeypatch.setattr(class_sums, "MOST_CELLS", 10)
    whole = PairStatistics("tanh").update(features, labels)
    assert not any("second" in name for name in whole.state())
    assert_close(whole.scores(kinds_of("tanh")), wanted, 1e-11)
    apart = PairStatistics("tanh")  # each class in one piece
    for name in np.unique(labels):
        piece = np.vstack([features[labels == name]] * 30)  # enough rows to be folded
        apart.merge(PairStatistics("tanh").update(piece, np.full(len(piece), name)))
    repeated = PairStatistics("tanh").update(np.vstack([features] * 30), np.tile(labels, 30))
    assert_close(apart.scores(["al-neo"]), repeated.scores(["al-neo"]), 1e-11)
    whole.merge(whole)
    assert math.isclose(whole.score("al"), wanted["al"], rel_tol=1e-11)
    with pytest.raises(TaskError, match="in one update"):
        whole.score("nmse-neo")


def test_second_moments_that_become_too_many_are_let_go(monkeypatch):
    features, labels = data("n >> d", "tanh")
    sums = PairStatistics("tanh").update(features, labels)
    monkeypatch.setattr(class_sums, "MOST_CELLS", 7 * 7 * 4)
    before = sums.score("al-neo")
    sums.merge(PairStatistics("tanh").update(features[:260], np.full(260, 77)))
    assert not any("second" in name for name in sums.state())
    both = np.vstack([features, features[:260]]), [*labels, *[77] * 260]
    monkeypatch.undo()
    assert math.isclose(
        sums.score("al-neo"), PairStatistics("tanh").update(*both).score("al-neo"), rel_tol=1e-11
    )
    assert sums.score("al-neo") != before
