"""Look into a part: what each layer learnt, how sharp its minimum is, how far its weights moved.

What fits in about a minute is done, and what more there is to see is named with what it would take.
"""

from __future__ import annotations

import argparse

from dovetail.cli import common
from dovetail.settings.inspect import Inspect

EXAMPLE = "dovetail inspect low-packed 'digits[0,1,2,3]' --shelf demo/shelf"


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "part", help="a part on the shelf, or its folder; all that begin so: 'net.epoch*'"
    )
    parser.add_argument(
        "task", nargs="?", help="examples to look with: digits, mnist, ..., a folder or a file"
    )
    common.add_settings(parser, Inspect.declared.values())
    common.add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Look and show."""
    options = common.settings_of(args, Inspect)
    several = args.part.endswith("*")
    common.need_parts([None if several else args.part, args.before], args.shelf)
    common.need_tasks([args.task, args.source], args.data)
    if several:
        from dovetail.jobs.inspect import inspect_over

        over = inspect_over(args.part, args.task, **options, **common.frame_of(args))
        return common.show(over, args)
    from dovetail.jobs.inspect import inspect  # torch loads here

    outcome = inspect(args.part, args.task, **options, **common.frame_of(args))
    code = common.show(outcome, args)
    if stopped := outcome.data.get("stopped"):
        raise KeyboardInterrupt(f"{stopped} was stopped; what was seen by then is shown and kept")
    return code
