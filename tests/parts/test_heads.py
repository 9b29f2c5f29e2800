"""Heads made from heads: what is kept is kept to the bit, what is new is new."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dovetail.core.errors import ContractError, RecipeError
from dovetail.parts.contract import Contract, Port
from dovetail.parts.cutting import cut
from dovetail.parts.heads import (
    copy_by_class,
    extend_head,
    fresh_head,
    head_like,
    with_temperature,
)
from dovetail.parts.joining import adapter, join
from dovetail.parts.part import Part, build, from_pretrained


def named(head, classes):
    return head.changed(contract=replace(head.contract, classes=tuple(classes)))


@pytest.fixture
def net():
    return build("mlp", shape=(4,), hidden=(8, 8), classes=3, norm="batch")


@pytest.fixture
def head(net):
    return named(cut(net, at="hidden1")[1], ("ant", "bee", "cat"))


def foreign(*layers, classes):
    """A head that nothing can rebuild."""
    contract = Contract((Port((8,), space="a/1"),), (Port((len(classes),)),), classes=classes)
    return Part(nn.Sequential(*layers), contract)


def test_a_fresh_head_is_drawn_from_its_seed_and_belongs_to_no_space(net):
    before = net.digest
    one, same, other = (fresh_head(net, "hidden1", 5, seed=seed) for seed in (0, 0, 1))
    assert one.digest == same.digest != other.digest
    assert net.digest == before
    assert one.contract.gives[0].shape == (5,)
    assert one.contract.takes[0].space is None
    assert one(torch.rand(3, 8)).shape == (3, 5)


def test_a_fresh_head_takes_names_and_can_be_saved(net, tmp_path):
    head = fresh_head(net, "hidden1", ["no", "yes"])
    assert head.contract.classes == ("no", "yes")
    back = from_pretrained(head.save_pretrained(tmp_path / "head"))
    assert back.digest == head.digest


def test_a_head_behind_an_adapter_is_drawn_anew_with_its_adapter(head):
    port = Port((6,))
    entrance = Part(nn.Identity(), Contract((port,), (port,)))
    adapted = join(adapter(entrance, head), head, force=True)
    made = head_like(adapted, 7, seed=3)
    assert made(torch.rand(2, 6)).shape == (2, 7)
    assert made.described == adapted.described
    old, new = (part.module.state_dict() for part in (adapted, made))
    drawn = [name for name, tensor in old.items() if tensor.ndim == 2]
    assert len(drawn) == 3
    assert not any(
        old[name].shape == new[name].shape and torch.equal(old[name], new[name]) for name in drawn
    )


@settings(max_examples=10, deadline=None)
@given(
    olds=st.integers(1, 5),
    news=st.integers(1, 4),
    seed=st.integers(0, 3),
    known=st.booleans(),
)
def test_old_outputs_stay_to_the_bit(olds, news, seed, known):
    if known:
        net = build("mlp", shape=(4,), hidden=(8, 8), classes=olds)
        head = named(cut(net, at="hidden1")[1], "abcde"[:olds])
    else:
        layers = nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, olds)
        head = foreign(*layers, classes=tuple("abcde"[:olds]))
    wider = extend_head(head, list("vwxyz"[:news]), seed=seed)
    x = torch.rand(7, 8)
    with torch.no_grad():
        before, after = head(x), wider(x)
    assert after.shape == (7, olds + news)
    # a product of other width may be summed in another order, so rows of weights are compared
    torch.testing.assert_close(after[:, :olds], before)
    mine, theirs = list(head.module.parameters()), list(wider.module.parameters())
    for old, new in zip(mine[:-2], theirs[:-2], strict=True):
        assert torch.equal(old, new)
    for old, new in zip(mine[-2:], theirs[-2:], strict=True):
        assert torch.equal(old, new[:olds])


def test_a_wider_head_keeps_space_statistics_and_its_parent(head):
    for module in head.module.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean += 3.0
    before = head.digest
    wider = extend_head(head, ["dog"])
    assert head.digest == before
    assert wider.origin.parents == (before,)
    assert wider.contract.takes == head.contract.takes
    assert wider.contract.classes == ("ant", "bee", "cat", "dog")
    moved = [m.running_mean for m in wider.module.modules() if isinstance(m, nn.BatchNorm1d)]
    assert moved
    assert all(bool((mean == 3.0).all()) for mean in moved)


def test_new_classes_are_drawn_from_the_seed(head):
    one, same, other = (extend_head(head, ["dog"], seed=seed) for seed in (0, 0, 1))
    assert one.digest == same.digest != other.digest


def test_rows_go_by_the_names_of_classes(head):
    turned = head_like(head, ("cat", "emu", "ant"), seed=5)
    fresh = {name: tensor.clone() for name, tensor in turned.module.state_dict().items()}
    state = copy_by_class(head, turned)
    given = head.module.state_dict()
    for name in ("head.weight", "head.bias"):
        assert torch.equal(state[name][0], given[name][2])
        assert torch.equal(state[name][1], fresh[name][1])
        assert torch.equal(state[name][2], given[name][0])
    assert all(torch.equal(state[n], given[n]) for n in given if not n.startswith("head."))


class OutputFirst(nn.Module):
    """Layers that were not written down in the order in which they run."""

    def __init__(self, outputs):
        super().__init__()
        self.out = nn.Linear(8, outputs)
        self.hidden = nn.Linear(8, 8)

    def forward(self, x):
        return self.out(self.hidden(x).relu())


def test_the_output_layer_is_not_the_last_that_was_written_down():
    head = foreign(OutputFirst(3), classes=("a", "b", "c"))
    x = torch.rand(2, 8)
    wider = extend_head(head, ["d"])
    assert wider(x).shape == (2, 4)
    torch.testing.assert_close(wider(x)[:, :3], head(x))


@pytest.mark.parametrize(
    ("classes", "says"),
    [
        ("dog", "lists the names"),
        ([], "lists the names"),
        (["bee"], "knows the class 'bee' already"),
        (["dog", "dog"], "named twice"),
    ],
)
def test_classes_that_cannot_be_new(head, classes, says):
    with pytest.raises(ContractError, match=says):
        extend_head(head, classes)


def test_heads_that_cannot_be_changed(head):
    with pytest.raises(ContractError, match="does not say which classes"):
        extend_head(head.changed(contract=replace(head.contract, classes=None)), ["dog"])
    with pytest.raises(ContractError, match="no dense or convolutional layer"):
        head_like(foreign(nn.ReLU(), classes=("a", "b")), 3)
    with pytest.raises(RecipeError, match="no dense layer"):
        head_like(foreign(nn.Conv2d(8, 2, 3), classes=("a", "b")), 3)
    with pytest.raises(ContractError, match="at least one number"):
        head_like(head, 0)
    with pytest.raises(ContractError, match="not of one architecture"):
        copy_by_class(head, foreign(nn.Linear(8, 3), classes=("ant", "bee", "cat")))


def test_a_temperature_goes_into_the_last_weights_or_is_refused():
    logits = foreign(nn.Linear(8, 2), classes=("a", "b"))
    x = torch.randn(3, 8)
    torch.testing.assert_close(with_temperature(logits, 4.0)(x), logits(x) / 4)
    bent = foreign(nn.Linear(8, 2), nn.ReLU(), classes=("a", "b"))
    with pytest.raises(ContractError, match="ends in relu"):
        with_temperature(bent, 4.0)
