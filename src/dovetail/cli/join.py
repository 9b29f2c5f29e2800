"""Join parts end to end without training.  Refuses, with every reason, what was not made to fit."""

from __future__ import annotations

import argparse

from dovetail.cli import common

__all__ = ["EXAMPLE", "add", "run"]

EXAMPLE = "dovetail join lenet.front lenet.back --task digits --name lenet-again"


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("parts", nargs="+", metavar="PART", help="parts, front first")
    parser.add_argument("--task", help="measure the joined network on this task's test split")
    parser.add_argument(
        "--norms",
        choices=("stored", "batch", "recalibrated"),
        default="stored",
        help="statistics that batch norms use (default: stored)",
    )
    parser.add_argument("--force", action="store_true", help="join although the spaces differ")
    parser.add_argument(
        "--adapt", action="store_true", help="put 1×1 adapters between different channel counts"
    )
    parser.add_argument("--name", help="put the joined network on the shelf")
    common.add_task_options(parser)
    common.add_shelf(parser)
    common.add_data(parser)
    common.add_record(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Join, measure, shelve."""
    from dovetail.flows.join import join

    outcome = join(
        args.parts,
        task=args.task,
        norms=args.norms,
        force=args.force,
        adapt=args.adapt,
        name=args.name,
        shelf=args.shelf,
        data=args.data,
        task_options=common.task_options(args),
    )
    return common.show(outcome, args)
