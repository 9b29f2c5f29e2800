"""Where parts are strangers, validation images choose the statistics, whichever are right."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dovetail.measure.pairs import TOO_FEW, choose_norms
from dovetail.measure.recombine import recombine
from dovetail.parts.contract import Contract, Port
from dovetail.parts.facts import Origin
from dovetail.parts.joining import join, seam, stitch_part
from dovetail.parts.norms import EXCHANGED, ONE_NETWORK, STITCHED, STRANGERS, Chosen
from dovetail.parts.part import Part
from dovetail.tasks.task import Task

CLASSES = ("high", "low")
MINE, THEIRS = (Origin("train", (name,)) for name in ("mine", "theirs"))


def front(origin=MINE):
    return Part(nn.Identity(), Contract((Port((1,)),), (Port((1,), space="a"),)), origin=origin)


def head(mean, space="b", origin=THEIRS):
    """Says "low" below a mean that its batch norm has stored."""
    module = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2))
    module[0].running_mean.fill_(mean)
    with torch.no_grad():
        module[1].weight.copy_(torch.tensor([[1.0], [-1.0]]))
        module[1].bias.zero_()
    contract = Contract((Port((1,), space=space),), (Port((2,)),), classes=CLASSES)
    return Part(module.eval(), contract, origin=origin)


def task(high, *, validation=100, shift=0.0):
    """Numbers around 1 are high and around -1 low, a share of them high; the training shifted."""
    n = 200 + 2 * validation
    names = ["high" if i % 10 < 10 * high else "low" for i in range(n)]
    spread = torch.linspace(-0.9, 0.9, 7).repeat(n)[:n]
    x = torch.tensor([1.0 if name == "high" else -1.0 for name in names]) + spread
    x[:200] += shift
    train, validating, test = torch.arange(n).split([200, validation, validation])
    split = {"train": train, "validation": validating, "test": test}
    return Task(x[:, None], names, split=split, classes=CLASSES)


def solved_stitch(mine, theirs):
    between = seam(mine.contract.gives, theirs.contract.takes)
    return stitch_part(between, torch.eye(1), torch.zeros(1), Origin("stitch"))


def stored_is_right():
    """The head's own mean is the border; most of a batch lies on one side of it."""
    return head(0.0), task(0.9)


def batch_is_right():
    """The mean of a batch is the border, and what is stored lies far from it."""
    return head(5.0), task(0.5)


@pytest.mark.parametrize("stitched", [False, True], ids=["forced", "stitched"])
def test_validation_images_choose_what_is_right(stitched):
    mine = front()
    for (theirs, images), right in ((stored_is_right(), "stored"), (batch_is_right(), "batch")):
        row = (mine, solved_stitch(mine, theirs), theirs) if stitched else (mine, theirs)
        chosen = choose_norms("auto", images, *[row], among=("stored", "batch"))
        assert chosen.norms == right
        assert "on 100 validation images stored" in chosen.why
        assert f"{right} 100.0%" in chosen.why


def test_what_takes_one_input_is_preferred_to_the_batch_where_it_is_as_good():
    theirs, images = batch_is_right()
    assert choose_norms("auto", images, (front(), theirs)).norms == "recalibrated"
    shifted = task(0.5, shift=4.0)  # statistics of the training images are not those of others
    assert choose_norms("auto", shifted, (front(), theirs)).norms == "batch"


def test_several_chains_get_the_policy_that_is_best_on_average():
    theirs, images = stored_is_right()
    far = head(-0.05)
    assert choose_norms("auto", images, (front(), theirs), (front(), far)).norms == "stored"


def test_what_was_asked_for_or_trained_for_is_not_measured():
    theirs, images = stored_is_right()
    assert choose_norms("batch", images, (front(), theirs)) == Chosen("batch")
    exchanged = Origin("train", settings={"norms": "batch"})
    row = front(exchanged), head(0.0, "a", Origin("train", ("x",), settings={"norms": "batch"}))
    assert choose_norms("auto", images, row) == Chosen("batch", EXCHANGED)
    own = front(exchanged), head(5.0, "a", exchanged)
    assert choose_norms("auto", images, own) == Chosen("stored", ONE_NETWORK)


def test_without_images_to_choose_by_the_rule_is_kept():
    mine, (theirs, _) = front(), batch_is_right()
    few = task(0.5, validation=TOO_FEW - 1)
    assert choose_norms("auto", few, (mine, theirs)) == Chosen("batch", STRANGERS)
    assert choose_norms("auto", few, (mine, theirs), data=True).norms == "recalibrated"
    row = mine, solved_stitch(mine, theirs), theirs
    assert choose_norms("auto", few, row) == Chosen("stored", STITCHED)
    other = task(0.5).derived("wide", inputs=torch.rand(400, 2))  # told when measured in earnest
    assert choose_norms("auto", other, (mine, theirs)) == Chosen("batch", STRANGERS)


def test_recombining_uses_it_and_says_so():
    theirs, images = stored_is_right()
    record = recombine({"mine": front()}, {"theirs": theirs}, images, correlation=False)
    assert record.norms == ("stored",)
    assert "stored 100.0%" in record.settings["norms_why"]
    assert record.accuracy["mine"]["theirs"] == 1.0


def test_a_join_keeps_the_reason():
    theirs, images = stored_is_right()
    chosen = choose_norms("auto", images, (front(), theirs))
    settings = join(front(), theirs, norms=chosen, force=True).origin.settings
    assert settings == {"norms": "stored", "norms_why": chosen.why, "force": True}
