"""What it means that two halves are a network: said once, used by every cutting test."""

from __future__ import annotations

import copy

import torch


def flags_of(module):
    return {name: child.training for name, child in module.named_modules(remove_duplicate=False)}


def values_of(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same_values(before, after):
    return before.keys() == after.keys() and all(torch.equal(before[n], after[n]) for n in before)


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


def outputs(module, *inputs, train=False, seed=7):
    """What a deep copy of the module gives in one mode, under one seed."""
    module = copy.deepcopy(module).train(train)
    torch.manual_seed(seed)
    with torch.no_grad():
        return as_tuple(module(*(x.clone() for x in inputs)))


def one_after_the_other(front, back, *inputs, train=False, seed=7):
    """What the halves give, one after the other, in one mode, under one seed."""
    front, back = copy.deepcopy(front).train(train), copy.deepcopy(back).train(train)
    torch.manual_seed(seed)
    with torch.no_grad():
        return as_tuple(back(*as_tuple(front(*(x.clone() for x in inputs)))))


def assert_same(found, expected):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


def truth(model, example):
    """What the whole network gives in evaluation and in training mode."""
    return {train: outputs(model, example, train=train) for train in (False, True)}


def assert_halves(model, front, back, example, expected=None):
    """Front and back compute what the model computes, and hold what it holds, between them."""
    for train, given in (expected or truth(model, example)).items():
        assert_same(one_after_the_other(front, back, example, train=train), given)
    whole, first, second = (module.state_dict() for module in (model, front, back))
    assert not set(first) & set(second)
    assert set(first) | set(second) == set(whole)
    for name, tensor in {**first, **second}.items():
        assert tensor.data_ptr() == whole[name].data_ptr()
