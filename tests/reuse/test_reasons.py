"""Reasons where a contract refuses, and the order and prices of repairs: nothing is trained."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dovetail.parts.contract import Contract, Port
from dovetail.parts.part import Part
from dovetail.reuse.fit_report import Repair, best_first
from dovetail.reuse.question import reasons_against
from dovetail.reuse.repairs import price_of_training
from dovetail.tasks.task import Task
from dovetail.train.fit import Fit, Training

PORTS = st.builds(
    Port,
    shape=st.none() | st.lists(st.none() | st.integers(1, 2), max_size=3).map(tuple),
    dtype=st.sampled_from(["float32", "float64"]),
    activation=st.sampled_from(["relu", "identity"]),
    space=st.none() | st.sampled_from(["a", "b"]),
)
SEVERAL = st.lists(PORTS, min_size=1, max_size=2).map(tuple)


@settings(max_examples=60, deadline=None)
@given(SEVERAL, SEVERAL)
def test_reasons_are_given_exactly_where_the_contract_refuses(gives, takes):
    front = Part(nn.Identity(), Contract(gives=gives))
    head = Part(nn.Identity(), Contract(takes=takes))
    reasons = reasons_against(front, head)
    refuses = bool(front.contract.mismatches(head.contract))
    stops = bool(front.contract.obstacles(head.contract))
    assert any(r.weight != "mind" for r in reasons) == refuses
    assert any(r.weight == "stops" for r in reasons) == stops


FIGURES = st.none() | st.floats(0, 1)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.builds(
            Repair,
            name=st.just("x"),
            does=st.just(""),
            needs=st.just(""),
            applies=st.booleans(),
            kind=st.sampled_from(["measured", "expected"]),
            accuracy=FIGURES,
            seconds=FIGURES,
        ),
        max_size=6,
    )
)
def test_the_order_of_repairs(repairs):
    ordered = best_first(repairs)
    assert sorted(map(repr, ordered)) == sorted(map(repr, repairs))
    for one, two in pairwise(ordered):
        assert one.applies >= two.applies
        if one.applies == two.applies:
            assert (one.kind == "measured") >= (two.kind == "measured")
            if one.kind == two.kind:
                first, second = (-1 if r.accuracy is None else r.accuracy for r in (one, two))
                assert first >= second
                if first == second and two.seconds is not None:
                    assert one.seconds is not None
                    assert one.seconds <= two.seconds


def test_a_price_is_steps_times_the_faster_epoch():
    task = Task(torch.rand(1000, 2), [0, 1] * 500, split={"train": range(900), "test": [900, 901]})
    seen = []

    def train(some):
        seen.append(some)
        rows = ({"seconds": 8.0}, {"seconds": 4.0})
        return Fit((), Training(part="x", task="x", rows=rows))

    price = price_of_training(train, task, 10)
    count = task.size("train")
    assert price.seconds == pytest.approx(10 * math.ceil(count / 64) * 4.0 / 4)
    assert (seen[0].size("train"), seen[0].size("validation"), seen[0].size("test")) == (256, 0, 0)
    assert set(seen[0].indices("train").tolist()) <= set(task.indices("train").tolist())
