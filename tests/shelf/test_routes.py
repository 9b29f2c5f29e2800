import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references.paths import cheapest

from dovetail.cli.main import main
from dovetail.core.errors import ShelfError
from dovetail.core.records import load_record
from dovetail.parts.contract import Contract, Port
from dovetail.parts.cutting import cut
from dovetail.parts.facts import Origin
from dovetail.parts.joining import Seam, join, stitch_part
from dovetail.parts.part import build
from dovetail.parts.recipe import Adapter
from dovetail.shelf.entry import Entry
from dovetail.shelf.fits import MeasuredFit
from dovetail.shelf.routes import End, find_route, quality_of


def fit_of(front, head, through, accuracy, split="test"):
    return MeasuredFit(front, head, through, "digits", "07", split, "batch", accuracy, 0.1, 360)


def entry_of(name, takes, gives, measured=None, digest=""):
    contract = Contract((takes,), (gives,))
    origin = Origin("stitch", measured=measured or {})
    recipe = Adapter(1, 1, maps=False)
    return Entry(name, 1, Path(name), contract, recipe, origin, digest or name)


def end_of(ref, port, side):
    contract = Contract(gives=(port,)) if side == "front" else Contract(takes=(port,))
    return End(ref, contract, ref)


# Against brute force ------------------------------------------------------------------------------

SPACES = "abcde"
SHAPES = [(4,), (8,), (None,)]


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_the_route_is_the_cheapest_of_all_simple_chains(data):
    """Also where an open axis lets a shape into a space that the next part does not take."""
    port = st.builds(
        lambda space, shape: Port(shape, space=space),
        st.sampled_from(SPACES),
        st.sampled_from(SHAPES),
    )
    count = data.draw(st.integers(0, 7))
    entries, parts, fits = [], [], []
    for i in range(count):
        name, quality = f"s{i}", data.draw(st.sampled_from([None, 0.0, 0.25, 0.5, 0.81, 0.9, 1.0]))
        measured, how = {}, data.draw(st.sampled_from(["r2", "held-out r2", "accuracy", "fit"]))
        if quality is not None and how == "fit":
            fits.append(fit_of("x", "y", (name,), quality))
        elif quality is not None:
            measured = {("validation accuracy" if how == "accuracy" else how): quality}
        entry = entry_of(name, data.draw(port), data.draw(port), measured)
        entries.append(entry)
        if entry.contract.takes[0].space != entry.contract.gives[0].space:
            parts.append((entry.ref, entry.contract, 0.5 if quality is None else quality))
    front = end_of("front", data.draw(port), "front")
    head = end_of("head", data.draw(port), "head")
    wanted = cheapest(front.contract, head.contract, parts)
    if wanted is None:
        with pytest.raises(ShelfError, match="no chain"):
            find_route(front, head, entries, fits)
        return
    route = find_route(front, head, entries, fits)
    if not front.contract.mismatches(head.contract):
        assert (route.between, route.cost) == ((), 0.0)
        return
    assert list(route.between) == wanted[0]
    assert route.cost == pytest.approx(wanted[1], abs=1e-8)


def test_of_equals_the_shorter_one_is_taken():
    a, b, c = (Port((4,), space=space) for space in "abc")
    entries = [
        entry_of("a-first", a, b, {"r2": 0.9}),
        entry_of("b-second", b, c, {"r2": 0.9}),
        entry_of("z-at-once", a, c, {"r2": 0.9 * 0.9}),
    ]
    ends = end_of("front", a, "front"), end_of("head", c, "head")
    assert find_route(*ends, entries, []).between == ("z-at-once@1",)
    worse = [*entries[:2], entry_of("z-at-once", a, c, {"r2": 0.8})]
    assert find_route(*ends, worse, []).between == ("a-first@1", "b-second@1")


def test_shapes_must_flow_too():
    a, b = Port((8, 4, 4), space="a"), Port((8, 4, 4), space="b")
    wide = entry_of("wide", Port((8, 7, 7), space="a"), Port((8, 7, 7), space="b"), {"r2": 1.0})
    ends = end_of("front", a, "front"), end_of("head", b, "head")
    with pytest.raises(ShelfError, match="no chain"):
        find_route(*ends, [wide], [])
    narrow = entry_of("narrow", a, b, {"r2": 0.1})
    assert find_route(*ends, [wide, narrow], []).between == ("narrow@1",)


def test_what_is_known_of_a_part():
    a, b = Port((4,), space="a"), Port((4,), space="b")
    stitch = entry_of("s", a, b, {"r2": 0.95, "held-out r2": 0.9})
    assert quality_of(stitch, []).value == 0.9
    trained = entry_of("s", a, b, {"validation accuracy": 0.7, "held-out r2": 0.9})
    assert quality_of(trained, []).value == 0.7
    others = [fit_of("f", "h", ("s",), 0.6), fit_of("x", "y", ("s",), 0.8)]
    assert quality_of(trained, others).value == 0.8
    assert quality_of(trained, others, "f", "h").value == 0.6
    assert quality_of(trained, [fit_of("f", "h", ("s", "t"), 0.1)]).value == 0.7
    bad = entry_of("s", a, b, {"r2": -3.0}), entry_of("s", a, b, {"r2": float("nan")})
    assert [quality_of(each, []).value for each in bad] == [0.01, 0.5]


