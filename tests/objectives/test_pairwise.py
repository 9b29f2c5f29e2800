"""The eight objectives against loops over pairs, fixed vectors, and what must hold of each."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references.pairwise import pairwise_by_pairs, relation_of_labels, relation_of_masks

from dovetail.core.errors import DovetailError, SettingsError, TaskError
from dovetail.objectives import KINDS, MeanKernel, Pairwise, mean_kernel, relations_of_labels
from dovetail.testing import CheckFailed, check_objective

VECTORS = json.loads((Path(__file__).parents[1] / "references/ranking_vectors.json").read_text())
SCALE_FREE = ("al-neo", "utal-neo")
BOTH = [
    (kind, activation)
    for activation in ("relu", "tanh")
    for kind in KINDS
    if not (activation == "relu" and kind in SCALE_FREE)
]
every = pytest.mark.parametrize(("kind", "activation"), BOTH)
seeds = st.integers(0, 2**31)


def drawn(seed, n, d, activation, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    features = torch.randn(n, d, generator=draw, dtype=torch.float64)
    features = features.relu() if activation == "relu" else features.tanh()
    return features.to(dtype)


def labels_of(seed, n, classes):
    """Any ids, at least two samples of the first class and one of another."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=draw)
    labels[:3] = torch.tensor([0, 0, 1])
    return torch.tensor([-5, 70, 3, 12, 9])[labels]


def masks_of(seed, n):
    """Some pairs alike, some different, each in one triangle only; not transitive."""
    draw = torch.Generator().manual_seed(seed)
    said = torch.randint(3, (n, n), generator=draw)  # 0 is nothing
    said[0, 1], said[1, 2], said[0, 2] = 1, 1, 2
    swapped = torch.rand(n, n, generator=draw) < 0.5
    masks = torch.zeros(2, n, n, dtype=torch.bool)
    for i in range(n):
        for j in range(i + 1, n):
            if said[i, j]:
                masks[(said[i, j] - 1, j, i) if swapped[i, j] else (said[i, j] - 1, i, j)] = True
    return masks[0], masks[1]


# Against the loops --------------------------------------------------------------------------------


@every
@given(seed=seeds, n=st.integers(3, 9), d=st.integers(1, 5), classes=st.integers(2, 5))
@settings(deadline=None, max_examples=15)
def test_labels_give_the_sum_over_pairs(kind, activation, seed, n, d, classes):
    features, labels = drawn(seed, n, d, activation), labels_of(seed, n, classes)
    objective = Pairwise(kind, activation)
    expected = pairwise_by_pairs(
        kind, features.tolist(), relation_of_labels(labels.tolist()), objective.beta
    )
    assert objective(features, labels).item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@every
@given(seed=seeds, n=st.integers(3, 9), d=st.integers(2, 5))
@settings(deadline=None, max_examples=15)
def test_masks_give_the_sum_over_known_pairs(kind, activation, seed, n, d):
    features, (same, different) = drawn(seed, n, d, activation), masks_of(seed, n)
    objective = Pairwise(kind, activation)
    relation = relation_of_masks(same.tolist(), different.tolist())
    expected = pairwise_by_pairs(kind, features.tolist(), relation, objective.beta)
    found = objective(features, same=same, different=different)
    assert found.item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@every
def test_masks_that_say_everything_are_labels(kind, activation):
    features, labels = drawn(0, 8, 4, activation), labels_of(0, 8, 3)
    relations = relations_of_labels(labels)
    objective = Pairwise(kind, activation)
    found = objective(features, same=relations.same, different=relations.different)
    assert torch.equal(found, objective(features, labels))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_the_vectors(kind, activation):
    expected = VECTORS["expected"]["proxies"][f"{activation}_unit"]
    name = kind.upper().replace("-", "_")
    if name not in expected:
        assert kind in SCALE_FREE
        return
    features = getattr(torch.tensor(VECTORS["inputs"]["F"], dtype=torch.float64), activation)()
    found = Pairwise(kind, activation)(features, torch.tensor(VECTORS["inputs"]["y"]))
    assert found.item() == pytest.approx(expected[name], rel=1e-9)


