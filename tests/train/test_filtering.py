"""What a filter keeps of a pool, against the definition; its words; what it refuses."""

import pytest
import torch
import torch.nn.functional as F
from references.filtering import kept, kept_by_loss

from dovetail.core.errors import FormatError, SettingsError, TrainingError
from dovetail.measure.neighbours import k_filter
from dovetail.train.filtering import Filter, losses_of


def drawn(seed, n=40, classes=3, grid=8):
    """Integer points, many of them equal and many distances tied, and their classes."""
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randint(grid, (n, 2), generator=draw).float()
    labels = torch.randint(classes, (n,), generator=draw)
    return rows + 5 * grid // 4 * (labels[:, None] == torch.arange(2)), labels


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("k", "cap", "least"), [(1, 1.0, 1), (3, 0.5, 1), (2, 0.2, 35), (2, 1, 30)]
)
def test_k_filtering_keeps_what_the_definition_says(seed, k, cap, least):
    rows, labels = drawn(seed)
    keep = Filter("features", k, cap=cap).keep(rows, labels, least=least)
    assert keep.tolist() == kept(rows.tolist(), labels.tolist(), k, cap, least)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("share", "cap", "least"), [(0.25, 1.0, 1), (0.9, 1.0, 1), (0.6, 0.3, 1)])
def test_loss_filtering_keeps_what_the_definition_says(seed, share, cap, least):
    _, labels = drawn(seed, n=20, classes=6)
    losses = torch.randint(5, (20,), generator=torch.Generator().manual_seed(seed)).float()
    keep = Filter("loss", share, cap=cap).keep(None, labels, losses, least=least)
    assert keep.tolist() == kept_by_loss(losses.tolist(), labels.tolist(), share, cap, least)


def test_without_a_cap_it_is_the_k_filter_of_the_lens():
    rows, labels = drawn(3, n=200)
    rows[labels == 2] += 6  # among the others
    whole = k_filter(rows, labels, 4)
    assert len(whole[~whole]) > 10
    assert len(labels[whole].unique()) == 3
    assert torch.equal(Filter("inputs", 4).keep(rows, labels), whole)


def test_a_capped_filter_is_one_with_a_larger_k():
    """Without ties in how deep rows lie, what a cap lets go is what a larger k lets go."""
    draw = torch.Generator().manual_seed(0)
    rows, labels = torch.rand(300, 2, generator=draw), torch.arange(300) % 2
    rows[labels == 1, 0] += 0.7
    larger = k_filter(rows, labels, 20)
    cap = int((~larger).sum()) / 300 + 1e-9
    assert torch.equal(Filter("features", 5, cap=cap).keep(rows, labels), larger)


def test_the_order_of_the_rows_does_not_matter():
    draw = torch.Generator().manual_seed(1)
    rows, labels = torch.rand(150, 3, generator=draw), torch.arange(150) % 3
    rows += 0.8 * F.one_hot(labels)
    order = torch.randperm(150, generator=draw)
    chosen = Filter("features", 3, cap=0.3)
    assert torch.equal(chosen.keep(rows, labels)[order], chosen.keep(rows[order], labels[order]))


@pytest.mark.parametrize("cap", [0.1, 0.6, 1.0])
def test_of_one_class_at_least_a_row_stays(cap):
    keep = Filter("features", 2, cap=cap).keep(torch.rand(20, 2), torch.zeros(20).long())
    assert int((~keep).sum()) == min(int(cap * 20), 19)


def test_no_class_vanishes_however_far_away_it_lies():
    rows = torch.cat([torch.rand(10, 1), 100 + torch.rand(10, 1)])
    labels = torch.arange(20) // 10
    for chosen in (Filter("inputs", 3), Filter("loss", 0.9)):
        keep = chosen.keep(rows, labels, torch.arange(20.0))
        assert set(labels[keep].tolist()) == {0, 1}
    assert int(Filter("inputs", 3).keep(rows, labels).sum()) == 2


@pytest.mark.parametrize("n", [1, 3])
def test_too_few_rows_for_k_are_all_kept(n):
    assert Filter("features", 3).keep(torch.rand(n, 2), torch.zeros(n).long()).all()


