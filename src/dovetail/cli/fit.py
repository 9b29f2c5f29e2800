"""Go from a folder of images or a table to a model in use.

Networks are ranked, the best are adapted as far as the time allows; the one that does best on
labels held out is calibrated, packed, measured once on the test split and written to a folder.
Interrupted with Ctrl-C, the best so far is the model; killed, the same command goes on.
"""

from __future__ import annotations

import argparse

from dovetail.cli import common
from dovetail.settings.fit import Fitting

EXAMPLE = "dovetail fit photos/ -o model --minutes 10"


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "task",
        help="a folder of images with a sub-folder for each class, a .csv, .parquet or .npz file, "
        "or digits, mnist, ...",
    )
    common.add_settings(parser, Fitting.declared.values())
    common.add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Fit and show."""
    options = common.settings_of(args, Fitting)
    common.need_tasks([args.task], args.data)
    if args.parts:
        common.need_parts([ref for ref in args.parts if not ref.endswith("*")], args.shelf)
    from dovetail.jobs.fit import fit  # torch loads here

    return common.show(fit(args.task, **options, **common.frame_of(args)), args)
