"""Say the classes or numbers of new inputs: images, rows, arrays, or the test split of a task."""

from __future__ import annotations

import argparse

from dovetail.cli import common
from dovetail.settings.show import Predict

EXAMPLE = "dovetail predict lenet photos/*.jpg -o classes.csv"


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("part", help="name or name@version on the shelf, or a part's folder")
    parser.add_argument(
        "inputs",
        nargs="+",
        help="images, folders (all images below), tables without their target, .npy and .npz "
        "files, or a task (its test split)",
    )
    common.add_settings(parser, Predict.declared.values())
    common.add_common(parser, seed=False, record=False)


def run(args: argparse.Namespace) -> int:
    """Predict and print."""
    options = common.settings_of(args, Predict)
    common.need_parts([args.part], args.shelf)
    common.need_tasks(args.inputs, args.data)
    from dovetail.jobs.predict import predict  # torch loads here

    return common.show(predict(args.part, args.inputs, **options, **common.frame_of(args)), args)
