"""Which statistics parts were trained for is a fact of the parts, decided in one place."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from references.halves import assert_same, outputs
from torch import nn

from dovetail.core.errors import ContractError
from dovetail.pack.compressing import compress
from dovetail.parts.cutting import cut, cut_all
from dovetail.parts.facts import Origin
from dovetail.parts.heads import extend_head
from dovetail.parts.joining import join, stitch_part
from dovetail.parts.joining import seam as seam_between
from dovetail.parts.norms import (
    EXCHANGED,
    NOTHING_STORED,
    ONE_NETWORK,
    STITCHED,
    STRANGERS,
    TRAINED_SO,
    Chosen,
    norms_for,
    settle_norms,
    uses_batch_statistics,
)
from dovetail.parts.packed import with_packed
from dovetail.parts.part import Part, build

X = torch.randn(16, 1, 8, 8)


def network(seed=0, **args):
    part = build("lenet5", channels=1, size=8, norm="batch", seed=seed, **args)
    with torch.no_grad():
        part.module.train()(5 * X + 3)  # statistics that matter
    part.module.eval()
    return part


def told(part, norms, parents=(), space=None, *, takes=False):
    """The part as a training leaves it: with the norms it was for, in a space."""
    origin = Origin("train", tuple(parents), settings={"norms": norms, "part": part.digest})
    contract = part.contract if space is None else part.contract.in_space(space, takes=takes)
    return part.changed(origin=origin, contract=contract)


def group():
    """A front and a head of two networks that were trained to be exchanged."""
    (front, _), (_, head) = (cut(network(seed), at="conv2") for seed in (0, 1))
    return told(front, "batch", space="shared"), told(head, "batch", space="shared", takes=True)


@pytest.mark.parametrize("at", ["conv1", "conv2", "fc1"])
def test_halves_give_the_bits_of_the_whole(at):
    net = network()
    front, head = cut(net, at=at)
    joined = join(front, head)
    assert joined.origin.settings["norms"] == "stored"
    assert_same(outputs(joined.module, X), outputs(net.module, X))
    assert_same(outputs(joined.module, X[:1]), outputs(net.module, X[:1]))


def test_all_pieces_of_an_exchanged_network_give_its_bits():
    net = told(network(), "batch")
    assert_same(outputs(join(*cut(net, at="conv2")).module, X), outputs(net.module, X))
    pieces = cut_all(net, at=["conv1", "conv2", "fc1"])
    assert norms_for(*pieces) == Chosen("stored", ONE_NETWORK)
    assert_same(outputs(join(*pieces).module, X), outputs(net.module, X))


def test_a_head_of_another_front_uses_the_batch():
    (front, _), (_, head) = (cut(network(seed), at="conv2") for seed in (0, 1))
    joined = join(front, head, force=True)
    assert joined.origin.settings == {"norms": "batch", "norms_why": STRANGERS, "force": True}
    assert_same(
        outputs(joined.module, X),
        outputs(join(front, head, norms="batch", force=True).module, X),
    )


def test_without_norms_behind_the_seam_nothing_is_decided():
    (front, _), (_, head) = (cut(network(seed), at="flatten") for seed in (0, 1))
    head = head.changed(module=nn.Sequential(nn.Flatten(), nn.Linear(64, 3)))
    assert norms_for(front, head) == Chosen("stored", NOTHING_STORED)
    assert norms_for(front) == Chosen("stored", NOTHING_STORED)
    behind = join(*cut(network(1), at="conv2"), norms="batch")  # has its batches' already
    assert norms_for(front, behind) == Chosen("stored", NOTHING_STORED)


def test_exchanged_parts_use_the_batch_and_so_does_what_is_made_of_them():
    front, head = group()
    assert norms_for(front, head) == Chosen("batch", EXCHANGED)
    before, middle = cut(front, at="conv1")
    assert norms_for(middle, head).norms == norms_for(before, middle, head).norms == "batch"
    first, last = cut(head, at="fc1")
    assert norms_for(middle, first).norms == "batch"  # both say it, though both were cut again
    assert norms_for(first, last).norms == "stored"
    named = head.changed(contract=replace(head.contract, classes=tuple("0123456789")))
    assert norms_for(front, extend_head(named, ["ten"])).norms == "batch"


def test_a_networks_own_halves_keep_theirs_in_a_group_too():
    front, head = cut(network(), at="conv2")
    origin = Origin("train", ("start",), "digits", settings={"norms": "batch"})
    one, other = (part.changed(origin=origin) for part in (front, head))
    assert norms_for(one, other).norms == "stored"


@pytest.mark.parametrize(("said", "why"), [("stored", TRAINED_SO), ("batch", EXCHANGED)])
def test_the_word_of_what_was_trained_behind_the_other_counts(said, why):
    front, head = group()
    other = "batch" if said == "stored" else "stored"
    later = told(front, said, [head.digest], "shared")
    assert norms_for(later, told(head, other, space="shared", takes=True)).why == why
    later = told(head, said, [front.digest], "shared", takes=True)
    assert norms_for(told(front, other, space="shared"), later).why == why


def test_a_stitch_imitates_another_front_unless_it_was_trained_for_the_head():
    (front, _), (_, head) = (cut(network(seed), at="conv2") for seed in (0, 1))
    channels = front.contract.gives[0].shape[0]
    between = seam_between(front.contract.gives, head.contract.takes)
    weights = torch.eye(channels), torch.zeros(channels)
    solved = stitch_part(between, *weights, Origin("stitch"))
    assert norms_for(front, solved, head) == Chosen("stored", STITCHED)
    for said in ("stored", "batch"):
        origin = Origin("stitch", (front.digest, head.digest), settings={"norms": said})
        assert norms_for(front, stitch_part(between, *weights, origin), head).norms == said


def test_several_chains_get_one_policy_and_data_one_that_takes_single_inputs():
    front, head = group()
    own = cut(network(), at="conv2")
    assert settle_norms("auto", own).norms == "stored"
    assert settle_norms("auto", own, (front, head)) == Chosen("batch", EXCHANGED)
    assert settle_norms("auto", (front, head), data=True) == Chosen("recalibrated", EXCHANGED)
    assert settle_norms("auto", own, data=True).norms == "stored"
    assert settle_norms(Chosen("batch", "why"), own) == Chosen("batch", "why")
    assert settle_norms("auto", (front, head), trains_for="stored") == Chosen("stored", TRAINED_SO)
    assert settle_norms("batch", own, trains_for="stored") == Chosen("batch")


def test_with_data_a_joined_network_takes_one_input():
    front, head = group()
    joined = join(front, head, data=[X])
    assert joined.origin.settings["norms"] == "recalibrated"
    assert outputs(joined.module, X[:1])[0].shape == (1, 10)
    assert_same(
        outputs(joined.module, X),
        outputs(join(front, head, norms="recalibrated", data=[X]).module, X),
    )


@pytest.mark.parametrize("at", ["conv2", "fc1"])
def test_one_input_is_refused_in_our_words_where_the_batch_is_used(at):
    front, head = cut(network(), at=at)
    joined = join(front, head, norms="batch")
    assert uses_batch_statistics(joined.module)
    with pytest.raises(ContractError, match="one input has no statistics of a batch") as refused:
        joined.module.eval()(X[:1])
    assert "norms='recalibrated'" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_parts_of_a_group_from_before_it_said_so_count_as_exchanged():
    front, head = (
        part.changed(origin=Origin("train", (part.digest,), settings={"scheme": "joint"}))
        for part in group()
    )
    assert norms_for(front, head) == Chosen("batch", EXCHANGED)


def test_a_packed_part_is_still_trained_for_the_same():
    packed = [with_packed(part, compress(part.module.state_dict())) for part in group()]
    assert norms_for(*packed) == Chosen("batch", EXCHANGED)


def test_a_saved_part_is_still_trained_for_the_same(tmp_path):
    parts = [
        Part.from_pretrained(part.save_pretrained(tmp_path / name))
        for name, part in zip(("front", "head"), group(), strict=True)
    ]
    assert norms_for(*parts) == Chosen("batch", EXCHANGED)
