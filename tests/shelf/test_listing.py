import random
from dataclasses import replace
from pathlib import Path

import pytest

from dovetail.core.records import load_record
from dovetail.core.views import Table, Text
from dovetail.parts.contract import Preprocess
from dovetail.parts.cutting import cut
from dovetail.parts.facts import Origin
from dovetail.parts.joining import join
from dovetail.shelf.entry import Entry
from dovetail.shelf.listing import accuracy_of, shown_bytes, trace


@pytest.fixture
def filled(shelf, tiny):
    net = tiny()
    front, head = cut(net, at="hidden1")
    origin = Origin("train", (net.digest,), "digits", measured={"test accuracy": 0.875, "loss": 1})
    contract = replace(head.contract, classes=("cat", "dog"), preprocess=Preprocess(channels=1))
    shelf.add(front, "front")
    shelf.add(head.changed(contract=contract, origin=origin), "head", tags=["good", "small"])
    (shelf.add(net, "net").folder / "config.json").unlink()
    return shelf


def test_the_list_has_a_row_a_version(filled):
    table, warning = filled.ls().view()
    space = filled.entry("front").contract.gives[0].space
    front, head, net = table.shown()
    assert front[:6] == ("front@1", "front of mlp at hidden1", "3 → 4", space, "–", "–")
    assert head[:7] == ("head@1", "back of mlp at hidden1", "4 → 2", space, "2", "digits", "87.5%")
    assert head[-1] == "good, small"
    assert net[:2] == ("net@1", "damaged")
    assert warning.style == "warning"
    assert "config.json" in warning.text


def test_the_list_takes_a_pattern(filled):
    assert [row.ref for row in filled.ls("*t").rows] == ["front@1", "net@1"]


def test_an_empty_shelf_says_so(shelf):
    assert shelf.ls().view()[0].text.endswith("is empty.")


def test_records_come_back_from_their_files(filled, tmp_path):
    for record in (filled.ls(), filled.show("head"), filled.show("net"), filled.lineage("head")):
        assert load_record(record.save(tmp_path / f"{record.kind}.json")) == record


def test_a_card_tells_everything(filled):
    card = filled.show("head")
    text = str([block.shown() if isinstance(block, Table) else block for block in card.view()])
    for word in (
        "head@1",
        "cat, dog",
        "train",
        "digits",
        "0.875",
        "hidden1",
        "good, small",
        "sha256",
    ):
        assert word in text
    assert card.title == "head@1"
    assert card.family.parents[0].refs == ()


def test_a_damaged_part_has_a_card_that_says_so(filled):
    (block,) = filled.show("net").view()
    assert isinstance(block, Text)
    assert "damaged" in block.text


@pytest.mark.parametrize(
    ("measured", "wanted"),
    [
        ({}, None),
        ({"loss": 1.0}, None),
        ({"accuracy": 0.5}, 0.5),
        ({"train accuracy": 0.9, "validation accuracy": 0.8}, 0.8),
        ({"validation accuracy": 0.8, "Test accuracy": 0.7}, 0.7),
    ],
)
def test_the_most_telling_accuracy_is_shown(measured, wanted):
    assert accuracy_of(measured) == wanted


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_950, "1.0 MB")],
)
def test_sizes_round_into_the_next_unit(size, shown):
    assert shown_bytes(size) == shown


def entry(name, digest, *parents):
    origin = Origin(how="made", parents=parents)
    return Entry(name, 1, Path(name), origin=origin, digest=digest * 4)


def test_a_family_on_a_shelf(shelf, tiny, tmp_path):
    net = tiny()
    front, head = cut(net, at="hidden1")
    both = join(front, head)
    shelf.add(net, "net")
    shelf.add(front, "front")
    shelf.add(both, "both")
    found = shelf.lineage("both")
    assert found.tree.drawn() == (
        "both@1 (join)\n"
        "├─ front@1 (cut)\n"
        "│  └─ net@1 (build)\n"
        f"└─ {head.digest[:12]} (not on this shelf)"
    )
    assert shelf.lineage("net").children == ("front@1",)
    assert load_record(found.save(tmp_path / "family.json")) == found
    assert "net@1" in found.view()[0].text


def test_lineage_outlives_names(shelf, tiny):
    net = tiny()
    front, _ = cut(net, at="hidden1")
    shelf.add(front, "front")
    shelf.add(net, "old")
    shelf.rm("old@1")
    shelf.add(net, "new")
    assert shelf.lineage("front").tree.parents[0].refs == ("new@1",)
    shelf.rm("new", all_versions=True)
    assert shelf.lineage("front").tree.parents[0].refs == ()


def test_all_names_of_one_part_are_told():
    family = [entry("a", "aa"), entry("b", "aa"), entry("c", "cc", "aaaaaaaa")]
    assert trace(family[2], family).tree.parents[0].label == "a@1 = b@1 (made)"


def test_a_circle_ends():
    a, b = entry("a", "aa", "bbbbbbbb"), entry("b", "bb", "aaaaaaaa", "bbbbbbbb")
    found = trace(a, [a, b])
    assert [node.digest[:2] for node in found.tree.walk()] == ["aa", "bb", "aa", "bb"]
    assert "see above" in found.tree.drawn()
    assert found.children == ("b@1",)


def test_shared_ancestors_are_followed_once():
    """Two parents a generation, the same for all: the naive tree has 2^40 leaves."""
    family = []
    for i in range(40):
        parents = [f"{side}{i - 1:03d}" * 4 for side in "xy"] if i else []
        family += [
            Entry(f"{side}{i}", 1, Path(side), origin=Origin(parents=tuple(parents)),
                  digest=f"{side}{i:03d}" * 4)
            for side in "xy"
        ]  # fmt: skip
    found = trace(family[-1], family)
    assert len(list(found.tree.walk())) <= 4 * 40


def test_the_ancestors_are_the_transitive_parents():
    rng = random.Random(0)
    family = []
    for i in range(60):
        parents = rng.sample(family, min(len(family), rng.randrange(4)))
        family.append(entry(f"p{i}", f"{i:04d}", *(parent.digest for parent in parents)))
    by_digest = {each.digest: each for each in family}

    def slowly(digest):
        found = set()
        for parent in by_digest[digest].origin.parents:
            found |= {parent} | slowly(parent)
        return found

    for each in family:
        told = {node.digest for node in trace(each, family).tree.walk()} - {each.digest}
        assert told == slowly(each.digest)
