"""Statistics refuse what they cannot sum, say why, and stay as they were."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from dovetail.core.errors import DovetailError, FormatError, SettingsError, TaskError
from dovetail.ranking.scores_from_sums import KINDS
from dovetail.ranking.statistics import PairStatistics

ROWS = torch.tensor([[1.0, 0.0], [0.8, 0.6], [-1.0, 0.1], [0.0, -1.0]], dtype=torch.float64)
LABELS = torch.tensor([0, 0, 1, 1])


@pytest.mark.parametrize("count", [4, 5000])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_by_row(count, value):
    rows = torch.randn(count, 2)
    rows[3, 1] = value
    sums = PairStatistics().update(ROWS, LABELS)
    before = sums.scores(["al", "logme"])
    with pytest.raises(TaskError, match="row 3 of the features holds nan or inf"):
        sums.update(rows, torch.zeros(count, dtype=torch.int64))
    assert sums.n == 4
    assert sums.scores(["al", "logme"]) == before


@pytest.mark.parametrize(
    ("features", "targets", "says"),
    [
        (torch.ones(4), [0, 1, 0, 1], r"rows \[n, d\]"),
        (torch.ones(4, 2, 3, 3), [0, 1, 0, 1], "pool or flatten"),
        (torch.ones(4, 0), [0, 1, 0, 1], r"rows \[n, d\]"),
        (torch.ones(4, 2), [0, 1, 0], "4 rows of features, but targets for 3"),
        (torch.ones(2, 2), [0.5, math.nan], "row 1 of the targets holds nan"),
        (torch.full((2, 2), 1e80, dtype=torch.float64), [0, 1], "scale the features"),
        (np.array([["a", "b"]]), [0], "must be numbers"),
        ([[1.0], [1.0, 2.0]], [0, 1], "one length"),
        (torch.ones(2, 2, dtype=torch.complex64), [0, 1], "real numbers"),
        (torch.ones(2, 2), np.array(["cat", "dog"]), "must be numbers"),
        (torch.ones(2, 2), np.array([2**63, 0], dtype=np.uint64), "beyond"),
        (torch.ones(2, 3), [0, 1], "3 features with integer labels"),
        (torch.ones(2, 2), [0.0, 1.0], "1 numbers a row cannot be added"),
    ],
)
def test_what_cannot_be_summed(features, targets, says):
    sums = PairStatistics().update(ROWS, LABELS)
    with pytest.raises(TaskError, match=says):
        sums.update(features, targets)
    assert sums.n == 4


def test_unknown_scores_and_missing_rows():
    with pytest.raises(SettingsError, match="did you mean logme"):
        PairStatistics().update(ROWS, LABELS).score("logm")
    with pytest.raises(SettingsError, match="unknown activation"):
        PairStatistics("rellu")
    with pytest.raises(TaskError, match="no rows"):
        PairStatistics().score("al")
    with pytest.raises(TaskError, match="no rows"):
        PairStatistics().update(torch.zeros(0, 3), []).score("al")
    with pytest.raises(SettingsError, match="nmse-neo"):
        PairStatistics("relu").update(ROWS, LABELS).score("al-neo")
    with pytest.raises(SettingsError, match="per_class=True"):
        PairStatistics(per_class=False).update(ROWS, LABELS).score("nmse-neo")


def scored(features, labels, activation="tanh"):
    """Each score, or the name of its error."""
    sums = PairStatistics(activation).update(features, labels)
    found = {}
    for kind in KINDS:
        try:
            found[kind] = sums.score(kind)
            assert math.isfinite(found[kind]), kind
        except DovetailError as error:
            found[kind] = type(error).__name__
    return found


@pytest.mark.parametrize("count", [8, 600])
def test_features_that_are_all_zero(count):
    found = scored(np.zeros((count, 5)), np.arange(count) % 2)
    assert {kind: found[kind] for kind in ("al", "utal", "al-neo", "hscore", "hscore-lw")} == dict(
        zip(("al", "utal", "al-neo", "hscore", "hscore-lw"), [0.0] * 5, strict=True)
    )
    assert found["centred-al"] == found["centred-al-unit"] == "TaskError"
    assert found["gbc"] == -2.0
    assert math.isclose(found["nmse"], -1.0)


@pytest.mark.parametrize("count", [8, 600])
def test_features_that_are_constant(count):
    found = scored(np.full((count, 5), 0.1), np.arange(count) % 2)
    assert found["centred-al"] == found["centred-al-unit"] == "TaskError"
    assert found["hscore"] == pytest.approx(0, abs=1e-9)
    assert math.isclose(found["nmse"], -2.0, rel_tol=1e-12)
    assert found["gbc"] == pytest.approx(-2)


@pytest.mark.parametrize("count", [1, 8, 600])
def test_one_class(count):
    features = np.random.default_rng(0).normal(size=(count, 5))
    found = scored(features, np.full(count, 9))
    refused = {"al-neo", "utal-neo", "nmse-neo", "centred-al", "centred-al-unit", "gbc"}
    refused |= {"gbc-spherical"} | ({"utal"} if count == 1 else set())
    assert {kind for kind, value in found.items() if value == "TaskError"} == refused
    assert found["hscore"] == 0
    assert found["hscore-lw"] == pytest.approx(0, abs=1e-12)


def test_two_samples_a_class_and_one():
    features = np.random.default_rng(0).normal(size=(6, 4))
    assert not any(isinstance(v, str) for v in scored(features, [0, 0, 1, 1, 2, 2]).values())
    lonely = PairStatistics("relu").update(np.abs(features[:3]), [0, 1, 2])
    with pytest.raises(TaskError, match="no two rows of one class"):
        lonely.score("utal")


def test_rows_too_short_to_be_squared_count_as_zeros():
    rows = torch.cat([ROWS, torch.full((1, 2), 1e-200, dtype=torch.float64)])
    zeros = torch.cat([ROWS, torch.zeros(1, 2, dtype=torch.float64)])
    labels = torch.tensor([0, 0, 1, 1, 1])
    one, two = (PairStatistics("tanh").update(x, labels).scores(KINDS) for x in (rows, zeros))
    assert one == two


def test_any_container_and_any_width_of_float():
    plain = PairStatistics("tanh").update(ROWS, LABELS).scores(KINDS)
    frozen = ROWS.numpy().copy()
    frozen.flags.writeable = False
    cases = {
        "lists": (ROWS.tolist(), LABELS.tolist()),
        "read-only": (frozen, LABELS.numpy().astype(np.uint8)),
        "strided": (np.asfortranarray(ROWS.numpy())[::1], LABELS.int()),
        "big-endian": (ROWS.numpy().astype(">f8"), LABELS.numpy().astype(">i4")),
        "booleans": (ROWS.clone().requires_grad_(), LABELS.bool()),
    }
    for name, (features, targets) in cases.items():
        assert PairStatistics("tanh").update(features, targets).scores(KINDS) == plain, name
    for count in (4, 600):
        half = torch.randn(count, 3).half()
        labels = torch.arange(count) % 2
        one, two = (
            PairStatistics("tanh").update(x, labels).scores(KINDS) for x in (half, half.double())
        )
        assert one == pytest.approx(two, rel=1e-11)


def test_inputs_are_never_changed():
    rows = 5 + 1e-3 * torch.randn(3000, 4, dtype=torch.float64)
    labels = torch.arange(3000) % 3
    kept = rows.clone(), labels.clone()
    sums = PairStatistics("tanh").update(rows, labels)
    small = PairStatistics("tanh").update(rows[:5], labels[:5])
    sums.scores(KINDS)
    assert torch.equal(rows, kept[0])
    assert torch.equal(labels, kept[1])
    rows.zero_()
    assert small.score("nmse") != PairStatistics("tanh").update(rows[:5], labels[:5]).score("nmse")


# Taking away --------------------------------------------------------------------------------------


def test_only_what_was_added_can_be_taken_away():
    sums = PairStatistics().update(ROWS, LABELS)
    with pytest.raises(TaskError, match="cannot take 5 rows from 4"):
        sums.subtract(PairStatistics().update(torch.rand(5, 2), [0] * 5))
    with pytest.raises(TaskError, match="1 of the 2 rows to take away are not among the 4"):
        sums.subtract(PairStatistics().update(torch.stack([ROWS[0], ROWS[0]]), [0, 0]))
    many = torch.randn(600, 2)
    folded = PairStatistics().update(many, torch.arange(600) % 2)
    before = folded.score("logme")
    with pytest.raises(TaskError, match="cannot take 301 rows of class 0 from 300"):
        folded.subtract(PairStatistics().update(torch.rand(301, 2), [0] * 301))
    with pytest.raises(TaskError, match="class 5 from 0"):
        folded.subtract(PairStatistics().update(torch.rand(1, 2), [5]))
    with pytest.raises(TaskError, match="not zero"):
        folded.subtract(PairStatistics().update(torch.zeros(1, 2), [0]))
    assert folded.score("logme") == before


@pytest.mark.parametrize("count", [4, 700])
def test_taking_everything_away_leaves_nothing(count):
    rows, labels = torch.randn(count, 3), torch.arange(count) % 2
    sums = PairStatistics().update(rows, labels)
    sums.subtract(PairStatistics().update(rows, labels))
    assert sums.n == 0
    assert sums.classes == ()
    assert sums.update(ROWS, LABELS).score("al") == PairStatistics().update(ROWS, LABELS).score(
        "al"
    )


def test_statistics_of_other_things_do_not_merge():
    sums = PairStatistics("relu").update(ROWS, LABELS)
    with pytest.raises(SettingsError, match="'tanh'"):
        sums.merge(PairStatistics("tanh"))
    with pytest.raises(TaskError, match="does not fit"):
        sums.merge(PairStatistics("relu").update(torch.rand(2, 3), [0, 1]))
    with pytest.raises(TaskError, match="does not fit"):
        sums.merge(PairStatistics("relu").update(ROWS, LABELS.double()))


def test_merging_with_statistics_without_second_moments_loses_them():
    sums = PairStatistics().update(torch.rand(600, 2), torch.arange(600) % 2)
    sums.merge(PairStatistics(per_class=False).update(torch.rand(600, 2), torch.arange(600) % 2))
    assert math.isfinite(sums.score("al"))
    with pytest.raises(SettingsError, match="per_class=True"):
        sums.score("nmse-neo")


# On disk ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 4, 700])
@pytest.mark.parametrize("numbers", [False, True])
def test_a_state_comes_back_as_it_was(count, numbers):
    rows = torch.randn(count, 3)
    targets = torch.randn(count, 2) if numbers else torch.arange(count) % 3
    sums = PairStatistics("tanh").update(rows, targets)
    if count == 700:
        sums.update(rows[:5], targets[:5])  # sums and rows kept beside them
    back = PairStatistics.from_state(load(save(sums.state())))
    assert repr(back) == repr(sums)
    if count:
        kinds = ("logme", "cka") if numbers else KINDS
        assert back.scores(kinds) == sums.scores(kinds)


@pytest.mark.parametrize(
    "name", list(PairStatistics().update(torch.rand(700, 3), torch.arange(700) % 3).state())
)
def test_states_that_lie_are_refused(name):
    state = PairStatistics().update(torch.rand(700, 3), torch.arange(700) % 3).state()
    without = {key: value for key, value in state.items() if key != name}
    if name != "sums.classes.second":
        with pytest.raises(FormatError):
            PairStatistics.from_state(without)
    if state[name].ndim and len(state[name]):
        with pytest.raises(DovetailError):
            PairStatistics.from_state(state | {name: torch.cat([state[name]] * 2)})
