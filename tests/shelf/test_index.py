import json
import os
import shutil
from dataclasses import replace
from fnmatch import fnmatchcase

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from dovetail.core.errors import ContractError, FormatError, ShelfError
from dovetail.parts.contract import Contract, Port
from dovetail.parts.cutting import cut
from dovetail.parts.part import build
from dovetail.shelf import index as index_module
from dovetail.shelf.index import FILE, Index, has_shape
from dovetail.shelf.store import Shelf


@pytest.fixture
def filled(shelf, tiny):
    for seed in range(4):
        shelf.add(tiny(seed), f"net{seed % 2}", tags=[f"s{seed}"])
    shelf.entries()
    return shelf


def reads(monkeypatch):
    """Count how many parts are read from their folders."""
    seen = []
    real = index_module.read_entry

    def counted(*slot):
        seen.append(f"{slot[0]}@{slot[1]}")
        return real(*slot)

    monkeypatch.setattr(index_module, "read_entry", counted)
    return seen


def truth(shelf):
    return [index_module.read_entry(*slot) for slot in index_module.slots(shelf.folder)]


def test_the_index_says_what_the_folders_say(filled):
    assert Index(filled.folder).entries() == truth(filled)
    assert [entry.ref for entry in filled] == ["net0@1", "net0@2", "net1@1", "net1@2"]


def test_a_fresh_index_reads_no_part(filled, monkeypatch):
    seen = reads(monkeypatch)
    Index(filled.folder).entries()
    assert seen == []


def test_only_what_changed_is_read_again(filled, monkeypatch, tiny):
    Shelf(filled.folder).add(tiny(9), "net0")
    os.utime(filled.folder / "net1" / "1" / "config.json", (1, 1))
    seen = reads(monkeypatch)
    assert len(Index(filled.folder).entries()) == 5
    assert seen == ["net0@3", "net1@1"]
    seen.clear()
    filled.entries()
    assert seen == []  # another process wrote the index meanwhile


def test_a_tag_added_by_another_process_is_seen(filled, tiny):
    Shelf(filled.folder).add(tiny(0), "net0", tags=["new"])
    assert filled.entry("net0@1").tags == ("new", "s0")
    assert [entry.ref for entry in Shelf(filled.folder).find(tag="new")] == ["net0@1"]


def test_what_another_process_removed_is_gone(filled):
    Shelf(filled.folder).rm("net0", all_versions=True)
    assert [entry.name for entry in filled] == ["net1", "net1"]
    assert "net0" not in (filled.folder / FILE).read_text()


def damages(whole):
    middle = len(whole) // 2
    body = whole.partition(b"\n")[2]
    return {
        "missing": None,
        "empty": b"",
        "half": whole[:middle],
        "one byte": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        "not text": b"\xff\xfe" * 40,
        "no check": body,
        "other json": b"[]",
        "deep": b"[" * 100_000,
        "older": _with_check(json.dumps({**json.loads(body), "format": 1}).encode()),
        "newer": _with_check(json.dumps({**json.loads(body), "format": 99}).encode()),
        "no rows": _with_check(b'{"format": 2}'),
        "odd rows": _with_check(b'{"format": 2, "contracts": [], "recipes": [], "rows": 3}'),
        "odd row": _with_check(_changed(body, lambda row: row[:-1])),
        "odd number": _with_check(_changed(body, lambda row: [row[0], 99, *row[2:]])),
        "odd size": _with_check(_changed(body, lambda row: [*row[:5], "1", *row[6:]])),
        "odd origin": _with_check(_changed(body, lambda row: [*row[:3], {"hw": 1}, *row[4:]])),
        "odd tags": _with_check(_changed(body, lambda row: [*row[:6], [1], row[7]])),
        "odd contract": _with_check(body.replace(b"takes", b"tokes")),
        "odd recipe": _with_check(body.replace(b'"build": "mlp"', b'"run": "mlp"')),
        "no contracts": _with_check(json.dumps({**json.loads(body), "contracts": []}).encode()),
    }


def _changed(body, change):
    value = json.loads(body)
    return json.dumps({**value, "rows": {k: change(r) for k, r in value["rows"].items()}}).encode()


def _with_check(body):
    return index_module.hashlib.sha256(body).hexdigest().encode() + b"\n" + body


@pytest.mark.parametrize(
    "damage", damages(b'x\n{"format": 2, "rows": {}}'), ids=lambda name: name.replace(" ", "-")
)
def test_a_damaged_index_is_silently_rebuilt(filled, damage):
    path = filled.folder / FILE
    data = damages(path.read_bytes())[damage]
    path.unlink() if data is None else path.write_bytes(data)
    assert Index(filled.folder).entries() == truth(filled)
    body = path.read_bytes().partition(b"\n")[2]
    assert len(json.loads(body)["rows"]) == 4  # and it is whole again
    assert filled.verify().ok


def test_an_index_that_is_a_folder_is_done_without(filled):
    (filled.folder / FILE).unlink()
    (filled.folder / FILE).mkdir()
    assert Index(filled.folder).entries() == truth(filled)


def test_a_shelf_that_cannot_be_written_to_is_listed_all_the_same(filled, monkeypatch):
    def refuse(path, data):
        raise FormatError(f"cannot write {path}: Read-only file system")

    (filled.folder / FILE).unlink()
    monkeypatch.setattr(index_module, "write_whole", refuse)
    index = Index(filled.folder)
    assert index.entries() == truth(filled)
    seen = reads(monkeypatch)
    assert len(index.entries()) == 4
    assert seen == []  # memory serves where a file cannot


