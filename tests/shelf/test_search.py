from dataclasses import replace
from fnmatch import fnmatchcase

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from dovetail.core.errors import ContractError, ShelfError
from dovetail.parts.contract import Contract, Port
from dovetail.parts.cutting import cut
from dovetail.parts.part import build
from dovetail.shelf.search import has_shape
from dovetail.shelf.store import Shelf


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
