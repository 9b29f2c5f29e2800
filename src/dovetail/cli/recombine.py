"""Measure every front with every head, without training: who works with whom."""

from __future__ import annotations

import argparse

from dovetail.cli import common

__all__ = ["EXAMPLE", "add", "run"]

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
    parser.add_argument(
        "--norms",
        action="append",
        choices=("stored", "batch", "recalibrated"),
        help="statistics that batch norms use; may be repeated (default: batch)",
    )
    parser.add_argument("--split", choices=("train", "validation", "test"), default="test")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument(
        "--calibration", type=int, default=2048, help="training images for recalibrated norms"
    )
    parser.add_argument(
        "--no-correlation", action="store_true", help="do not correlate the fronts' channels"
    )
    parser.add_argument("--seed", type=int, default=0)
    common.add_task_options(parser)
    common.add_shelf(parser)
    common.add_data(parser)
    common.add_record(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Recombine and show."""
    from dovetail.cli.early import need_halves, need_tasks

    need_halves(args.fronts, "front", args.shelf)
    need_halves(args.heads, "head", args.shelf)
    need_tasks(args.tasks, args.data)
    from dovetail.jobs.recombine import recombine

    outcome = recombine(
        args.fronts,
        heads=args.heads,
        tasks=args.tasks,
        norms=args.norms or "batch",
        split=args.split,
        batch_size=args.batch_size,
        calibration=args.calibration,
        correlation=not args.no_correlation,
        seed=args.seed,
        shelf=args.shelf,
        data=args.data,
        task_options=common.task_options(args),
    )
    return common.show(outcome, args)
