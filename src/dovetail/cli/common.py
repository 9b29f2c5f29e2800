"""Options that several commands share, and how an outcome is shown."""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail.flows.outcome import Outcome

__all__ = ["add_data", "add_json", "add_record", "add_set", "add_shelf", "key_value", "show"]


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
        "--record", type=Path, metavar="FOLDER", help="save the records here, for 'dovetail report'"
    )


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
