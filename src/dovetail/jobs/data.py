"""List and get the data sets that are known by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dovetail.core.errors import DovetailError
from dovetail.core.views import Block, Table, Text
from dovetail.jobs import Outcome
from dovetail.settings.show import Data
from dovetail.tasks.catalogue import CATALOGUE, Way
from dovetail.tasks.fetch import get_data, is_right, known_data
from dovetail.tasks.known import BUNDLED, COLUMNS, HINT, folders, places, table


def ls(*, data: str | Path | None = None) -> Outcome:
    """Every known data set, and where it is; what is there is read and compared."""
    there: dict[str, str | None] = {BUNDLED: "bundled"}
    for name, known in CATALOGUE.items():
        there[name] = next(
            (place for place in places(name, data) if is_right(known, Path(place))), None
        )
    view = (Table(COLUMNS, table(there)), Text(HINT, style="note"))
    return Outcome(view, {"there": there})


def get(
    names: Sequence[str], *, data: str | Path | None = None, way: Way | None = Data.way
) -> Outcome:
    """Get data sets, each whole or not at all; not ok when one cannot be had."""
    for name in names:
        known_data(name)  # a misspelt name is found before the first long download
    folder = Path(folders(data)[0])
    blocks: list[Block] = []
    got: dict[str, dict[str, str]] = {}
    failed: dict[str, str] = {}
    for name in dict.fromkeys(names):
        try:
            done = get_data(name, folder, way=way)
        except DovetailError as error:
            failed[name] = str(error)
            blocks.append(Text(str(error), style="warning"))
            continue
        got[name] = {"folder": str(done.folder), "from": done.way}
        came = "was there already" if done.way == "there" else f"came from {done.way}"
        blocks.append(Text(f"{name} is in {done.folder} ({came}, content verified)."))
    return Outcome(tuple(blocks), {"got": got, "failed": failed}, ok=not failed)
