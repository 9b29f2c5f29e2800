"""Rank the parts on a shelf for a task, without training: which part, cut where, how good."""

from __future__ import annotations

import argparse

from dovetail.cli import common

__all__ = ["EXAMPLE", "add", "run"]

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
    parser.add_argument(
        "--at",
        action="append",
        metavar="POINT",
        help="cut point to rank at, or 'every', or 'output'; may be repeated",
    )
    parser.add_argument("--by", help="the score (default: the one with the best record)")
    parser.add_argument(
        "--samples", type=int, default=2000, help="labelled examples to look at (0: all of them)"
    )
    parser.add_argument(
        "--split",
        choices=("train", "validation"),
        default="train",
        help="where they come from; validation for parts trained on this very task",
    )
    parser.add_argument("--pooling", choices=("average", "flatten"), default="average")
    parser.add_argument("--confidence", type=float, default=0.9, help="of the intervals")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--cache", type=common.path, metavar="FOLDER", help="keep features here between calls"
    )
    common.add_task_options(parser)
    common.add_shelf(parser)
    common.add_data(parser)
    common.add_record(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Rank and show."""
    from dovetail.cli.early import need_parts, need_tasks

    need_tasks(args.tasks, args.data)
    if named := [part for part in args.parts if not part.endswith("*")]:
        need_parts(named, args.shelf)
    from dovetail.jobs.rank import rank

    at = args.at if args.at is None or len(args.at) > 1 else args.at[0]
    chosen = {} if args.by is None else {"by": args.by}
    outcome = rank(
        args.tasks,
        parts=args.parts,
        at=at,
        samples=args.samples or None,
        split=args.split,
        pooling=args.pooling,
        confidence=args.confidence,
        seed=args.seed,
        cache=args.cache,
        shelf=args.shelf,
        data=args.data,
        task_options=common.task_options(args),
        **chosen,
    )
    return common.show(outcome, args)
