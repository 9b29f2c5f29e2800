"""How many bits: the three rules, and what is kept exactly."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from references import packing as reference

from dovetail.core.errors import SettingsError, TaskError
from dovetail.pack import compress, describe
from dovetail.pack.quantise import low_and_high
from dovetail.pack.rules import Rules, entropy, sampled_entropy


def weights(count=4000, seed=0):
    return torch.randn(count // 40, 40, generator=torch.Generator().manual_seed(seed)).double()


def bits_of(state, **settings):
    return {t.name: t.bits for t in describe(compress(state, **settings)).tensors}


def test_entropy_is_scipys():
    counts = np.random.default_rng(0).integers(0, 50, 40)
    assert entropy(counts) == pytest.approx(scipy.stats.entropy(counts, base=2))
    assert entropy(np.zeros(4)) == 0
    assert math.copysign(1, entropy(np.array([3]))) == 1


@pytest.mark.parametrize("probe_bits", [2, 4, 6])
@pytest.mark.parametrize("extra_bits", [0, 3, 6])
def test_the_entropy_rule_is_the_references(probe_bits, extra_bits):
    w = weights()
    wanted = reference.bits_by_entropy(w.flatten().tolist(), probe_bits, extra_bits)
    found = bits_of({"w": w}, extra_bits=extra_bits, probe_bits=probe_bits, sample=1.0)
    assert found == {"w": min(wanted, 16)}


def test_three_percent_estimate_the_entropy_of_all():
    w = weights(400_000)
    low, high = low_and_high(w.reshape(1, -1))
    of_all = sampled_entropy(w.reshape(1, -1), low, high, 4)
    draw = torch.Generator().manual_seed(0)
    of_some = sampled_entropy(w.reshape(1, -1), low, high, 4, 0.03, draw)
    assert of_some == pytest.approx(of_all, abs=0.05)
    assert of_some != of_all


def test_the_gradient_rule_is_the_references():
    w, g = weights(), weights(seed=1) * 40
    wanted = reference.bits_by_gradient(g.flatten().tolist(), 3)
    size = float(g.square().mean().sqrt())
    assert bits_of({"w": w}, extra_bits=3, gradients={"w": g}) == {"w": wanted}
    assert bits_of({"w": w}, extra_bits=3, gradients={"w": size}) == {"w": wanted}
    assert bits_of({"w": w}, extra_bits=3, gradients={"w": 0.0}) == {"w": 3}


def test_fixed_bits_for_all_or_by_name():
    state = {"a": weights(), "b": weights(seed=1), "c": torch.ones(3) * torch.arange(3)}
    assert bits_of(state, bits=5) == {"a": 5, "b": 5, "c": None}
    by_entropy = bits_of(state)["b"]
    assert bits_of(state, bits={"a": 3, "c": 2}) == {"a": 3, "b": by_entropy, "c": 2}


def test_what_is_kept_exactly():
    state = {
        "matrix": torch.randn(20, 20),
        "small": torch.randn(5, 5),
        "vector": torch.randn(5000),
        "long": torch.randn(70_000),
        "count": torch.arange(400).reshape(20, 20),
        "mask": torch.rand(20, 20) > 0.5,
        "complex": torch.randn(20, 20, dtype=torch.complex64),
        "empty": torch.randn(0, 4),
        "equal": torch.full((20, 20), 3.0),
    }
    exact = {name for name, bits in bits_of(state).items() if bits is None}
    assert exact == {"small", "vector", "count", "mask", "complex", "empty"}
    assert bits_of(state)["equal"] == 0
    assert bits_of(state, lossless=["mat*", "long"])["matrix"] is None
    assert bits_of(state, smallest=401)["matrix"] is None


def test_each_row_may_have_its_own_range():
    scales = torch.logspace(-3, 3, 40)[:, None]
    state = {"w": weights(8000).reshape(40, 200).float() * scales}
    one, many = (describe(compress(state, bits=6, channels=c), state) for c in (False, True))
    assert many.tensors[0].bits == one.tensors[0].bits == 6
    assert many.side > one.side
    from dovetail.pack import decompress

    for channels, least in ((False, 0.5), (True, 0.0)):
        back = decompress(compress(state, bits=6, channels=channels))["w"]
        first = float((back[0] - state["w"][0]).norm() / state["w"][0].norm())
        assert first > least if not channels else first < 0.1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"extra_bits": -1}, "extra_bits"),
        ({"extra_bits": 2.5}, "extra_bits"),
        ({"probe_bits": 0}, "probe_bits"),
        ({"sample": 0.0}, "sample"),
        ({"sample": math.nan}, "sample"),
        ({"bits": 0}, "bits"),
        ({"bits": 17}, "bits"),
        ({"bits": True}, "bits"),
        ({"bits": {"w": 40}}, r"bits\['w'\]"),
        ({"bits": {"v": 4}}, "names 'v', no such tensor"),
        ({"bits": {"count": 4}}, "kept exactly"),
        ({"gradients": {"wait": 1.0}}, "names 'wait', no such tensor"),
        ({"bits": 4, "gradients": {"w": 1.0}}, "not both"),
        ({"lossless": "w"}, "patterns"),
        ({"smallest": -1}, "smallest"),
    ],
)
def test_settings_that_cannot_be(settings, says):
    state = {"w": weights(), "count": torch.arange(4)}
    with pytest.raises(SettingsError, match=says):
        compress(state, **settings)


@pytest.mark.parametrize("size", [math.nan, math.inf, -1.0, torch.tensor([math.nan])])
def test_gradients_that_are_no_numbers(size):
    with pytest.raises(TaskError, match="gradient of 'w'"):
        compress({"w": weights()}, gradients={"w": size})


def test_the_sample_follows_the_seed_and_the_name():
    first = [Rules(seed=seed).bits_for("w", weights(), *low_and_high(weights())) for seed in (0, 0)]
    assert first[0] == first[1]


def test_numbers_of_numpy_are_taken():
    state = {"w": torch.randn(40, 50, generator=torch.Generator().manual_seed(0))}
    plain = compress(state, 5, 4, 0.125, channels=True, seed=1)
    numpys = compress(
        state, np.int8(5), np.int64(4), np.float32(0.125), channels=np.bool_(True), seed=np.int64(1)
    )
    assert numpys == plain
    assert compress(state, bits={"w": np.int64(3)}) == compress(state, bits={"w": 3})


@pytest.mark.parametrize("wrong", [{"seed": 1.5}, {"seed": "1"}, {"sample": "all"}])
def test_what_is_no_number_is_refused(wrong):
    with pytest.raises(SettingsError):
        compress({"w": torch.zeros(3)}, **wrong)
