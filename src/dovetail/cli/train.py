"""Train a network on a task, measure it on the test split, and put it on the shelf.

A run that was interrupted goes on where it stopped when the same command is given again.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

from dovetail.cli import common
from dovetail.settings.train import WAYS, chosen

EXAMPLE = next(iter(WAYS.values())).example


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command; help tells those of the way that ``--how`` names."""
    how = _how(getattr(parser, "words", []))
    parser.add_argument(
        "task",
        nargs="+",
        help="digits, mnist, ..., a folder of images, or a .csv, .parquet or .npz file; or made of "
        "one, as 'digits[0,1,2]~rot90'; several with --how compatible",
    )
    parser.add_argument(
        "--net", help="mlp, lenet5, resnet8, ... (default: lenet5 for images, mlp for tables)"
    )
    common.add_set(parser)
    parser.add_argument(
        "--from",
        dest="start",
        action="append",
        metavar="PART",
        help="start from this part instead; with several tasks one for all, or one for each",
    )
    ways = "\n".join(f"  {way.name:16} {way.help}" for way in WAYS.values())
    parser.add_argument(
        "--how",
        default=next(iter(WAYS)),
        metavar="WAY",
        help=f"way to train (default: {next(iter(WAYS))})",
    )
    common.add_common(parser, name="name on the shelf (default: net and task)")
    about = "ways to train (--how WAY --help has the options of each)"
    parser.description = f"{parser.description or ''}\n{about}:\n{ways}"
    parser.epilog = f"example:\n  {WAYS[how].example}"
    own = WAYS[how].settings.declared
    group = parser.add_argument_group(f"with --how {how}")
    common.add_settings(group, own.values())
    others = {n: one for way in WAYS.values() for n, one in way.settings.declared.items()}
    common.add_settings(parser, (o for n, o in others.items() if n not in own), hidden=True)


def _how(words: list[str]) -> str:
    """The way that is asked for, as far as one can tell before parsing.

    >>> _how(["digits", "--how", "modular"]), _how(["--how=compatible"]), _how(["--how", "magic"])
    ('modular', 'compatible', 'end-to-end')
    """
    ways = [after for word, after in pairwise(words) if word == "--how"]
    ways += [word.removeprefix("--how=") for word in words if word.startswith("--how=")]
    return next((word for word in ways if word in WAYS), next(iter(WAYS)))


def run(args: argparse.Namespace) -> int:
    """Train and shelve."""
    options = common.values_of(
        args, dict.fromkeys(name for way in WAYS.values() for name in way.settings.declared)
    )
    chosen(
        args.how,
        options,
        tasks=len(args.task),
        starts=len(args.start or ()),
        new_net=args.net is not None or bool(args.args),
    )
    common.need_tasks(args.task, args.data)
    if args.start:
        common.need_parts(args.start, args.shelf)
    from dovetail.jobs.train import train  # torch loads here

    outcome = train(
        args.task,
        net=args.net,
        args=dict(args.args),
        start=args.start,
        how=args.how,
        **{**options, **common.frame_of(args)},
    )
    return common.show(outcome, args) if outcome.view else 0  # only one of several processes shows