# Gradients ----------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("weak", [False, True], ids=["labels", "masks"])
def test_gradients(kind, activation, weak):
    features = (drawn(3, 6, 3, activation) + 0.1).requires_grad_()  # at a row of zeros it jumps
    same, different = masks_of(3, 6)
    known = {"same": same, "different": different} if weak else {"labels": labels_of(3, 6, 3)}
    objective = Pairwise(kind, activation)
    assert torch.autograd.gradcheck(lambda x: objective(x, **known), (features,))


@every
@pytest.mark.parametrize("silent", [slice(0, 1), slice(None)], ids=["one row", "all rows"])
def test_rows_of_zeros_give_numbers(kind, activation, silent):
    features = drawn(4, 6, 3, activation, torch.float32) + 0.1
    features[silent] = 0
    features.requires_grad_()
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    value = Pairwise(kind, activation)(features, labels)
    value.backward()
    expected = 0.0 if silent == slice(None) and kind.startswith(("al", "utal")) else None
    assert value.isfinite()
    assert features.grad.isfinite().all()
    assert not features.grad[silent].any()
    assert expected is None or value.item() == expected


@every
def test_ascent_separates(kind, activation):
    """What the objective is for: the mean kernel of different pairs falls under gradient ascent."""
    raw = torch.randn(12, 6, generator=torch.Generator().manual_seed(5)).requires_grad_()
    labels = torch.arange(12) % 2
    features = torch.tanh if activation == "tanh" else torch.relu
    objective = Pairwise(kind, activation)
    before = mean_kernel(features(raw), labels)
    optimiser = torch.optim.Adam([raw], lr=0.05)
    for _ in range(60):
        optimiser.zero_grad()
        (-objective(features(raw), labels)).backward()
        optimiser.step()
    after = mean_kernel(features(raw), labels)
    assert after.different < before.different - 0.1


# Values one can know ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["al", "utal", "nmse", "nmse-neo", "cts-neo"])
def test_the_ideal_after_relu_is_the_maximum(kind):
    labels = torch.arange(9) % 3
    ideal = Pairwise(kind)(torch.eye(3)[labels], labels).item()
    assert ideal == pytest.approx({"nmse": 0, "nmse-neo": 0, "cts-neo": -1}.get(kind, 1.0))


@pytest.mark.parametrize("kind", KINDS)
def test_the_ideal_of_two_classes_after_tanh_is_the_maximum(kind):
    labels = torch.arange(8) % 2
    ideal = Pairwise(kind, "tanh")(torch.tensor([[1.0], [-1.0]])[labels], labels).item()
    same, different = 24 * math.e, 32 / math.e
    known = {"nmse": 0.0, "nmse-neo": 0.0, "cts-neo": -1 / math.e, "cts": same / (same + different)}
    assert ideal == pytest.approx(known.get(kind, 1.0), abs=1e-6)


@pytest.mark.parametrize("classes", [3, 5])
def test_the_best_common_value_of_many_classes_is_the_simplex(classes):
    labels = torch.arange(2 * classes) % classes
    simplex = torch.eye(classes) - 1 / classes
    found = mean_kernel(simplex[labels], labels)
    assert found.same == pytest.approx(1.0)
    assert found.different == pytest.approx(-1 / (classes - 1))


def test_a_scale_free_objective_hides_the_distance():
    """A common value of -0.1 gives a perfect AL-NEO: hence the mean kernel."""
    one, other = torch.tensor([1.0, 0.0]), torch.tensor([-0.1, math.sqrt(0.99)])
    features, labels = torch.stack([one, one, other, other]), torch.tensor([0, 0, 1, 1])
    assert Pairwise("al-neo", "tanh")(features, labels).item() == pytest.approx(1.0)
    assert mean_kernel(features, labels) == pytest.approx((1.0, -0.1), abs=1e-6)


