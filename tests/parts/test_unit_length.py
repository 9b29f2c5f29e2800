"""Networks that scale their features to unit length before the head, and those that do not."""

import pytest
import torch

from dovetail.core.errors import RecipeError
from dovetail.parts.cutting import cut, cut_points
from dovetail.parts.part import Part, build
from dovetail.parts.recipe import Build, rebuild
from dovetail.parts.zoo.layers import UnitLength

NETS = {
    "lenet5": {"size": 8, "channels": 3},
    "mlp": {"shape": [3, 8, 8]},
    "resnet8": {"size": 8},
}


@pytest.mark.parametrize("name", NETS)
def test_the_features_have_length_one_and_the_rest_is_as_before(name):
    plain, unit = (build(name, unit=unit, **NETS[name]) for unit in (False, True))
    assert list(plain.module.state_dict()) == list(unit.module.state_dict())
    assert plain.digest == unit.digest
    assert "unit" not in dict(plain.module.named_children())
    assert cut_points(unit)[-1].name == "unit"
    assert cut_points(unit)[-1].activation == "relu"
    x = torch.randn(5, 3, 8, 8)
    plain.module.eval()
    unit.module.eval()
    front, head = cut(unit, at="unit")
    features = front(x)
    torch.testing.assert_close(features.norm(dim=1), torch.ones(5))
    bare = torch.nn.Sequential(*list(plain.module)[:-1])(x)
    torch.testing.assert_close(features, bare / bare.norm(dim=1, keepdim=True))
    torch.testing.assert_close(unit(x), head(features))


@pytest.mark.parametrize("name", NETS)
def test_recipes_from_before_there_was_a_choice_are_read(name):
    module = rebuild(Build(name, NETS[name]))
    assert not any(isinstance(child, UnitLength) for child in module.modules())


def test_a_unit_length_network_is_kept_as_one(tmp_path):
    net = build("mlp", shape=(4,), hidden=(8,), unit=True)
    again = Part.from_pretrained(net.save_pretrained(tmp_path / "net"), verify=True)
    x = torch.randn(3, 4)
    assert torch.equal(again(x), net(x))
    with pytest.raises(RecipeError, match="expected bool"):
        build("mlp", unit="yes")


def test_zero_stays_zero_and_its_gradient_is_no_nan():
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    y = UnitLength()(x)
    assert y.tolist() == [[0.0, 0.0], pytest.approx([0.6, 0.8])]
    y.sum().backward()
    assert x.grad.isfinite().all()


def test_feature_maps_are_scaled_as_a_whole():
    maps = torch.rand(3, 2, 4, 4)
    assert UnitLength()(maps).flatten(1).norm(dim=1).tolist() == pytest.approx([1.0] * 3)
