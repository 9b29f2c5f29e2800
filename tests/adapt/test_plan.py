"""Plans against what is really allocated, and refusals that come before it is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time

import pytest
import torch
from torch import nn

from dovetail.adapt import plan as module
from dovetail.adapt.linear_model import LinearModel
from dovetail.adapt.plan import LABELS, NUMBERS, Plan, Sizes, free_memory, plan_for
from dovetail.core.errors import DovetailError, SettingsError
from dovetail.linalg.tangent import TangentFeatures

MIB, GIB = 2**20, 2**30


def made(inputs, outputs, parameters, memory, *, sample=4000, asked="auto", ways=NUMBERS):
    sizes = Sizes(inputs, outputs, parameters, sample)
    return Plan(sizes, memory, tuple(way(sizes) for way in ways.values()), asked)


@pytest.mark.parametrize(
    ("inputs", "parameters", "memory", "way"),
    [
        (500, 800_000, 8 * GIB, "function"),  # few rows
        (100_000, 3000, 8 * GIB, "parameter"),  # few parameters
        (100_000, 800_000, 8 * GIB, "cg"),  # many of both
        (2000, 3000, 8 * GIB, "function"),  # both fit: the quicker
        (9000, 300, 8 * GIB, "parameter"),
        (20_000, 800_000, 8 * GIB, "cg"),  # 24 n^2 does not fit here
        (20_000, 800_000, 16 * GIB, "function"),  # but here
    ],
)
def test_the_regimes(inputs, parameters, memory, way):
    assert made(inputs, 1, parameters, memory).method == way


def test_outputs_multiply_the_rows():
    assert made(4000, 1, 10**6, 4 * GIB).method == "function"
    assert made(4000, 10, 10**6, 8 * GIB).method == "cg"


def test_labels_have_ways_of_their_own():
    assert made(500, 10, 60_000, 4 * GIB, ways=LABELS).method == "laplace"
    assert made(60_000, 10, 60_000, 4 * GIB, ways=LABELS).method == "svi"
    assert made(500, 10, 60_000, 4 * GIB, ways=LABELS, asked="map").method == "map"


def test_nothing_fits_and_it_says_what_would():
    plan = made(100_000, 1, 800_000, 100 * MIB)
    assert "does not fit" in str(plan)
    with pytest.raises(SettingsError, match="no way of fitting") as refused:
        _ = plan.method
    said = str(refused.value)
    fewer, few = map(int, re.findall(r"at most (\d+)", said))
    assert 'params="head.*"' in said
    # What it says does fit, and no more.
    assert made(fewer, 1, 800_000, 100 * MIB).method
    assert made(100_000, 1, few, 100 * MIB).method == "parameter"
    with pytest.raises(SettingsError):
        _ = made(fewer + 1, 1, 800_000, 100 * MIB).method
    with pytest.raises(SettingsError):
        _ = made(100_000, 1, few + 1, 100 * MIB).method


def test_what_was_asked_for_and_does_not_fit_names_what_does():
    with pytest.raises(SettingsError, match=r"method='function' for 100000 .* or method='cg'"):
        _ = made(100_000, 1, 800_000, 8 * GIB, asked="function").method


def test_it_can_be_printed():
    lines = str(made(100_000, 1, 3000, 8 * GIB)).splitlines()
    assert lines[0] == "100000 inputs, 1 output, 3000 parameters; 8.0 GiB of memory"
    assert [line.split()[0] for line in lines[1:]] == ["function", "parameter", "cg"]
    assert "taken" in lines[2]
    assert all("about" in line for line in lines[1:])
    small = str(made(1, 1, 30, 8 * GIB))
    assert small.startswith("1 input, 1 output, 30 parameters; 8.0 GiB of memory")
    assert "0.0" not in small
    assert "KiB" in small
    assert "under a second" in small


def test_what_a_first_call_costs_is_no_cost_of_every_input(monkeypatch):
    calls = []
    own = TangentFeatures.factors

    def slow_at_first(self, i):
        calls.append(i)
        time.sleep(0.5 if len(calls) == 1 else 0.0)
        return own(self, i)

    monkeypatch.setattr(TangentFeatures, "factors", slow_at_first)
    plan = plan_for(LinearModel(nn.Linear(5, 2)), torch.ones(1, 5), 6, labels=True)
    assert plan.sizes.sample_seconds < 0.5 / 6


def test_features_are_kept_where_they_are_used_again():
    assert made(100_000, 1, 3000, 8 * GIB).features_memory == 0
    assert made(100_000, 1, 800_000, 8 * GIB).features_memory >= 100_000 * 4000


def test_a_plan_looks_at_the_features_of_one_input():
    net = nn.Sequential(nn.Linear(5, 20), nn.ELU(), nn.Linear(20, 3))
    plan = plan_for(LinearModel(net), torch.zeros(1, 5), 10_000, memory=10 * GIB)
    assert (plan.sizes.inputs, plan.sizes.outputs, plan.sizes.parameters) == (10_000, 3, 183)
    # What goes into each matrix and what comes back to it for each output.
    assert 4 * (5 + 3 * 20) <= plan.sizes.sample_bytes <= 4 * 2 * (5 + 3 * 20 + 3 * 20 + 3 * 3)
    assert plan.method == "parameter"
    assert plan.ways[0].seconds > plan.ways[1].seconds > 0


def test_nothing_large_is_allocated_for_a_plan(monkeypatch):
    monkeypatch.setattr(torch, "zeros", None)  # of any size: a Gram matrix begins with it
    net = nn.Linear(5, 2)
    plan = plan_for(LinearModel(net), torch.ones(1, 5), 10**9, memory=GIB, method="function")
    with pytest.raises(SettingsError, match=r"fits in 1\.0 GiB"):
        _ = plan.method


@pytest.mark.parametrize("n", [0, -1, 2.5, True, "many"])
def test_numbers_of_inputs_that_are_none(n):
    with pytest.raises(DovetailError, match="number of inputs"):
        plan_for(LinearModel(nn.Linear(2, 1)), torch.zeros(1, 2), n)


def test_other_settings_it_refuses():
    linear, x = LinearModel(nn.Linear(2, 1)), torch.zeros(1, 2)
    for memory in (0, "1GB", True, float("nan"), float("inf"), [1]):
        with pytest.raises(SettingsError, match="memory is a number of bytes"):
            plan_for(linear, x, 10, memory=memory)
    with pytest.raises(SettingsError, match="did you mean function"):
        plan_for(linear, x, 10, method="functon")
    with pytest.raises(SettingsError, match="no way"):
        plan_for(linear, x, 10, method="cg", labels=True)


def test_free_memory_without_proc(monkeypatch):
    here = free_memory()
    assert 2**20 < here < 2**50

    class Nowhere:
        def __init__(self, path):
            pass

        def __truediv__(self, name):
            return self

        def read_text(self):
            raise OSError

    monkeypatch.setattr(module, "Path", Nowhere)
    assert 2**20 < free_memory() < 2**50
    monkeypatch.delattr(module.os, "sysconf", raising=False)
    assert free_memory() == 4 * GIB


MEASURE = """
import json, sys
from pathlib import Path
import torch
from torch import nn
from dovetail.adapt.iterative import condition_iteratively
from dovetail.adapt.linear_model import LinearModel
from dovetail.adapt.parameter_space import condition_in_parameters
from dovetail.adapt.plan import plan_for
from dovetail.adapt.posterior import condition_on_functions

