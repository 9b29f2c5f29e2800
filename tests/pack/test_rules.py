"""How many bits: the three rules, and what is kept exactly."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from references import packing as reference

from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.records import load_record
from dovetail.pack import compress, decompress, describe, write
from dovetail.pack.quantise import low_and_high
from dovetail.pack.rules import Rules, entropy, sampled_entropy
from dovetail.parts.part import build


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


def test_any_number_of_levels_and_bits_as_powers_of_two():
    state = {"a": weights(), "b": weights(seed=1)}

    def levels_of(**settings):
        return {t.name: t.levels for t in describe(compress(state, **settings)).tensors}

    assert levels_of(levels=23) == {"a": 23, "b": 23}
    assert levels_of(levels={"a": 3}) == {"a": 3, "b": levels_of()["b"]}
    assert levels_of(bits=5) == {"a": 32, "b": 32}
    back = decompress(compress({"w": torch.linspace(-1, 2, 900).reshape(30, 30)}, levels=23))
    assert back["w"].unique().numel() == 23
    for same in ({"bits": 5}, {"bits": {"a": 5, "b": 5}}):
        bits, levels = compress(state, **same), compress(state, levels=32)
        for name, tensor in decompress(bits).items():
            assert torch.equal(tensor, decompress(levels)[name])
    sizes = [describe(compress(state, levels=k)).tensors[0].entropy for k in range(16, 33)]
    assert sizes == sorted(sizes)


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
        ({"bits": 4, "levels": 9}, "give bits or levels, not both"),
        ({"levels": 1}, "levels"),
        ({"levels": 65_537}, "levels"),
        ({"levels": {"w": 2.5}}, r"levels\['w'\]"),
        ({"levels": {"v": 4}}, "levels names 'v', no such tensor"),
        ({"levels": {"count": 4}}, "levels names 'count'.*kept exactly"),
        ({"lossless": "w"}, "patterns"),
        ({"lossless": ["count", "hed.*"]}, r"no tensor matches lossless 'hed\.\*'"),
        ({"lossless": ["v"]}, "no tensor matches lossless 'v'"),
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
    w = weights()
    first = [Rules(seed=seed).levels_for("w", w, *low_and_high(w)) for seed in (0, 0)]
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


def test_names_with_signs_of_patterns_can_be_kept():
    state = {"a[0]": weights(), "b": weights(seed=1)}
    assert bits_of(state, lossless=["a[[]0]"])["a[0]"] is None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (torch.nn.Linear(2, 2), r"a module \(Linear\) .* module\.state_dict\(\)"),
        (torch.nn.Sequential(torch.nn.Linear(2, 2)), r"module\.state_dict\(\)"),
        (build("mlp"), r"a part \(Part\) .*pack_part\(part\).*part\.module\.state_dict\(\)"),
        (torch.ones(3), r"such as module\.state_dict\(\)"),
        ("weights.safetensors", r"such as module\.state_dict\(\)"),
        (3, "got 3"),
    ],
)
def test_what_is_no_state_dict_is_told(given, says):
    with pytest.raises(SettingsError, match=says):
        compress(given)


# Weights that fall into one bin -------------------------------------------------------------------


def with_outlier(side, value=1e4):
    w = torch.randn(side, side, generator=torch.Generator().manual_seed(0))
    w[0, 0] = value
    return w


@pytest.mark.parametrize("side", [20, 300])
def test_a_tensor_flattened_by_an_outlier_is_named(side, tmp_path):
    state = {"w": with_outlier(side), "fine": weights(), "b": torch.ones(3)}
    for told in (describe(compress(state), state), write(tmp_path / "w", state)):
        assert told.crowded == ("w",)
        last = told.view()[-1]
        assert last.style == "warning"
        assert "'w'" in last.text and "--channels" in last.text  # noqa: PT018
        assert "'fine'" not in last.text
    assert load_record(told.save(tmp_path / "r.json")) == told


@pytest.mark.parametrize(
    "kept", [{"channels": True}, {"bits": 16}, {"lossless": ["w"]}, {"smallest": 1 << 20}]
)
def test_what_helps_against_an_outlier(kept, tmp_path):
    state = {"w": with_outlier(60, 2e3)}
    assert describe(compress(state), state).crowded == ("w",)
    for told in (describe(compress(state, **kept), state), write(tmp_path / "w", state, **kept)):
        assert told.crowded == ()
        assert all(getattr(block, "style", "") != "warning" for block in told.view())


@pytest.mark.parametrize("side", [16, 60])
@pytest.mark.parametrize("bits", [1, 2, 8])
def test_few_bits_are_no_single_bin(side, bits, tmp_path):
    state = {"w": torch.rand(side, side, generator=torch.Generator().manual_seed(0))}
    assert write(tmp_path / "w", state, bits=bits).crowded == ()
    assert describe(compress(state, bits=bits)).crowded == ()


def test_equal_weights_are_exact_and_sparse_ones_are_named(tmp_path):
    sparse = torch.zeros(100, 100)
    sparse[::50, 0] = 1.0
    state = {"equal": torch.full((100, 100), 2.0), "sparse": sparse}
    assert write(tmp_path / "w", state).crowded == ("sparse",)
    assert describe(compress(state)).crowded == ("sparse",)


# The table ----------------------------------------------------------------------------------------


def test_small_tensors_share_a_row():
    state = {"w": weights(), "a": torch.randn(5), "b": torch.randn(2, 3), "n": torch.tensor(3)}
    told = describe(compress(state | {"kept": weights(seed=1)}, lossless=["kept"]))
    table = told.view()[1]
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert list(rows) == ["w", "kept", "3 small tensors, kept exactly"]
    together = rows["3 small tensors, kept exactly"]
    assert (together["shape"], together["bits a weight"]) == ("12 elements", None)
    sizes = {tensor.name: tensor.bytes for tensor in told.tensors}
    assert together["bytes"] == sizes["a"] + sizes["b"] + sizes["n"] >= 4 * 11 + 8
    assert sum(row["bytes"] for row in rows.values()) == sum(sizes.values()) < told.size
    assert len(told.to_plain()["data"]["tensors"]) == 5
    alone = describe(compress({"w": weights(), "a": torch.randn(5)})).view()[1]
    assert [row[0] for row in alone.rows] == ["w", "a"]
