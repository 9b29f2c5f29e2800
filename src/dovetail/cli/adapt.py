"""Adapt a part to few labels: by inference in the linearised network, a probe, or fine-tuning.

Each way is fitted to the same labels, drawn from the training split, and measured on the test
split.  The one that does best on the validation split goes on the shelf.
"""

from __future__ import annotations

import argparse

from dovetail.cli import common
from dovetail.settings.adapt import Adapt

EXAMPLE = "dovetail adapt low.front 'digits[7,8,9]' --labels-per-class 1,3,10 --shelf demo/shelf"


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("part", help="a part on the shelf, or its folder")
    parser.add_argument(
        "task",
        help="digits, mnist, ..., a folder or a file; or made of one, as 'digits[7,8,9]'",
    )
    common.add_settings(parser, Adapt.declared.values())
    common.add_common(parser, name="name on the shelf (default: part and task)")


def run(args: argparse.Namespace) -> int:
    """Adapt and show."""
    options = common.settings_of(args, Adapt)
    common.need_parts([args.part], args.shelf)
    common.need_tasks([args.task], args.data)
    from dovetail.jobs.adapt import adapt  # torch loads here

    outcome = adapt(args.part, args.task, **options, **common.frame_of(args))
    code = common.show(outcome, args)
    if stopped := outcome.data.get("stopped"):
        raise KeyboardInterrupt(f"{stopped} was stopped; what was done by then is shown and kept")
    return code
