"""Errors, activations, seeds, progress, devices and extras."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core import errors
from dovetail.core.activations import is_activation, kernel_range
from dovetail.core.errors import (
    DovetailError,
    MissingExtraError,
    SettingsError,
    first_line,
    nearest,
)
from dovetail.core.extras import need
from dovetail.core.progress import progress
from dovetail.core.seeds import derived_seed, generator, seeded
from dovetail.train.options import choose_device

# Errors -------------------------------------------------------------------------------------------


def test_every_error_has_our_root_and_a_builtin_one():
    leaves = [
        value
        for value in vars(errors).values()
        if isinstance(value, type)
        and issubclass(value, DovetailError)
        and value is not DovetailError
    ]
    assert len(leaves) >= 8
    for leaf in leaves:
        others = [base for base in leaf.__mro__ if base.__module__ == "builtins"]
        assert set(others) - {object, Exception, BaseException}, leaf


def test_near_names_come_nearest_first():
    known = ["layer1", "layer2", "layer10", "stem", "head"]
    assert nearest("layer1x", known).startswith("; did you mean layer1")
    assert nearest("zzz", known) == "; there is layer1, layer2, layer10, stem, head"
    assert nearest("zzz", []) == ""
    assert nearest("zzz", (f"a{i}" for i in range(20))).endswith("a11 and 8 more")
    assert nearest("layer", known, most=1).count("layer") == 1


@given(st.text(), st.lists(st.text()))
def test_near_names_never_fail(name, known):
    assert isinstance(nearest(name, known), str)


def test_the_first_line_of_anything():
    assert first_line(ValueError("a\nb")) == "a"
    assert first_line(ValueError()) == "ValueError"
    assert first_line(ValueError("\nb")) == "ValueError"


# Activations --------------------------------------------------------------------------------------

LAYERS = {
    "relu": torch.relu,
    "relu6": torch.nn.functional.relu6,
    "sigmoid": torch.sigmoid,
    "softplus": torch.nn.functional.softplus,
    "softmax": lambda x: torch.softmax(x, 1),
    "hardsigmoid": torch.nn.functional.hardsigmoid,
    "identity": lambda x: x,
    "tanh": torch.tanh,
    "hardtanh": torch.nn.functional.hardtanh,
    "elu": torch.nn.functional.elu,
    "selu": torch.nn.functional.selu,
    "celu": torch.nn.functional.celu,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
    "mish": torch.nn.functional.mish,
    "hardswish": torch.nn.functional.hardswish,
    "leaky-relu": torch.nn.functional.leaky_relu,
    "prelu": lambda x: torch.nn.functional.prelu(x, torch.tensor([0.1])),
}


@pytest.mark.parametrize("name", LAYERS)
def test_kernels_lie_in_the_range_the_table_gives(name):
    beta, alpha = kernel_range(name)
    features = torch.nn.functional.normalize(LAYERS[name](torch.randn(200, 3) * 3), dim=1)
    kernel = features @ features.T
    assert kernel.min() >= beta - 1e-5
    assert kernel.max() <= alpha + 1e-5
    assert (kernel.min() < -1e-3) == (beta < 0)  # the range is not wider than it need be


def test_unknown_activations():
    assert not is_activation("conv2d")
    with pytest.raises(SettingsError, match="unknown activation 'reul'; did you mean relu"):
        kernel_range("reul")


# Seeds --------------------------------------------------------------------------------------------


def test_a_seeded_block_leaves_the_global_generator_alone():
    state = torch.get_rng_state()
    with seeded(3, "weights"):
        first = torch.rand(4)
    assert torch.equal(torch.get_rng_state(), state)
    with suppress(RuntimeError), seeded(3, "weights"):
        assert torch.equal(torch.rand(4), first)
        raise RuntimeError
    assert torch.equal(torch.get_rng_state(), state)


def test_each_purpose_has_its_own_numbers():
    seeds = {derived_seed(seed, name, i) for seed in range(5) for name in "ab" for i in range(5)}
    assert len(seeds) == 50
    assert all(0 <= seed < 2**63 for seed in seeds)
    a, b = (torch.rand(3, generator=generator(0, "order")) for _ in range(2))
    assert torch.equal(a, b)


def test_seeds_do_not_change_between_versions():
    assert derived_seed(0, "weights") == 133441691874178746


# Progress -----------------------------------------------------------------------------------------


def test_nothing_is_shown_in_a_pipe(capfd):
    with progress("training", 3) as step:
        step("loss 1.0")
    assert capfd.readouterr() == ("", "")


def test_bars_inside_bars_are_shown_together_and_hidden_together(capfd):
    with progress("outer", 1, show=True) as outer:
        with progress("inner", 1, show=True) as inner:
            inner("near the end")
        outer("done")
    said = capfd.readouterr().err
    assert "outer" in said
    assert "inner" in said
    with progress("outer", 1, show=False), progress("inner", 1) as inner:
        inner("unseen")
    assert capfd.readouterr().err == ""


def test_a_bar_of_what_is_soon_done_is_never_seen(capfd):
    with progress("quick", 1, show=True, after=3600.0) as step:
        step("done")
    assert "quick" not in capfd.readouterr().err


def test_a_bar_is_shown_on_request(capfd):
    with progress("training", 2, show=True) as step:
        step("loss 1.0")
        step("loss 0.5")
    out, err = capfd.readouterr()
    assert out == ""
    assert "training" in err


# Devices and extras -------------------------------------------------------------------------------


def test_devices():
    assert choose_device(torch.device("cpu")) == torch.device("cpu")
    assert choose_device("auto").type in ("cpu", "cuda", "mps")
    for wrong in ("toaster", "cuda:99", "cpu:x"):
        with pytest.raises(SettingsError, match=f"cannot compute on device '{wrong}'") as caught:
            choose_device(wrong)
        assert "\n" not in str(caught.value)


def test_a_missing_extra_names_feature_package_and_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # hides an installed one
    with pytest.raises(MissingExtraError) as caught:
        need("matplotlib", feature="Drawing", extra="plots")
    assert str(caught.value) == 'Drawing needs matplotlib: pip install "dovetail[plots]"'
    assert isinstance(caught.value, ImportError)


def test_importing_dovetail_does_not_import_torch():
    code = "import sys, dovetail; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
