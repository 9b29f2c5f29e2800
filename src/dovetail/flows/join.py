"""Join parts, say why not, measure the result."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from dovetail.core.errors import SettingsError
from dovetail.core.records import Record
from dovetail.core.seeds import generator
from dovetail.core.views import Block, Text
from dovetail.flows.locate import find_part
from dovetail.flows.outcome import Outcome
from dovetail.parts.joining import join as join_parts
from dovetail.parts.norms import Norms
from dovetail.running.evaluate import evaluate
from dovetail.running.preprocess import prepare
from dovetail.shelf.store import Shelf
from dovetail.tasks.builtin import load_task

__all__ = ["join"]

_CALIBRATION = 2048  # examples are plenty for a mean and a variance a channel


def join(
    refs: list[str],
    *,
    task: str | None = None,
    norms: Norms = "stored",
    force: bool = False,
    adapt: bool = False,
    name: str | None = None,
    shelf: str | Path = "shelf",
    data: str | Path | None = None,
    task_options: dict[str, Any] | None = None,
) -> Outcome:
    """Join the parts; with a task, measure; with a name, shelve."""
    parts = [find_part(ref, shelf) for ref in refs]
    loaded = load_task(task, data=data, **(task_options or {})) if task else None
    batches = None
    if norms == "recalibrated":
        if loaded is None:
            raise SettingsError("recalibrated norms need --task, whose training images they use")
        rows = loaded.indices("train")
        order = torch.randperm(len(rows), generator=generator(0, "calibration"))[:_CALIBRATION]
        ready = prepare(loaded.inputs[rows[order]], parts[0].contract)
        batches = [ready[i : i + 256] for i in range(0, len(ready), 256)]
    joined = join_parts(*parts, norms=norms, force=force, adapt=adapt, data=batches)
    reasons = [why for a, b in pairwise(parts) for why in a.contract.mismatches(b.contract)]
    blocks: list[Block] = [
        Text(f"Joined {' and '.join(refs)}: {joined.contract}"),
        *(Text(f"Although: {why}", style="warning") for why in reasons),
    ]
    facts: dict[str, Any] = {"contract": str(joined.contract), "why_not": reasons, "norms": norms}
    records: tuple[Record, ...] = ()
    if loaded is not None:
        measured = evaluate(joined, loaded)
        blocks += measured.view()
        facts["measures"] = measured.measures
        facts["chance"] = measured.chance
        records = (measured,)
    if name is not None:
        entry = Shelf(shelf).add(joined, name)
        facts["ref"] = entry.ref
        blocks.append(Text(f"{entry.ref} is on the shelf.", style="heading"))
    return Outcome(tuple(blocks), facts, records)