def test_so_many_rows_as_a_batch_needs_remain():
    rows, labels = torch.rand(30, 1), torch.zeros(30).long()
    assert int(Filter("inputs", 1).keep(rows, labels, least=12).sum()) == 12
    assert int(Filter("inputs", 1).keep(rows, labels, least=99).sum()) == 30
    assert int(Filter("loss", 0.9).keep(None, labels, rows[:, 0], least=12).sum()) == 12


def test_numbers_to_predict_have_no_class_to_protect():
    keep = Filter("loss", 0.5).keep(None, torch.tensor([0.5, 1.5, 2.5, 3.5]), [4.0, 3.0, 2.0, 1.0])
    assert keep.tolist() == [True, True, False, False]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_features_and_losses_that_are_no_numbers_are_refused(value):
    rows, labels = torch.rand(6, 2), torch.arange(6) % 2
    rows[4, 1] = value
    with pytest.raises(TrainingError, match="features that rows are filtered by hold nan or inf"):
        Filter("features", 1).keep(rows, labels)
    with pytest.raises(TrainingError, match="losses that rows are filtered by hold nan or inf"):
        Filter("loss", 0.5).keep(rows, labels, rows[:, 1])


def test_maps_are_averaged_over_positions_but_inputs_never():
    maps, labels = torch.rand(40, 3, 4, 4), torch.arange(40) % 2
    maps[:, 0] += labels[:, None, None]
    means = Filter("features", 2).keep(maps.mean((2, 3), dtype=torch.float64), labels)
    assert torch.equal(Filter("features", 2).keep(maps, labels), means)
    flat = Filter("features", 2).keep(maps.flatten(1), labels)
    assert torch.equal(Filter("features", 2, pooling="flatten").keep(maps, labels), flat)
    assert torch.equal(Filter("inputs", 2).keep(maps, labels), flat)


@pytest.mark.parametrize(
    "words",
    [
        "inputs:10",
        "features:10",
        "features:3,cap:0.25,after:30,pool:512,pooling:flatten",
        "loss:0.25",
    ],
)
def test_words_are_read_and_written(words):
    chosen = Filter.parse(words)
    assert str(chosen) == words
    assert Filter.from_plain(chosen.to_plain(), "here") == chosen


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("", "written as inputs:10"),
        ("features", "written as inputs:10"),
        ("losses:0.5", "did you mean loss"),
        ("features:ten", "'ten' is not a number"),
        ("features:2.5", "number of neighbours"),
        ("inputs:0", "number of neighbours"),
        ("loss:1", "share between 0 and 1"),
        ("loss:25", "share between 0 and 1"),
        ("loss:0.2,cap:0", "cap is a share"),
        ("inputs:3,after:2", "before training"),
        ("loss:0.2,after:-1", "from 0"),
        ("loss:0.2,after:1.5", "'1.5' is not a number"),
        ("loss:0.2,pool:1", "at least 2"),
        ("loss:0.2,warmup:3", "unknown word 'warmup'"),
        ("features:2,pooling:max", "unknown pooling 'max'"),
        ("features:nan", "number of neighbours"),
    ],
)
def test_words_that_say_nothing_are_refused(words, reason):
    with pytest.raises(SettingsError, match=reason):
        Filter.parse(words)
    with pytest.raises(FormatError):
        Filter.from_plain(words, "a file")


def test_the_warm_up_is_a_tenth_of_the_epochs():
    chosen = Filter.parse("features:10")
    assert [chosen.within(epochs).after for epochs in (300, 10, 3)] == [30, 1, 1]
    assert Filter.parse("loss:0.5,after:0").within(300).after == 0
    with pytest.raises(SettingsError, match="within"):
        chosen.active(3)
    assert not Filter.parse("inputs:10").within(9).active(5)


def own(outputs, targets):
    """A loss that cannot be computed for all examples at once."""
    return (outputs - 1).square().mean() if float(targets[0]) > 0 else outputs.abs().mean()


@pytest.mark.parametrize("loss", [F.cross_entropy, F.multi_margin_loss, own])
def test_the_loss_of_each_example_is_that_of_a_batch_of_one(loss):
    outputs, targets = torch.randn(7, 3), torch.arange(7) % 3
    one_by_one = [loss(outputs[i : i + 1], targets[i : i + 1]) for i in range(7)]
    assert torch.allclose(losses_of(loss, outputs, targets), torch.stack(one_by_one))
