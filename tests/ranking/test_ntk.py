"""Scores of the tangent kernel, against rows really left out and Jacobians written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references import gram as dense
from references import kernel_scores as slow
from torch import nn

import dovetail as dt
from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.core.seeds import generator
from dovetail.linalg.ridge import kernel_leave_one_out, leave_one_out
from dovetail.parts.norms import with_batch_statistics
from dovetail.ranking import ntk_score, rank, rank_over, score, tangent_kernel
from dovetail.ranking.candidates import sampled
from dovetail.ranking.measuring import dealt, half_width
from dovetail.ranking.ntk import OUTPUTS

DIGITS = dt.load_task("digits")
NAMES = ("ntk-centred-al", "ntk-loo")
SLOW = {"ntk-centred-al": slow.centred_alignment, "ntk-loo": slow.loo}
BOTH = pytest.mark.parametrize("by", NAMES)


def problem(seed=0, n=24, d=40):
    draw = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    rows = draw.normal(size=(n, d)) + 1.5 * np.eye(3, d)[labels] + 3.0
    return rows @ rows.T, labels, rows


def nets(*widths):
    return {f"{width} wide": dt.build("mlp", hidden=(width,), seed=3) for width in widths}


# From a kernel ------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("wide", [True, False], ids=["full rank", "low rank"])
def test_a_score_is_what_its_definition_says(by, wide):
    kernel, labels, rows = problem(d=40 if wide else 5)
    assert ntk_score(kernel, labels, by) == pytest.approx(SLOW[by](kernel, labels), rel=1e-8)
    numbers = rows[:, :2] @ np.array([[1.0, 30.0], [0.5, -10.0]])
    assert ntk_score(kernel, numbers, by) == pytest.approx(SLOW[by](kernel, numbers), rel=1e-6)


@pytest.mark.parametrize("penalty", [1e-6, 1.0, 1e4])
def test_left_out_rows_are_really_left_out(penalty):
    kernel, labels, _ = problem()
    y = slow.columns_of(labels)
    found = kernel_leave_one_out(kernel, y, penalty)
    assert np.allclose(found.predictions, slow.leave_one_out(kernel, y, penalty), atol=1e-7)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), d=st.integers(1, 60))
def test_the_linear_kernel_gives_ridge_itself(seed, d):
    kernel, labels, rows = problem(seed, d=max(d, 3))
    y = slow.columns_of(labels)
    one, two = kernel_leave_one_out(kernel, y, 0.3), leave_one_out(rows, y, 0.3)
    assert torch.allclose(one.predictions, two.predictions, atol=1e-8)
    assert torch.allclose(one.leverage, two.leverage, atol=1e-8)


@BOTH
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10**6), scale=st.floats(1e-3, 1e3))
def test_order_names_scale_and_offset_do_not_matter(by, seed, scale):
    kernel, labels, rows = problem(seed)
    plain = ntk_score(kernel, labels, by)
    order = np.random.default_rng(seed).permutation(len(labels))
    moved = (rows + 5)[order]
    words = [["emu", "cat", "dog"][label] for label in labels[order]]
    assert ntk_score(scale * moved @ moved.T, words, by) == pytest.approx(plain, rel=1e-6)
    assert 0 <= plain <= 1


@BOTH
def test_separable_classes_get_more_than_shuffled_labels(by):
    kernel, labels, _ = problem(n=60)
    shuffled = np.random.default_rng(1).permutation(labels)
    assert ntk_score(kernel, labels, by) > ntk_score(kernel, shuffled, by)


@BOTH
def test_what_is_no_kernel_or_no_task_is_refused(by):
    kernel, labels, _ = problem(n=6)
    for bad, given_labels, words in [
        (np.where(np.eye(6) > 0, np.nan, kernel), labels, "nan"),
        (kernel, [4] * 6, "one class"),
        (kernel, [2.0] * 6, "same number"),
        (kernel[:1, :1], [0], "one class"),
        (kernel[:, :5], labels, r"\[n, n\]"),
        (kernel, labels[:5], "6 rows"),
        (kernel + np.triu(np.full((6, 6), 9.0)), labels, "symmetric"),
        (kernel[0], labels, "must be rows"),
    ]:
        with pytest.raises(TaskError, match=words):
            ntk_score(bad, given_labels, by)
    with pytest.raises(SettingsError, match="no score of a kernel"):
        ntk_score(kernel, labels, "logme")


def test_a_constant_kernel_aligns_with_nothing():
    with pytest.raises(TaskError, match="same for all"):
        ntk_score(np.ones((6, 6)), [0, 1] * 3, "ntk-centred-al")


def test_kernels_and_targets_of_other_sizes_are_refused():
    with pytest.raises(TaskError, match=r"\[3, 3\]"):
        kernel_leave_one_out(np.eye(4), [1.0, 2.0, 3.0])
    with pytest.raises(TaskError, match="two rows"):
        kernel_leave_one_out([[1.0]], [1.0])
    with pytest.raises(SettingsError, match="penalt"):
        kernel_leave_one_out(np.eye(3), [1.0, 2.0, 3.0], penalty=-1.0)


@BOTH
def test_features_alone_are_refused_with_the_way_out(by):
    with pytest.raises(SettingsError, match=r"dt\.rank.*ntk_score"):
        score([[0.0], [1.0]], [0, 1], by=by)


# Of a network -------------------------------------------------------------------------------------


def test_few_outputs_are_taken_as_they_are():
    part = dt.build("mlp", shape=(4,), hidden=(6,), classes=3)
    x = torch.rand(5, 4)
    expected = torch.einsum("icjc->ij", dense.gram(part.module, x)) / 3
    assert torch.allclose(tangent_kernel(part, x), expected, rtol=1e-5)


def test_many_outputs_are_mixed_by_fixed_numbers():
    front, _ = dt.cut(dt.build("lenet5", channels=1, size=8), at="conv2")
    x = torch.rand(4, 1, 8, 8)
    draw = generator(7, "tangent outputs", 16)
    mixtures = torch.randn(OUTPUTS, 16, generator=draw, dtype=torch.float64).float() / 4
    pooled = nn.Sequential(front.module, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    whole = dense.gram(pooled, x)
    mixed = torch.einsum("oc,icjd,od->ij", mixtures.double(), whole, mixtures.double()) / OUTPUTS
    found = tangent_kernel(front, x, seed=7)
    assert torch.allclose(found, mixed, rtol=1e-4, atol=1e-6 * float(mixed.abs().max()))
    assert torch.equal(found, tangent_kernel(front, x, seed=7))
    assert not torch.allclose(found, tangent_kernel(front, x, seed=8))
    # on average over many mixtures it is the mean over all features
    many = torch.stack([tangent_kernel(front, x, outputs=15, seed=s) for s in range(40)]).mean(0)
    mean = torch.einsum("icjc->ij", whole) / 16
    assert float((many - mean).norm() / mean.norm()) < 0.15


def test_flattened_maps_are_other_outputs():
    front, _ = dt.cut(dt.build("lenet5", channels=1, size=8), at="conv2")
    x = torch.rand(4, 1, 8, 8)
    assert not torch.allclose(
        tangent_kernel(front, x), tangent_kernel(front, x, pooling="flatten"), rtol=1e-2
    )


@BOTH
def test_a_ranking_is_by_the_kernel_of_each_front(by):
    found = rank(nets(2, 8, 64), DIGITS, at="hidden1", by=by, network_samples=60)
    small = sampled(DIGITS, 60, "train", seed=0)
    inputs, labels = small.subset("train")
    plain = {}
    for name, net in nets(2, 8, 64).items():
        kernel = tangent_kernel(dt.cut(net, at="hidden1")[0], inputs)
        plain[name] = ntk_score(kernel, labels, by)
    assert [place.part for place in found] == sorted(plain, key=lambda name: -plain[name])
    for place in found:
        assert place.score == pytest.approx(plain[place.part], rel=1e-9)
        assert place.low <= place.score <= place.high
        assert place.z is not None
        assert place.expected is not None
    assert found.n == found.settings["samples"] == 60
    assert found.settings["tangent_outputs"] == OUTPUTS
    assert "network_samples" in found.notes[0]


@BOTH
def test_the_interval_is_the_jackknife_of_parts_of_the_kernel(by):
    net = nets(16)
    found = rank(net, DIGITS, at="hidden1", by=by, samples=48, groups=5)
    assert found.notes == ()  # as many as were asked for
    inputs, labels = sampled(DIGITS, 48, "train", seed=0).subset("train")
    front = dt.cut(net["16 wide"], at="hidden1")[0]
    group = dealt(labels, 5, seed=0)
    without = torch.tensor(
        [
            ntk_score(tangent_kernel(front, inputs[group != g]), labels[group != g], by)
            for g in range(5)
        ]
    )
    place = found.best
    assert place.high - place.score == pytest.approx(half_width(without, 0.9), rel=1e-4)


def test_numbers_and_several_tasks_are_ranked():
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(80, 4, generator=draw)
    task = dt.Task(x, (x @ torch.tensor([1.0, 2.0, 0.0, -1.0])).double(), kind="regression")
    part = dt.build("mlp", shape=(4,), hidden=(8,))
    found = rank({"a": part}, task, by="ntk-loo", at="hidden1")
    assert found.best.score > 0.9
    over = rank_over(nets(2, 32), [DIGITS], by="ntk-loo", at="hidden1", network_samples=40)
    assert over.by == "ntk-loo"
    assert over.measure == ""  # not what a frozen head is expected to reach
    for place in over.places:
        scored = next(p.score for p in over.rankings[0] if p.part == place.part)
        assert place.values == (scored,)


def test_pairs_and_hopeless_parts_are_refused():
    with pytest.raises(SettingsError, match="at least 2"):
        rank(nets(4), DIGITS, by="ntk-loo", network_samples=1)
    normed = dt.build("lenet5", channels=1, size=8, norm="batch")
    batch = normed.changed(module=with_batch_statistics(normed.module))
    pixels = dt.adopt(nn.Flatten(), example=torch.zeros(2, 1, 8, 8))
    plain = nets(4)["4 wide"]
    found = rank(
        {"batch": batch, "pixels": pixels, "plain": plain}, DIGITS, by="ntk-loo", samples=40
    )
    assert [place.part for place in found] == ["plain"]
    why = {out.part: out.why for out in found.left_out}
    assert "recalibrate" in why["batch"]
    assert "nothing to fine-tune" in why["pixels"]


def test_a_bad_number_of_outputs_is_refused():
    part = dt.build("mlp", shape=(4,))
    with pytest.raises(SettingsError, match="outputs"):
        tangent_kernel(part, torch.rand(3, 4), outputs=0)
    with pytest.raises(ContractError):
        tangent_kernel(part, torch.rand(3, 5))
    with pytest.raises(TaskError):
        tangent_kernel(part, torch.rand(0, 4))


@pytest.mark.parametrize("minority", [3, 6])
def test_the_accuracy_of_unbalanced_classes_is_that_of_rows_really_left_out(minority):
    rows = np.random.default_rng(minority).normal(size=(40, 5))
    labels = (np.arange(40) < minority).astype(int)
    kernel = rows @ rows.T
    found = ntk_score(kernel, labels, "ntk-loo")
    assert found == pytest.approx(slow.loo(kernel, labels))
    assert found >= 1 - (minority + 1) / 40  # the mean alone would do as well