def peak():  # of this process alone; what getrusage calls a peak begins with its parent's
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

way, n, wide = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(5, wide), nn.ELU(), nn.Linear(wide, 10), nn.ELU(), nn.Linear(10, 1))
linear, x = LinearModel(net), torch.randn(n, 5)
plan = plan_for(linear, x[:1], n, memory=2**40, method=way)
torch.linalg.cholesky(torch.eye(600).double())
torch.linalg.svd(torch.eye(600).double())
Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
before = peak()
solve = {
    "function": condition_on_functions,
    "parameter": condition_in_parameters,
    "cg": condition_iteratively,
}[way]
noise = torch.full((n, 1), 0.1).double()
solve(linear.features(x, memory=plan.features_memory), x[:, :1].double(), noise, {}).weights
after = peak()
needs = next(way for way in plan.ways if way.method == plan.method)
print(json.dumps([needs.memory, after - before]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "n", "wide"), [("function", 5000, 200), ("parameter", 3000, 300), ("cg", 30_000, 600)]
)
def test_predicted_memory_is_within_twice_the_measured(way, n, wide):
    command = [sys.executable, "-c", MEASURE, way, str(n), str(wide)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    predicted, measured = json.loads(said.splitlines()[-1])
    assert measured / 2 < predicted < 2 * measured, (predicted / MIB, measured / MIB)
