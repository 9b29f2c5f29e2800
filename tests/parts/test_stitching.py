import pytest
import torch

from dovetail.core.errors import ContractError
from dovetail.parts.contract import Port
from dovetail.parts.facts import Origin
from dovetail.parts.joining import seam, stitch_part, with_shape

A, B = Port((3, 4, 4), space="a"), Port((5, 4, 4), space="b")


@pytest.mark.parametrize(
    ("takes", "gives", "told"),
    [
        ((A, A), (B,), "one tensor to one, but 2 meet 1"),
        ((A,), (B, B), "one tensor to one, but 1 meet 2"),
        ((Port((3, 4, 4)),), (B,), "what the front gives has none"),
        ((A,), (Port((5, 4, 4)),), "what is wanted has none"),
        ((Port((3, 4, 4), "float64", space="a"),), (B,), "the front gives is float64"),
        ((Port(None, space="a"),), (B,), r"not \?"),
        ((Port((None, 4, 4), space="a"),), (B,), "known channels"),
        ((Port((7, 3), space="a"),), (B,), "not 7×3"),
        ((Port((3,), space="a"),), (B,), "one is a vector"),
        ((Port((3, 2, 2), space="a"),), (B,), "maps of 2×2 meet maps of 4×4"),
    ],
)
def test_seams_that_no_stitch_closes(takes, gives, told):
    with pytest.raises(ContractError, match=told):
        seam(takes, gives)


def test_open_axes_meet_any_length():
    between = seam((Port((3, None, None), space="a"),), (B,))
    assert (between.recipe.takes, between.recipe.gives, between.recipe.maps) == (3, 5, True)
    assert with_shape(Port((3, None, None)), (3, 4, 4)).shape == (3, 4, 4)
    assert with_shape(A, (9, 9, 9)) is A


def test_the_part_is_the_map():
    weight, bias = torch.rand(5, 3, dtype=torch.float64), torch.rand(5, dtype=torch.float64)
    part = stitch_part(seam((A,), (B,)), weight, bias, Origin("stitch"))
    x = torch.rand(2, 3, 4, 4)
    slow = torch.einsum("kc,nchw->nkhw", weight.float(), x) + bias.float()[None, :, None, None]
    assert torch.allclose(part(x), slow, atol=1e-6)
    assert {p.dtype for p in part.module.parameters()} == {torch.float32}
