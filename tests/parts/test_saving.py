"""A part is written whole or not at all, and only what can be read again."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
from references.halves import assert_same, flags_of, outputs, same_values, values_of
from torch import nn

from dovetail.core.errors import FormatError, RecipeError
from dovetail.parts.builders import builder
from dovetail.parts.contract import Contract, Port
from dovetail.parts.cutting import cut
from dovetail.parts.facts import read_facts
from dovetail.parts.foreign.adopting import adopt
from dovetail.parts.part import Part, build
from dovetail.parts.recipe import DEEPEST, Build, Cut


def test_a_module_without_a_builder_is_refused_with_the_remedy(tmp_path):
    part = adopt(nn.Linear(2, 1))
    with pytest.raises(FormatError) as caught:
        part.save_pretrained(tmp_path / "part")
    for word in ("Linear", "without a recipe", "@dt.builder", "dt.adopt"):
        assert word in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def wider_head(module):
    module.head = nn.Linear(5, 7)


def other_activation(module):
    module.hidden1.act = nn.Tanh()


def one_layer_more(module):
    module.add_module("softmax", nn.Softmax(dim=1))


def double(module):
    module.double()


@pytest.mark.parametrize("change", [wider_head, other_activation, one_layer_more, double])
def test_a_module_changed_after_it_was_built_is_refused(change, tmp_path):
    part = build("mlp", shape=(4,), hidden=(5, 5), classes=3)
    change(part.module)
    with pytest.raises(FormatError, match="the recipe does not rebuild this module"):
        part.save_pretrained(tmp_path / "part")
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_too_deep_to_be_read_is_not_written(tmp_path):
    part = build("mlp", shape=(4,))
    for _ in range(DEEPEST + 1):
        part, _ = cut(part, at="hidden2")
    with pytest.raises(RecipeError, match="nested deeper"):
        part.save_pretrained(tmp_path / "part")


def test_a_contract_the_module_does_not_keep_is_not_written(tmp_path):
    part = build("mlp", shape=(4,)).changed(contract=Contract(takes=(Port((9,)),)))
    with pytest.raises(FormatError, match="does not take what its contract says"):
        part.save_pretrained(tmp_path / "part")
    assert list(tmp_path.iterdir()) == []


def test_a_builder_that_fails_on_the_meta_device_is_our_error(tmp_path):
    @builder("hostile/needs-values")
    def needs_values() -> nn.Module:
        return nn.Linear(int(torch.tensor(3.0).item()), 1)

    with pytest.raises(FormatError, match="the recipe cannot be built"):
        adopt(needs_values()).save_pretrained(tmp_path / "part")


def test_what_stands_in_the_way(tmp_path):
    part = build("mlp", shape=(4,))
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(FormatError, match="is a file"):
            part.save_pretrained(tmp_path / "file", overwrite=overwrite)
        with pytest.raises(FormatError, match="holds other files"):
            part.save_pretrained(tmp_path / "full", overwrite=overwrite)
        with pytest.raises(FormatError, match="cannot write"):
            part.save_pretrained(tmp_path / "file" / "below", overwrite=overwrite)
    part.save_pretrained(tmp_path / "part")
    with pytest.raises(FormatError, match="pass overwrite=True"):
        part.save_pretrained(tmp_path / "part")
    assert (tmp_path / "full" / "thesis.tex").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    part.save_pretrained(tmp_path / "empty")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("fails_at", [1, 2, 3, 4])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_full_disk_leaves_no_trace(fails_at, overwrite, tmp_path, monkeypatch):
    target = tmp_path / "shelf" / "part"
    old = build("mlp", shape=(4,), seed=1)
    if overwrite:
        old.save_pretrained(target)
    writes = []
    real = Path.write_bytes

    def full(self, data):
        writes.append(self)
        if len(writes) == fails_at:
            real(self, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, data)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        with pytest.raises(FormatError, match="No space left on device"):
            build("mlp", shape=(4,), seed=2).save_pretrained(target, overwrite=overwrite)
    assert len(writes) == fails_at
    if not overwrite:
        assert not target.parent.exists()  # which was made for it
    else:
        assert [path.name for path in target.parent.iterdir()] == ["part"]
        assert Part.from_pretrained(target, verify=True).digest == old.digest


def test_an_interrupt_leaves_no_trace(tmp_path, monkeypatch):
    def interrupt(self, data):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", interrupt)
    with pytest.raises(KeyboardInterrupt):
        build("mlp", shape=(4,)).save_pretrained(tmp_path / "part")
    assert list(tmp_path.iterdir()) == []


def test_overwriting_exchanges_the_whole_part(tmp_path):
    old, new = (build("mlp", shape=(4,), seed=seed) for seed in (1, 2))
    old.save_pretrained(tmp_path / "part")
    new.save_pretrained(tmp_path / "part", overwrite=True)
    assert Part.from_pretrained(tmp_path / "part", verify=True).digest == new.digest
    assert [path.name for path in tmp_path.iterdir()] == ["part"]


def test_saving_and_loading_disturb_nothing(tmp_path):
    part = build("resnet8", size=8, width=4)
    part.module.train()
    part.module.layer1.eval()
    values, flags, state = values_of(part.module), flags_of(part.module), torch.get_rng_state()
    loaded = Part.from_pretrained(part.save_pretrained(tmp_path / "part"), verify=True)
    assert torch.equal(torch.get_rng_state(), state)
    assert same_values(values, values_of(part.module))
    assert flags_of(part.module) == flags
    assert not loaded.module.training
    x = torch.randn(2, 3, 8, 8)
    assert_same(outputs(loaded.module, x), outputs(part.module, x))


def test_the_same_part_gives_the_same_bytes(tmp_path):
    folders = [build("lenet5", size=8).save_pretrained(tmp_path / name) for name in "ab"]
    names = {path.name for path in folders[0].iterdir()}
    assert {"config.json", "model.safetensors", "manifest.json", "README.md"} < names
    for name in names:
        assert len({(folder / name).read_bytes() for folder in folders}) == 1


def test_a_recipe_is_read_as_it_was_written(tmp_path):
    part = build("mlp", shape=(4,), hidden=(5, 5), classes=3)
    facts = read_facts(part.save_pretrained(tmp_path / "part"))
    assert facts.recipe == part.recipe
    assert isinstance(facts.recipe, Build)
    assert not isinstance(facts.recipe, Cut)


def test_odd_dtypes_survive(tmp_path):
    @builder("hostile/odd")
    def odd() -> nn.Module:
        net = nn.Sequential(nn.Identity())
        for dtype in (torch.bool, torch.uint8, torch.int16, torch.complex64, torch.bfloat16,
                      torch.float8_e4m3fn):  # fmt: skip
            net.register_buffer(f"a{str(dtype)[6:]}", torch.ones(2, dtype=dtype))
        net.register_buffer("empty", torch.ones(0))
        net.register_buffer("number", torch.tensor(3))
        return net

    part = adopt(odd())
    assert Part.from_pretrained(part.save_pretrained(tmp_path / "part")).digest == part.digest