# On a shelf ---------------------------------------------------------------------------------------


def halves(seed, hidden=4):
    return cut(build("mlp", shape=(3,), hidden=(hidden,), classes=2, seed=seed), at="hidden1")


def stitch_of(front, head, r2=0.9, seed=0):
    draw = torch.Generator().manual_seed(seed)
    between = Seam(front.contract.gives[0], head.contract.takes[0])
    recipe = between.recipe
    weight = torch.rand(recipe.gives, recipe.takes, generator=draw)
    origin = Origin("stitch", measured={"held-out r2": r2})
    return stitch_part(between, weight, torch.zeros(recipe.gives), origin)


def test_a_chain_over_two_stitches(shelf, capsys, tmp_path):
    """From a front that is on no shelf, by way of a third network's space."""
    (front, _), (middle, middle_head), (_, head) = halves(0), halves(1, hidden=6), halves(2)
    with pytest.raises(ShelfError) as told:
        shelf.path(front, head)
    for space in (front.contract.gives[0].space, head.contract.takes[0].space):
        assert space in str(told.value)
    assert "dt.closed_form.stitch" in str(told.value)
    one, two = stitch_of(front, middle_head, 0.9), stitch_of(middle, head, 0.8)
    shelf.add(one, "one")
    shelf.add(two, "two")
    shelf.add(head, "head")
    route = shelf.path(front, "head")
    assert route.between == ("one@1", "two@1")
    assert route.refs == (front.described, "one@1", "two@1", "head@1")
    assert route.expected == pytest.approx(0.72)
    assert route.measured is None
    joined = join(front, *map(shelf.get, route.between), shelf.get("head"))
    x = torch.rand(5, 3)
    assert torch.allclose(joined(x), head(two(one(front(x)))))
    shelf.keep_fit(fit_of(front.digest, head.digest, (one.digest, two.digest), 0.55))
    route = shelf.path(front, shelf.entry("head"))
    assert (route.measured, route.expected) == (0.55, 0.55)
    assert load_record(route.save(tmp_path / "route.json")) == route

    shelf.add(front, "front")
    at = ["--shelf", str(shelf.folder)]
    assert main(["shelf", "path", "front", "head", "--json", *at]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["between"], said["measured"]) == (["one@1", "two@1"], 0.55)
    assert main(["shelf", "path", "front", "head", *at]) == 0
    assert "front@1 → one@1 → two@1 → head@1" in capsys.readouterr().out
    assert main(["shelf", "path", "head", "front", *at]) == 2
    assert "no chain of parts" in capsys.readouterr().err


def test_what_fits_needs_nothing_between(shelf):
    front, head = halves(0)
    shelf.add(stitch_of(front, halves(1)[1]), "elsewhere")
    route = shelf.path(front, head)
    assert (route.between, route.measured, route.expected) == ((), None, None)
    shelf.keep_fit(fit_of(front.digest, head.digest, (), 0.97))
    assert shelf.path(front, head).measured == 0.97
    shelf.keep_fit(fit_of(front.digest, head.digest, ("5a",), 0.99))
    assert shelf.path(front, head).measured == 0.97


def test_measured_stitches_win_over_promising_ones(shelf):
    (front, _), (_, head) = halves(0), halves(1)
    poor, rich = stitch_of(front, head, 0.3), stitch_of(front, head, 0.6, seed=1)
    shelf.add(poor, "poor")
    shelf.add(rich, "rich")
    assert shelf.path(front, head).between == ("rich@1",)
    shelf.keep_fit(fit_of(front.digest, head.digest, (poor.digest,), 0.9))
    assert shelf.path(front, head).between == ("poor@1",)
    assert shelf.path(front, head).measured == 0.9
    shelf.rm("poor@1")
    assert shelf.path(front, head).between == ("rich@1",)


def test_an_unmeasured_part_says_so(shelf):
    (front, _), (_, head) = halves(0), halves(1)
    made = stitch_of(front, head)
    shelf.add(made.changed(origin=replace(made.origin, measured={})), "unknown")
    route = shelf.path(front, head)
    assert route.expected is None
    assert any("not measured" in reason for reason in route.reasons)


def test_damaged_parts_lead_nowhere(shelf):
    (front, _), (_, head) = halves(0), halves(1)
    entry = shelf.add(stitch_of(front, head), "stitch")
    shelf.add(head, "head")
    (entry.folder / "manifest.json").unlink()
    with pytest.raises(ShelfError, match="no chain"):
        shelf.path(front, head)
    with pytest.raises(ShelfError, match="damaged"):
        shelf.path("stitch", head)
    with pytest.raises(ShelfError, match="no part 'nobody'"):
        shelf.path("nobody", head)


def test_fronts_without_a_space_lead_nowhere(shelf):
    _, head = halves(0)
    with pytest.raises(ShelfError, match="'unknown'"):
        shelf.path(build("mlp", shape=(3,), hidden=(), classes=4), head)
