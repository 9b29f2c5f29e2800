"""Measure every front with every head, without training: who works with whom."""

from __future__ import annotations

import argparse

from dovetail.cli import common
from dovetail.settings.join import Recombine

EXAMPLE = "dovetail recombine low high --task digits --shelf demo/shelf"


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "fronts",
        nargs="+",
        metavar="FRONT",
        help="fronts, or networks whose halves NAME.front and NAME.head or NAME.back are shelved",
    )
    parser.add_argument(
        "--heads", nargs="+", default=[], metavar="HEAD", help="heads (default: the fronts' own)"
    )
    parser.add_argument(
        "--task",
        dest="tasks",
        action="append",
        required=True,
        metavar="TASK",
        help="measure on this task; repeated, one for each front",
    )
    common.add_settings(parser, Recombine.declared.values())
    common.add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Recombine and show."""
    options = common.settings_of(args, Recombine)
    common.need_halves(args.fronts, "front", args.shelf)
    common.need_halves(args.heads, "head", args.shelf)
    common.need_tasks(args.tasks, args.data)
    from dovetail.jobs.recombine import recombine  # torch loads here

    outcome = recombine(args.fronts, args.heads, args.tasks, **options, **common.frame_of(args))
    return common.show(outcome, args)