def test_utal_neo_is_al_neo():
    features, labels = drawn(6, 9, 4, "tanh"), labels_of(6, 9, 4)
    one, other = (Pairwise(kind, "tanh")(features, labels) for kind in SCALE_FREE)
    assert torch.equal(one, other)


# Properties ---------------------------------------------------------------------------------------


@every
@given(seed=seeds, scale=st.floats(1e-12, 1e12))
@settings(deadline=None, max_examples=8)
def test_the_length_of_a_row_does_not_matter(kind, activation, seed, scale):
    features, labels = drawn(seed, 7, 4, activation, torch.float32), labels_of(seed, 7, 3)
    stretched = features.clone()
    stretched[2] *= scale
    objective = Pairwise(kind, activation)
    torch.testing.assert_close(
        objective(stretched, labels), objective(features, labels), rtol=1e-4, atol=1e-5
    )


@every
@given(seed=seeds, order=st.permutations(range(7)))
@settings(deadline=None, max_examples=8)
def test_order_and_names_do_not_matter(kind, activation, seed, order):
    features, labels = drawn(seed, 7, 4, activation), labels_of(seed, 7, 4)
    objective = Pairwise(kind, activation)
    found = objective(features[order], 1000 - labels[order])
    torch.testing.assert_close(found, objective(features, labels), rtol=1e-9, atol=1e-12)


@every
@given(seed=seeds, n=st.integers(3, 12), d=st.integers(1, 6))
@settings(deadline=None, max_examples=8)
def test_values_stay_in_their_range(kind, activation, seed, n, d):
    value = Pairwise(kind, activation)(drawn(seed, n, d, activation), labels_of(seed, n, 4)).item()
    beta = 0 if activation == "relu" else -1
    least, most = {
        "al": (-1, 1),
        "utal": (-1, 1),
        "cts": (0, 1),
        "nmse": (-((1 - beta) ** 2), 0),
        "cts-neo": (-math.e, -math.exp(beta)),
        "nmse-neo": (-((1 - beta) ** 2), 0),
    }.get(kind, (-1, 1))
    assert least - 1e-9 <= value <= most + 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_check_objective_passes(kind):
    if kind in SCALE_FREE:  # blind to a common scale: shuffled labels can look better to them
        with pytest.raises(CheckFailed, match="well-separated classes"):
            check_objective(Pairwise(kind, "tanh"), higher_is_better=True)
        return
    check_objective(Pairwise(kind), higher_is_better=True)
    check_objective(Pairwise(kind, "tanh"), higher_is_better=True)


@every
def test_maps_are_flattened_and_types_kept(kind, activation):
    objective, labels = Pairwise(kind, activation), labels_of(7, 8, 3)
    rows = drawn(7, 8, 12, activation)
    maps = rows.reshape(8, 3, 2, 2)
    assert torch.equal(objective(maps, labels), objective(rows, labels))
    assert objective(maps.float(), labels).dtype == torch.float32
    assert objective(maps.bfloat16(), labels).dtype == torch.float32
    assert objective(rows, labels.int()) == objective(rows, labels)


def test_autocast_leaves_the_kernel_in_full_precision():
    features, labels = drawn(8, 8, 64, "tanh", torch.float32), labels_of(8, 8, 3)
    objective = Pairwise("al", "tanh")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = objective(features, labels)
    assert torch.equal(found, objective(features, labels))


def test_large_half_precision_batches_do_not_overflow():
    features, labels = torch.ones(400, 2, dtype=torch.float16), torch.arange(400) % 2
    assert Pairwise("cts")(features, labels).item() == pytest.approx(199 / 399, rel=1e-4)


# Refusals -----------------------------------------------------------------------------------------

ONE_CLASS, ALL_APART = torch.zeros(4, dtype=torch.long), torch.arange(4)
NEEDS_DIFFERENT = ("cts", "al-neo", "utal-neo", "cts-neo", "nmse-neo")


