"""Make one self-contained page of records: it opens offline, prints, and needs no server."""

from __future__ import annotations

import argparse
from pathlib import Path

from dovetail.cli import common

__all__ = ["EXAMPLE", "add", "run"]

EXAMPLE = "dovetail report records/ --shelf shelf -o report.html"


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("records", nargs="*", help="record files, or folders of them")
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"))
    parser.add_argument("--title", default="dovetail report")
    parser.add_argument("--shelf", type=Path, help="also list this shelf")
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Write the page."""
    from dovetail.flows.report import report

    outcome = report(args.records, output=args.output, title=args.title, shelf=args.shelf)
    return common.show(outcome, args)
