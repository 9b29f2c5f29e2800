import pytest
import torch
from torch import nn

from dovetail.core.errors import FormatError, SettingsError
from dovetail.parts.cutting import cut
from dovetail.parts.part import Part, build
from dovetail.train import Snapshots, end_to_end, modular
from dovetail.train.options import Moment


@pytest.mark.parametrize("folder", [None, "epochs"])
def test_the_networks_of_earlier_epochs(net, task, tmp_path, folder):
    seen = {}

    def look(moment):
        seen[moment.epoch] = {k: v.clone() for k, v in moment.module.state_dict().items()}

    kept = Snapshots(every=2, folder=None if folder is None else tmp_path / folder)
    fit = end_to_end(net, task, epochs=5, callbacks=(kept, look))
    assert kept.epochs == (2, 4)
    parts = kept.parts(fit.part)
    assert list(parts) == ["epoch 2", "epoch 4"]
    for epoch, part in zip(kept.epochs, parts.values(), strict=True):
        for name, tensor in part.module.state_dict().items():
            assert torch.equal(tensor, seen[epoch][name])
        assert part.contract == fit.part.contract
        assert part.recipe == fit.part.recipe
        assert not part.module.training
        assert part.origin.settings["kept_epoch"] == epoch
        assert part.origin.measured == {}
    one, other = (cut(part, at="hidden1") for part in parts.values())
    assert one[0].contract.mismatches(other[1].contract)


def test_what_they_give_is_in_no_space(net):
    front, _ = cut(net, at="hidden1")
    kept = Snapshots()
    kept(Moment(1, front.module, {}))
    (part,) = kept.parts(front).values()
    assert part.contract.gives[0].space is None
    assert front.contract.gives[0].space is not None


def test_mistakes(net, tmp_path):
    for every in (0, -1, 1.5):
        with pytest.raises(SettingsError, match="at least 1"):
            Snapshots(every=every)
    kept = Snapshots(folder=tmp_path)
    kept(Moment(1, nn.Linear(1, 1), {}))
    with pytest.raises(SettingsError, match="the weights of epoch 1 are not of this network"):
        kept.parts(net)
    (tmp_path / "epoch1.safetensors").write_bytes(b"nothing")
    with pytest.raises(FormatError, match="cannot be read"):
        kept.parts(net)
    (tmp_path / "notes.txt").write_text("mine")
    assert kept.epochs == (1,)
    assert Snapshots(folder=tmp_path / "none").parts(Part(net.module)) == {}


@pytest.mark.parametrize("folder", [None, "epochs"])
def test_of_modules_only_what_has_learnt_is_kept(task, tmp_path, folder):
    kept = Snapshots(folder=None if folder is None else tmp_path / folder)
    deeper = build("mlp", shape=(1, 4, 4), hidden=(16, 8), classes=3)
    fit = modular(deeper, task, at=["hidden1", "hidden2"], epochs=2, callbacks=(kept,))
    parts = kept.parts(fit.part)
    assert list(parts) == ["epoch 1", "epoch 2", "epoch 3", "epoch 4"]
    widths = [part.contract.gives[0].shape for part in parts.values()]
    assert (
        widths
        == [fit.parts[0].contract.gives[0].shape] * 2 + [fit.parts[1].contract.gives[0].shape] * 2
    )
    assert all(part.contract.classes is None for part in parts.values())
    last = parts["epoch 4"].module.state_dict()
    whole = fit.part.module.state_dict()
    assert all(torch.equal(tensor, whole[name]) for name, tensor in last.items())
    assert parts["epoch 2"].origin.settings["kept_epoch"] == 2
