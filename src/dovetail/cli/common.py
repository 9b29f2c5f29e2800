"""Options that several commands share, and how an outcome is shown."""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail.flows.outcome import Outcome

__all__ = [
    "add_data",
    "add_json",
    "add_record",
    "add_set",
    "add_shelf",
    "key_value",
    "show",
    "words",
]


def add_json(parser: argparse.ArgumentParser) -> None:
    """``--json``: one object for machines instead of words for people."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_shelf(parser: argparse.ArgumentParser) -> None:
    """``--shelf``: which folder of parts."""
    parser.add_argument(
        "--shelf", type=Path, default=Path("shelf"), help="folder of parts (default: ./shelf)"
    )


def add_data(parser: argparse.ArgumentParser) -> None:
    """``--data``: where downloaded data sets lie."""
    parser.add_argument("--data", type=Path, help="folder of data sets (default: ./data)")


def add_record(parser: argparse.ArgumentParser) -> None:
    """``--record``: keep what was measured, for ``dovetail report``."""
    parser.add_argument(
        "--record",
        type=_folder,
        metavar="FOLDER",
        help="save the records here, for 'dovetail report'",
    )


def _folder(text: str) -> Path:
    """A folder that is there or can be made: told before hours of work, not after."""
    folder = Path(text)
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise argparse.ArgumentTypeError(f"{there} is a file; name a folder")
    return folder


def add_set(parser: argparse.ArgumentParser) -> None:
    """``--set``: arguments of a network's builder."""
    parser.add_argument(
        "--set",
        dest="args",
        action="append",
        type=key_value,
        default=[],
        metavar="NAME=VALUE",
        help="an argument of the network's builder; may be repeated",
    )


def add_task_options(parser: argparse.ArgumentParser) -> None:
    """``--target``, ``--kind``, ``--size`` and ``--task-set``: how a task is read."""
    parser.add_argument(
        "--target",
        action="append",
        metavar="COLUMN",
        help="of a table: what to predict; may be repeated",
    )
    parser.add_argument("--kind", help="classes, multilabel or regression, if not as it looks")
    parser.add_argument(
        "--size", type=_size, metavar="PIXELS", help="of images: 32, or height and width as 24x32"
    )
    parser.add_argument(
        "--task-set",
        dest="task_options",
        action="append",
        type=key_value,
        default=[],
        metavar="NAME=VALUE",
        help="another option of the task, such as unreadable=skip; may be repeated",
    )


def task_options(args: argparse.Namespace) -> dict[str, Any]:
    """What ``load_task`` is asked for."""
    options = dict(args.task_options)
    target = args.target[0] if args.target and len(args.target) == 1 else args.target
    asked = {"target": target, "kind": args.kind, "size": args.size}
    return options | {name: value for name, value in asked.items() if value is not None}


def _size(text: str) -> int | tuple[int, int]:
    sides = text.lower().split("x")
    if not all(side.isdecimal() for side in sides) or len(sides) > 2:
        raise argparse.ArgumentTypeError(f"expected 32 or 24x32, got {text!r}")
    return int(sides[0]) if len(sides) == 1 else (int(sides[0]), int(sides[1]))


def key_value(text: str) -> tuple[str, Any]:
    """An argument of a builder: ``norm=batch``, ``hidden=[64,64]``.

    >>> key_value("hidden=[64,64]"), key_value("norm=batch")
    (('hidden', [64, 64]), ('norm', 'batch'))
    """
    import json

    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"expected name=value, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def words(text: str) -> tuple[str, ...]:
    """Words with commas between them.

    >>> words("dcc, iiw")
    ('dcc', 'iiw')
    """
    return tuple(word.strip() for word in text.split(",") if word.strip())


def show(outcome: Outcome, args: argparse.Namespace) -> int:
    """Print an outcome and keep its records; the command's exit code."""
    from dovetail.core.files import write_whole
    from dovetail.core.plain import dumps
    from dovetail.core.records import slug
    from dovetail.report.terminal import print_view

    folder: Path | None = getattr(args, "record", None)
    if folder is not None:
        for record in outcome.records:
            text = record.to_json()
            mark = hashlib.sha256(text.encode()).hexdigest()[:8]  # a second run keeps the first's
            write_whole(folder / f"{slug(record.title)}-{mark}.json", text)
    if args.json:
        sys.stdout.write(dumps(outcome.data))
    else:
        print_view(outcome.view)
    return 0 if outcome.ok else 1
