"""A packed part loads like any other, and is exactly what its container says."""

import copy

import pytest
import torch
from torch import nn

from dovetail.core.errors import FormatError, SettingsError
from dovetail.pack.compressing import compress
from dovetail.parts.builders import builder
from dovetail.parts.cutting import cut
from dovetail.parts.foreign.adopting import adopt
from dovetail.parts.joining import join
from dovetail.parts.packed import holds, with_packed, without_packed
from dovetail.parts.part import Part, build, from_pretrained

CONTAINER, PLAIN = "model.dovepack", "model.safetensors"


def net(seed=0):
    return build("mlp", shape=(16,), hidden=(32, 24), classes=5, seed=seed)


def packed(part, **how):
    return with_packed(part, compress(part.module.state_dict(), **how))


@pytest.fixture
def small():
    return packed(net())


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_it_is_written_as_its_container_and_loads_as_it_was(small, tmp_path):
    folder = small.save_pretrained(tmp_path / "part")
    found = files(folder)
    assert found[CONTAINER] == small.packed
    assert PLAIN not in found
    loaded = from_pretrained(folder, verify=True)
    assert (loaded.digest, loaded.contract, loaded.origin, loaded.packed) == (
        small.digest,
        small.contract,
        small.origin,
        small.packed,
    )
    x = torch.randn(3, 16)
    assert torch.equal(loaded(x), small(x))
    assert not loaded.module.training
    assert loaded.module.head.weight.requires_grad


def test_written_again_it_is_the_same_folder(small, tmp_path):
    first = small.save_pretrained(tmp_path / "first")
    again = from_pretrained(first).save_pretrained(tmp_path / "again")
    assert files(first) == files(again)


def test_the_weights_are_new_and_the_old_part_is_untouched(small):
    part = net()
    digest = part.digest
    assert packed(part).digest == small.digest
    assert part.digest == digest != small.digest
    assert small.origin.parents == (digest,)
    assert small.origin.how == "pack"
    for name, tensor in part.module.state_dict().items():
        worst = (small.module.state_dict()[name] - tensor).abs().max()
        assert worst <= tensor.abs().max() * 2**-5


def test_the_spaces_stay_so_a_packed_front_joins_the_old_head():
    front, head = cut(net(), at="hidden1")
    joined = join(packed(front), head)
    assert joined(torch.zeros(1, 16)).shape == (1, 5)


def test_a_module_put_in_its_place_is_not_packed(small, tmp_path):
    assert small.changed(module=copy.deepcopy(small.module)).packed is None
    assert small.changed(origin=net().origin).packed is small.packed


def test_weights_that_changed_since_are_written_as_they_are(small, tmp_path):
    with torch.no_grad():
        small.module.head.bias += 1
    found = from_pretrained(small.save_pretrained(tmp_path / "part"), verify=True)
    assert found.digest == small.digest
    assert found.packed is None
    assert PLAIN in files(tmp_path / "part")


def test_another_type_of_weights_is_written_as_it_is(small):
    assert not holds(small.packed, small.module.double().state_dict())


def test_unpacked_it_has_the_same_weights_in_plain_tensors(small, tmp_path):
    plain = without_packed(small)
    folder = plain.save_pretrained(tmp_path / "part")
    assert PLAIN in files(folder)
    assert from_pretrained(folder).digest == small.digest
    with pytest.raises(SettingsError, match="nothing to unpack"):
        without_packed(plain)


def test_exact_tensors_come_back_bit_by_bit(tmp_path):
    part = build("resnet8", size=8, width=8)
    small = packed(part, lossless=("*",))
    assert small.digest == part.digest
    assert from_pretrained(small.save_pretrained(tmp_path / "part"), verify=True).digest == (
        part.digest
    )


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 32)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x))


@builder("test/tied")
def tied() -> nn.Module:
    return Tied()


def test_tied_tensors_stay_tied(tmp_path):
    small = packed(adopt(tied(), example=torch.zeros(1, 32)), bits=5)
    assert small.module.a.weight is small.module.b.weight
    loaded = from_pretrained(small.save_pretrained(tmp_path / "part"), verify=True)
    assert loaded.module.a.weight is loaded.module.b.weight
    assert loaded.packed == small.packed


def test_tied_tensors_decoded_to_different_values_are_refused():
    part = adopt(tied(), example=torch.zeros(1, 32))
    container = compress(part.module.state_dict(), bits={"a.weight": 3, "b.weight": 5})
    with pytest.raises(FormatError, match="tied to different values"):
        with_packed(part, container)


def test_a_container_of_another_part_is_refused():
    other = build("mlp", shape=(16,), hidden=(32, 25), classes=5)
    with pytest.raises(FormatError, match="does not fit its recipe"):
        with_packed(net(), compress(other.module.state_dict()))


def test_nothing_is_decoded_before_the_header_fits(small, tmp_path, monkeypatch):
    folder = small.save_pretrained(tmp_path / "part")
    other = build("mlp", shape=(16,), hidden=(32, 25), classes=5)
    put(folder, compress(other.module.state_dict()))
    monkeypatch.setattr("dovetail.parts.packed.tensors", None)
    with pytest.raises(FormatError, match="does not fit its recipe"):
        Part.from_pretrained(folder)


def put(folder, container):
    from hostile.liar import vouch

    (folder / CONTAINER).write_bytes(container)
    vouch(folder)


def test_a_container_larger_than_its_tensors_could_need_is_not_read(small, tmp_path):
    folder = small.save_pretrained(tmp_path / "part")
    put(folder, small.packed + bytes(1 << 20))
    with pytest.raises(FormatError, match="more than a file of ours"):
        Part.from_pretrained(folder)


def test_the_manifest_lists_weights_once(small, tmp_path):
    from hostile.liar import MANIFEST, edit_json

    folder = small.save_pretrained(tmp_path / "part")
    (folder / PLAIN).write_bytes(b"")
    edit_json(folder / MANIFEST, lambda m: m["files"].update({PLAIN: m["files"][CONTAINER]}))
    with pytest.raises(FormatError, match="lists weights twice"):
        Part.from_pretrained(folder)


def test_a_folder_with_files_of_ones_own_is_never_exchanged(tmp_path):
    part = build("mlp", shape=(4,), classes=2)
    folder = part.save_pretrained(tmp_path / "part")
    (folder / "mine.txt").write_text("mine")
    with pytest.raises(FormatError, match=r"holds other files \(mine.txt\)"):
        part.save_pretrained(folder, overwrite=True)
    assert (folder / "mine.txt").read_text() == "mine"
