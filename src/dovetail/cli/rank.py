"""Rank the parts on a shelf for a task, without training: which part, cut where, how good."""

from __future__ import annotations

import argparse

from dovetail.cli import common
from dovetail.settings.rank import Rank

EXAMPLE = "dovetail rank digits --shelf demo/shelf"


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "tasks", nargs="+", metavar="TASK", help="digits, mnist, ..., a folder or a file"
    )
    parser.add_argument(
        "--part",
        dest="parts",
        action="append",
        default=[],
        metavar="PART",
        help="rank this one (or all that begin so: 'lenet*'); may be repeated (default: all)",
    )
    common.add_settings(parser, Rank.declared.values())
    common.add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Rank and show."""
    options = common.settings_of(args, Rank)
    common.need_tasks(args.tasks, args.data)
    if whole_names := [part for part in args.parts if not part.endswith("*")]:
        common.need_parts(whole_names, args.shelf)
    from dovetail.jobs.rank import rank  # torch loads here

    return common.show(rank(args.tasks, args.parts, **options, **common.frame_of(args)), args)
