"""Ranking a shelf: what is looked at, what is said, what comes next."""

from __future__ import annotations

import pytest

from dovetail.core.errors import SettingsError, ShelfError
from dovetail.jobs.adapt import adapt
from dovetail.jobs.rank import rank
from dovetail.parts.cutting import cut
from dovetail.parts.part import build
from dovetail.ranking.records import Ranking
from dovetail.shelf.store import Shelf
from dovetail.tasks.load import load_task
from dovetail.train.end_to_end import end_to_end


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranked") / "shelf"
    store = Shelf(folder)
    digits = load_task("digits")
    trained = end_to_end(build("lenet5", size=8), digits, epochs=2, batch_size=128).part
    front, back = cut(trained, at="conv2")
    store.add(trained, "lenet")
    store.add(front, "lenet.front")
    store.add(back, "lenet.back")
    store.add(build("mlp", hidden=(4,)), "small")
    store.add(build("mlp", hidden=(8,)), "small")
    store.add(build("resnet8"), "colour")
    return folder


def test_ranks_the_newest_of_all_that_take_inputs(shelf):
    outcome = rank(["digits"], shelf=shelf, samples=150)
    (record,) = outcome.records
    assert isinstance(record, Ranking)
    assert [place.part for place in record].count("small") == 1
    assert record.best.name == "lenet at fc2"
    assert [out.part for out in record.left_out] == ["colour"]
    words = " ".join(getattr(block, "text", "") for block in outcome.view)
    assert "1 part takes the features of others" in words
    assert outcome.data["places"][0]["part"] == "lenet"


def test_the_next_step_that_is_printed_works(shelf):
    outcome = rank(["digits"], parts=["lenet"], shelf=shelf, samples=150)
    said = next(block.text for block in outcome.view if "Next:" in getattr(block, "text", ""))
    assert said == f"Next: dovetail adapt lenet digits --at fc2 --shelf {shelf}"
    adapt("lenet", "digits", at="fc2", shelf=shelf, how=["probe"], keep="none")


def test_some_parts_by_name_pattern_and_layer(shelf):
    some = rank(["digits"], parts=["lenet*", "small@1"], shelf=shelf, samples=150)
    assert {place["part"] for place in some.data["places"]} == {"lenet", "lenet.front", "small@1"}
    layers = rank(["digits"], parts=["lenet"], at="every", shelf=shelf, samples=150)
    assert {place["at"] for place in layers.data["places"]} == {
        "conv1",
        "conv2",
        "flatten",
        "fc1",
        "fc2",
    }


def test_several_tasks_are_ranked_together(shelf, tmp_path):
    outcome = rank(["digits", "digits"], parts=["lenet", "small"], shelf=shelf, samples=100)
    assert outcome.data["places"][0]["part"] == "lenet"
    assert len(outcome.records) == 3


def test_a_growing_sample(shelf):
    outcome = rank(["digits"], shelf=shelf, samples=300, anytime=True)
    (record,) = outcome.records
    assert record.best.name == "lenet at fc2"
    assert outcome.data["course"]["passes"] == record.course.passes < record.course.passes_in_full
    with pytest.raises(SettingsError, match="seconds= is for anytime=True"):
        rank(["digits"], shelf=shelf, seconds=3.0)


def test_mistakes(shelf, tmp_path):
    with pytest.raises(ShelfError, match="begins with 'nothing'"):
        rank(["digits"], parts=["nothing*"], shelf=shelf)
    with pytest.raises(ShelfError):
        rank(["digits"], shelf=tmp_path / "nowhere")
    with pytest.raises(SettingsError, match="unknown score"):
        rank(["digits"], shelf=shelf, by="best")