@every
def test_a_batch_of_one_class(kind, activation):
    features, objective = drawn(9, 4, 3, activation), Pairwise(kind, activation)
    if kind in NEEDS_DIFFERENT:
        with pytest.raises(TaskError, match=r"known to differ.*two or more classes"):
            objective(features, ONE_CLASS)
    else:
        assert objective(features, ONE_CLASS).isfinite()


@every
def test_a_batch_without_a_class_twice(kind, activation):
    features, objective = drawn(9, 4, 3, activation), Pairwise(kind, activation)
    if kind == "cts" or (kind, activation) == ("utal", "relu"):
        with pytest.raises(TaskError, match=r"known to be alike.*nmse-neo"):
            objective(features, ALL_APART)
    else:
        assert objective(features, ALL_APART).isfinite()


@every
def test_one_sample(kind, activation):
    objective = Pairwise(kind, activation)
    if kind in ("al", "nmse"):
        assert objective(torch.ones(1, 2), torch.zeros(1).long()).isfinite()
    else:
        with pytest.raises(TaskError, match="needs such a pair"):
            objective(torch.ones(1, 2), torch.zeros(1).long())


def test_only_one_mask_is_needed():
    features = drawn(10, 4, 3, "tanh")
    different = torch.zeros(4, 4, dtype=torch.bool)
    different[0, 3] = True
    found = Pairwise("nmse-neo", "tanh")(features, different=different)
    k = torch.cosine_similarity(features[0], features[3], dim=0)
    assert found.item() == pytest.approx(-((k + 1) ** 2).item())
    assert mean_kernel(features, different=different) == MeanKernel(None, pytest.approx(k.item()))


@pytest.mark.parametrize("kind", SCALE_FREE)
def test_alignment_with_zero_is_refused_at_once(kind):
    with pytest.raises(SettingsError, match=r"undefined after 'sigmoid'.*'nmse-neo' or 'cts-neo'"):
        Pairwise(kind, "sigmoid")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("all",), "unknown pairwise objective 'all'; did you mean al"),
        (("al", "rellu"), "unknown activation 'rellu'; did you mean relu"),
    ],
)
def test_unknown_names_are_refused(arguments, says):
    with pytest.raises(SettingsError, match=says):
        Pairwise(*arguments)


@pytest.mark.parametrize(
    ("features", "known", "says"),
    [
        (torch.ones(4, 2).long(), {"labels": ALL_APART}, "floating-point numbers, got torch.int64"),
        ([[1.0]], {"labels": ALL_APART}, "floating-point numbers, got list"),
        (torch.ones(()), {"labels": ALL_APART}, "a row a sample"),
        (torch.ones(0, 3), {"labels": ALL_APART[:0]}, "a row a sample"),
        (torch.ones(4, 0), {"labels": ALL_APART}, "no columns"),
        (torch.ones(3, 2), {"labels": ALL_APART}, "3 rows of features, but labels or masks for 4"),
        (torch.ones(4, 2), {}, "say which samples are alike"),
        (torch.ones(4, 2), {"labels": ALL_APART, "same": torch.eye(4) > 0}, "but not both"),
        (torch.ones(4, 2), {"labels": ALL_APART.float()}, "labels must be integers"),
    ],
)
def test_what_is_no_batch_is_refused(features, known, says):
    with pytest.raises(DovetailError, match=says):
        Pairwise("nmse")(features, **known)


def test_what_is_not_a_number_is_not_hidden():
    features = torch.ones(4, 2)
    features[1, 1] = float("nan")
    assert Pairwise("nmse")(features, ALL_APART % 2).isnan()


@pytest.mark.parametrize("size", [1e30, 1e-30])
def test_extreme_features_keep_their_direction(size):
    features, labels = drawn(11, 6, 4, "relu", torch.float32) + 0.1, torch.arange(6) % 2
    extreme = (features * size).requires_grad_()
    value = Pairwise("al")(extreme, labels)
    value.backward()
    torch.testing.assert_close(value.detach(), Pairwise("al")(features, labels))
    assert extreme.grad.isfinite().all()
