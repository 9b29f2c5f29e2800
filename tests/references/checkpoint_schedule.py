"""A step of a chain with segments that run again, played through with sets of storages."""

from itertools import product


def peak_of(blocks, spans):
    """The most bytes alive: forward, then backward, each segment run again when its turn comes."""
    sizes = {}
    for block in blocks:
        sizes |= {block.takes: block.taken, block.gives: block.given, **block.saved}
    batch = blocks[0].takes

    def weigh(storages):
        return sum(sizes[s] for s in set(storages) if s != batch)

    segment_of = {i: span for span in spans for i in range(*span)}
    kept, peak = set(), 0
    for i, block in enumerate(blocks):
        span = segment_of.get(i)
        if span is not None and span[0] == i:
            kept.add(block.takes)
        peak = max(peak, weigh(kept | {block.takes}) + block.forward)
        if span is None:
            kept |= set(block.saved)
    arrived = 0
    for i in reversed(range(len(blocks))):
        block, span = blocks[i], segment_of.get(i)
        alive = _kept_before(blocks, segment_of, span[0] if span else i)
        if span is not None:
            alive = alive | {blocks[span[0]].takes}
            if i == span[1] - 1:  # its gradient has come: run the segment again
                again = set(alive)
                for inner in blocks[slice(*span)]:
                    there = weigh(again | {inner.takes}) + inner.forward
                    peak = max(peak, there + block.given + arrived)
                    again |= set(inner.saved)
            for inner in blocks[span[0] : i + 1]:
                alive = alive | set(inner.saved)
        else:
            alive = alive | set(block.saved)
        peak = max(peak, weigh(alive) + block.backward + arrived)
        arrived += block.gradients
    return peak


def _kept_before(blocks, segment_of, stop):
    kept = set()
    for i, block in enumerate(blocks[:stop]):
        if i not in segment_of:
            kept |= set(block.saved)
        elif segment_of[i][0] == i:
            kept.add(block.takes)
    return kept


def every_choice(count):
    """All sets of segments of a chain: each link is run once, begins one, or goes on with one."""
    for marks in product(("once", "begins", "goes on"), repeat=count):
        if any(m == "goes on" and (i == 0 or marks[i - 1] == "once") for i, m in enumerate(marks)):
            continue
        starts = [i for i, mark in enumerate(marks) if mark == "begins"]
        yield tuple(
            (a, next((i for i in range(a + 1, count) if marks[i] != "goes on"), count))
            for a in starts
        )