def test_a_copied_or_moved_shelf_works(filled, tmp_path):
    copy = Shelf(shutil.copytree(filled.folder, tmp_path / "copy"))
    shutil.rmtree(filled.folder)
    assert [entry.folder for entry in copy] == [
        slot.folder for slot in index_module.slots(copy.folder)
    ]
    assert copy.verify().ok


def test_damage_is_listed_and_mending_it_is_noticed(filled):
    weights = filled.folder / "net0" / "2" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    for shelf in (Shelf(filled.folder), Shelf(filled.folder)):
        (filled.folder / FILE).unlink(missing_ok=True)
        assert [entry.ref for entry in shelf if entry.problem] == ["net0@2"]
    weights.write_bytes(whole)
    assert not any(entry.problem for entry in shelf)


def with_facts(part, classes=None, task=None):
    contract = replace(part.contract, classes=classes)
    return part.changed(contract=contract, origin=replace(part.origin, task=task))


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """Halves of three networks, whole networks, a residual cut where two tensors cross."""
    shelf = Shelf(tmp_path_factory.mktemp("full"))
    for seed in range(2):
        net = build("lenet5", size=8, classes=3, seed=seed)
        for at in ("conv1", "conv2"):
            front, head = cut(net, at=at)
            shelf.add(front, f"front-{at}-{seed}", tags=["front"])
            shelf.add(with_facts(head, ("cat", "dog", "owl"), "pets"), f"head-{at}-{seed}")
    net = build("mlp", shape=(4,), hidden=(8,), classes=2)
    shelf.add(with_facts(net, ("cat", "fox"), "wild"), "mlp", tags=["whole", "small"])
    shelf.add(with_facts(net, ("fox", "cat"), "pets"), "mlp", tags=["small"])
    shelf.add(build("mlp", shape=(4,), hidden=(), classes=2), "line", tags=["whole"])
    (shelf.add(net, "broken").folder / "manifest.json").unlink()
    return shelf


def slow(parts, pattern, fits, space, classes, task, gives, takes, tag):
    """Load every part, and ask one question after the other."""
    kept = []
    for entry, part in parts:
        contract = part.contract
        ports = [*contract.takes, *contract.gives]
        if pattern is not None and not fnmatchcase(entry.name, pattern):
            continue
        if tag is not None and tag not in entry.tags:
            continue
        if task is not None and part.origin.task != task:
            continue
        if space is not None and all(port.space != space for port in ports):
            continue
        if classes is not None and any(name not in (contract.classes or ()) for name in classes):
            continue
        if gives is not None and all(not same(port, gives) for port in contract.gives):
            continue
        if takes is not None and all(not same(port, takes) for port in contract.takes):
            continue
        if fits is not None:
            after = fits.contract.mismatches(contract)
            before = contract.mismatches(fits.contract)
            if after and before:
                continue
        kept.append(entry.ref)
    return kept


def same(port, shape):
    if len(port.shape) != len(shape):
        return False
    for i in range(len(shape)):
        if shape[i] is not None and port.shape[i] is not None and shape[i] != port.shape[i]:
            return False
    return True


@pytest.fixture(scope="module")
def loaded(full):
    return [(entry, full.get(entry)) for entry in full if entry.problem is None]


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_find_is_the_slow_filter(full, loaded, data):
    contracts = [part.contract for _, part in loaded]
    ports = [port for c in contracts for port in (*c.takes, *c.gives)]
    shapes = sorted({port.shape for port in ports})

    def maybe(*choices):
        return data.draw(st.none() | st.sampled_from(choices))

    shape = st.none() | st.sampled_from(shapes).flatmap(
        lambda s: st.tuples(*(st.sampled_from([axis, None]) for axis in s))
    )
    asked = {
        "pattern": maybe("*", "front-*", "*-1", "mlp", "MLP", "broken", "l?n[e-f]"),
        "fits": maybe(*(part for _, part in loaded)),
        "space": maybe("nowhere", *sorted({port.space for port in ports if port.space})),
        "classes": maybe((), ("cat",), ("fox", "cat"), ("owl", "fox"), ("owl", "dog", "cat")),
        "task": maybe("pets", "wild", "other"),
        "gives": data.draw(shape),
        "takes": data.draw(shape),
        "tag": maybe("small", "whole", "front", "other"),
    }
    wanted = slow(loaded, **asked)
    assert [entry.ref for entry in full.find(**asked)] == wanted


def test_nothing_asked_is_everything_whole(full):
    assert len(full.find()) == len(full) - 1
    assert "broken@1" in [entry.ref for entry in full]


def test_fits_finds_both_what_follows_and_what_precedes(full):
    front, head = full.entry("front-conv1-0"), full.entry("head-conv1-0")
    assert full.find(fits=front) == full.find(fits="front-conv1-0") == [head]
    assert full.find(fits=head.contract) == full.find(fits=full.get(head)) == [front]


def test_fits_takes_nothing_that_is_no_part(full):
    assert full.find(fits=nn.ReLU()) == []
    with pytest.raises(ContractError, match="expected a Part"):
        full.find(fits=3)
    with pytest.raises(ShelfError, match="no part"):
        full.find(fits="front-conv9")


def test_a_single_word_or_number_will_do(full):
    assert (
        full.find(classes="fox") == full.find(classes=["fox"]) == full.find(classes=iter(["fox"]))
    )
    assert full.find(takes=4) == full.find(takes=[4])
    assert full.find(classes="fo") == []


def test_unknown_fits_nothing_and_has_no_shape():
    assert not has_shape(Port(), ())
    assert has_shape(Port(()), ())
    assert has_shape(Port((None, 4)), (3, 4))
    assert Contract().mismatches(Contract())
