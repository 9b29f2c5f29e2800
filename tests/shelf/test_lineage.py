import random
from pathlib import Path

from dovetail.core.records import load_record
from dovetail.parts.cutting import cut
from dovetail.parts.joining import join
from dovetail.parts.origin import Origin
from dovetail.shelf.entry import Entry
from dovetail.shelf.lineage import trace


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
