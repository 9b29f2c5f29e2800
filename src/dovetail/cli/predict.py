"""Say the classes or numbers of new inputs: images, rows, arrays, or the test split of a task."""

from __future__ import annotations

import argparse

from dovetail.cli import common

__all__ = ["EXAMPLE", "add", "run"]

EXAMPLE = "dovetail predict lenet images.npy"


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("part", help="name or name@version on the shelf, or a part's folder")
    parser.add_argument(
        "inputs",
        help="an image, a folder of images, a table without its target, an .npy or .npz file, or a "
        "task (its test split)",
    )
    parser.add_argument("--most", type=int, help="only the first so many inputs")
    common.add_task_options(parser)
    common.add_shelf(parser)
    common.add_data(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Predict and print."""
    from dovetail.cli.early import need_parts, need_tasks
    from dovetail.core.settings import need_least

    need_parts([args.part], args.shelf)
    if args.most is not None:
        need_least("most", args.most, 1)
    need_tasks([args.inputs], args.data)
    from dovetail.jobs.predict import predict

    outcome = predict(
        args.part,
        args.inputs,
        most=args.most,
        shelf=args.shelf,
        data=args.data,
        task_options=common.task_options(args),
    )
    return common.show(outcome, args)
