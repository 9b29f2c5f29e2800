"""Pack weights small: a part of the shelf or of a folder, a safetensors file, or all of a shelf.

Each tensor is quantised to as many bits as its entropy asks for, and coded.  A packed part loads
like any other.  With --task its accuracy before and after is measured on the test split; with
--loss-budget or --points the smallest bits are searched that cost no more on the validation split.
"""

from __future__ import annotations

import argparse
import os

from dovetail.cli import common

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["EXAMPLE", "add", "need_source", "one_or_all", "refuse", "run"]

EXAMPLE = """\
dovetail pack lenet --task digits
  dovetail pack lenet --task digits --loss-budget 0.001 --name lenet-small
  dovetail pack weights.safetensors --extra-bits 5
  dovetail pack --all"""


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "part",
        nargs="?",
        metavar="PART",
        help="name or name@version on the shelf, a part's folder, or a .safetensors file",
    )
    parser.add_argument(
        "--all", dest="all_parts", action="store_true", help="the latest version of every part"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--to",
        type=common.path,
        metavar="PATH",
        help="folder or file to write; with --all a shelf (default: beside the source)",
    )
    where.add_argument("--name", help="name on the shelf (default: NAME-packed)")
    parser.add_argument("--replace", action="store_true", help="overwrite what is at --to")
    how = parser.add_argument_group("bits")
    how.add_argument("--extra-bits", type=int, help="on top of what the rule finds (default: 6)")
    how.add_argument("--bits", type=int, help="this many for every tensor, instead of a rule")
    how.add_argument(
        "--rule",
        choices=("entropy", "gradient"),
        help="bits by the entropy of the weights (default), or by the loss's gradient on --task",
    )
    how.add_argument("--channels", action="store_true", help="a range for every output channel")
    how.add_argument(
        "--lossless",
        action="append",
        default=[],
        metavar="PATTERN",
        help="tensors to keep exactly, such as 'head.*'; may be repeated",
    )
    quality = parser.add_mutually_exclusive_group()
    quality.add_argument(
        "--loss-budget",
        type=float,
        metavar="LOSS",
        help="the smallest file whose mean loss on validation rises by no more: nats for classes, "
        "squared error for numbers and for the scores of a part fitted in closed form",
    )
    quality.add_argument(
        "--points",
        type=float,
        help="the smallest file whose validation accuracy falls by no more points",
    )
    parser.add_argument(
        "--margin",
        type=float,
        help="of a budget: standard errors that must fit into it, too (default: 2.576)",
    )
    parser.add_argument("--task", help="measure before and after on this task's test split")
    parser.add_argument("--seed", type=int, help="of the weights that are sampled (default: 0)")
    common.add_task_options(parser)
    common.spells(parser, overwrite="--replace")
    common.add_shelf(parser)
    parser.set_defaults(shelf=None)  # so that one that says nothing can be refused
    common.add_data(parser)
    common.add_record(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Pack one thing, or a shelf."""
    from dovetail.cli.early import need_tasks

    one_or_all(args, "pack")
    if args.all_parts:
        alone = ("task", "rule", "loss_budget", "points", "name", "replace")
        refuse(args, alone, "cannot be used with --all, which packs by entropy or --bits")
    if not given(args, ("loss_budget", "points")):
        refuse(args, ("margin",), "can only be used with --loss-budget or --points")
    if args.task is None:
        reading = ("target", "kind", "size", "task_options", "data")
        refuse(args, reading, "can only be used with --task")
    if decides := given(args, ("bits", "loss_budget", "points")):
        refuse(
            args,
            ("extra_bits", "seed"),
            f"cannot be used with {decides[0]}, which replaces the rule",
        )
    need_source(args)
    need_tasks([args.task], args.data)
    from dovetail.jobs.pack import pack, pack_all  # torch loads here

    asked = ("rule", "extra_bits", "bits", "channels", "seed")
    how = {name: getattr(args, name) for name in asked if given(args, (name,))}
    how["lossless"] = tuple(args.lossless)
    if args.all_parts:
        return common.show(pack_all(to=args.to, shelf=args.shelf, **how), args)
    outcome = pack(
        args.part,
        to=args.to,
        name=args.name,
        replace=args.replace,
        task=args.task,
        loss_budget=args.loss_budget,
        points=args.points,
        margin=args.margin,
        shelf=args.shelf,
        data=args.data,
        task_options=common.task_options(args),
        **how,
    )
    return common.show(outcome, args)


def one_or_all(args: argparse.Namespace, verb: str) -> None:
    """Refuse both a part and --all, and neither."""
    from dovetail.core.errors import SettingsError

    if args.part is not None and args.all_parts:
        raise SettingsError(f"--all {verb}s every part on the shelf; name none, or leave out --all")
    if args.part is None and not args.all_parts:
        raise SettingsError(f"name what to {verb}, or say --all for every part on the shelf")


def need_source(args: argparse.Namespace) -> None:
    """Refuse a name that is neither on the shelf nor, by its looks, a file or a folder."""
    from dovetail.cli.early import need_parts

    part: str | None = args.part
    if part and not ("/" in part or "." in part or os.path.exists(part)):
        need_parts([part], args.shelf or "shelf")


def given(args: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Which of these were said, as flags.

    >>> given(argparse.Namespace(bits=0, replace=False, task_options=[("a", 1)]), ("bits",))
    ['--bits']
    """
    spelled = {"task_options": "task-set"}
    said = {name: getattr(args, name) for name in names}
    return [
        f"--{spelled.get(name, name.replace('_', '-'))}"
        for name, value in said.items()
        if not (value is None or value is False or value == [])
    ]


def refuse(args: argparse.Namespace, names: Sequence[str], why: str) -> None:
    """Refuse flags that were said and would change nothing.

    >>> refuse(argparse.Namespace(margin=1.0), ("margin",), "can only be used with --points")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.SettingsError: --margin can only be used with --points
    """
    from dovetail.core.errors import SettingsError

    if said := given(args, names):
        raise SettingsError(f"{' and '.join(said)} {why}")
