"""The cheapest segments within a budget, against every choice there is."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from references.checkpoint_schedule import every_choice, peak_of

from dovetail.train.segments import Block, cheapest, lowest

SIZE = st.integers(0, 9)


@st.composite
def chains(draw, most=6):
    """Chains in which a link may save its input, its output, both or neither, and things inside."""
    count = draw(st.integers(1, most))
    sizes = [0, *(draw(st.integers(1, 9)) for _ in range(count))]
    blocks = []
    for i in range(count):
        saved = {100 + i: draw(SIZE)}
        if i > 0 and draw(st.booleans()):
            saved[i] = sizes[i]
        if draw(st.booleans()):
            saved[i + 1] = sizes[i + 1]
        rest = (draw(SIZE) for _ in range(3))
        seconds = float(draw(st.integers(1, 5)))
        blocks.append(Block(f"{i}", saved, i, i + 1, sizes[i], sizes[i + 1], *rest, seconds))
    return blocks


def seconds_of(blocks, spans):
    return sum(block.seconds for span in spans for block in blocks[slice(*span)])


@given(chains(), st.integers(0, 80))
@settings(max_examples=60, deadline=None)
def test_is_the_cheapest_of_all_choices(blocks, room):
    fitting = [c for c in every_choice(len(blocks)) if peak_of(blocks, c) <= room]
    chosen = cheapest(blocks, room)
    if not fitting:
        assert chosen is None
        return
    assert chosen is not None
    assert peak_of(blocks, chosen) <= room
    assert seconds_of(blocks, chosen) == min(seconds_of(blocks, choice) for choice in fitting)


@pytest.mark.parametrize("seed", range(2))
def test_eight_links(seed):
    draw = random.Random(seed)
    blocks = [
        Block(
            f"{i}",
            {i + 1: 8, 100 + i: draw.randint(0, 20)},
            i,
            i + 1,
            8 * (i > 0),
            8,
            draw.randint(0, 20),
            draw.randint(0, 20),
            draw.randint(0, 5),
            draw.randint(1, 9),
        )
        for i in range(8)
    ]
    choices = {choice: peak_of(blocks, choice) for choice in every_choice(8)}
    for room in (min(choices.values()), 70, 90, 120):
        fitting = [choice for choice, peak in choices.items() if peak <= room]
        best = min((seconds_of(blocks, choice) for choice in fitting), default=None)
        chosen = cheapest(blocks, room)
        assert (None if chosen is None else seconds_of(blocks, chosen)) == best


@given(chains(5))
@settings(max_examples=30, deadline=None)
def test_the_least_room_of_all_choices(blocks):
    least = min(peak_of(blocks, choice) for choice in every_choice(len(blocks)))
    assert lowest(blocks) in (least, least + 1)


def test_no_segment_begins_where_the_input_is_overwritten():
    blocks = [
        Block("conv", {2: 50}, 1, 2, 0, 50),
        Block("relu in place", {2: 50}, 2, 2, 50, 50),
        Block("head", {2: 50}, 2, 3, 50, 1),
    ]
    assert cheapest(blocks, 60) is not None
    assert all(start != 1 for start, _ in cheapest(blocks, 60))
