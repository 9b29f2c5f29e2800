"""Pack weights small: a part of the shelf or of a folder, a safetensors file, or all of a shelf.

Each tensor is quantised to as many bits as its entropy asks for, and coded.  A packed part loads
like any other.  With --task its accuracy before and after is measured on the test split; with
--loss-budget or --points the smallest bits are searched that cost no more on the validation split.
"""

from __future__ import annotations

import argparse
import os

from dovetail.cli import common
from dovetail.settings.common import Reading
from dovetail.settings.pack import Bits, Budget, Pack, Place

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from collections.abc import Iterable

EXAMPLE = """\
dovetail pack lenet --task digits
  dovetail pack lenet --task digits --loss-budget 0.001 --name lenet-small
  dovetail pack weights.safetensors --extra-bits 5
  dovetail pack --all"""


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_places(parser, "a .safetensors file", "the latest version of every part", "-packed")
    common.add_settings(parser.add_argument_group("bits"), Bits.declared.values())
    either = parser.add_mutually_exclusive_group()
    for name, one in Budget.declared.items():
        common.add_settings(parser if name == "margin" else either, [one])
    common.add_settings(parser, [Pack.declared["task"]])
    common.add_common(parser)
    parser.set_defaults(shelf=None)  # so that one that says nothing can be refused


def add_places(parser: argparse.ArgumentParser, file: str, every: str, ending: str) -> None:
    """What is packed or unpacked, and where it goes."""
    words = f"name or name@version on the shelf, a part's folder, or {file}"
    parser.add_argument("part", nargs="?", metavar="PART", help=words)
    parser.add_argument("--all", dest="all_parts", action="store_true", help=every)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--name", help=f"name on the shelf (default: NAME{ending})")
    for name, one in Place.declared.items():
        common.add_settings(where if name == "to" else parser, [one])
    common.spells(parser, overwrite="--replace")


def run(args: argparse.Namespace) -> int:
    """Pack one thing, or a shelf."""
    need_source(args, "pack")
    if args.all_parts:
        alone = ("task", "rule", "loss_budget", "points", "name", "replace")
        refuse(args, alone, "cannot be used with --all, which packs by entropy, --bits or --levels")
    if not _flags_said(args, ("loss_budget", "points")):
        refuse(args, ("margin",), "can only be used with --loss-budget or --points")
    if args.task is None:
        reading = (*Reading.declared, "task_options", "data")
        refuse(args, reading, "can only be used with --task")
    if decides := _flags_said(args, ("bits", "levels", "loss_budget", "points")):
        refuse(
            args,
            ("extra_bits", "seed"),
            f"cannot be used with {decides[0]}, which replaces the rule",
        )
    options = common.settings_of(args, Pack)
    common.need_tasks([args.task], args.data)
    from dovetail.jobs.pack import pack, pack_all  # torch loads here

    do, inputs = (pack_all, []) if args.all_parts else (pack, [args.part])
    return common.show(do(*inputs, **options, **common.frame_of(args)), args)


def need_source(args: argparse.Namespace, verb: str) -> None:
    """Refuse both a part and --all, neither, and a name that is on no shelf and looks like none."""
    from dovetail.core.errors import SettingsError

    part: str | None = args.part
    if part is not None and args.all_parts:
        raise SettingsError(f"--all {verb}s every part on the shelf; name none, or leave out --all")
    if part is None and not args.all_parts:
        raise SettingsError(f"name what to {verb}, or say --all for every part on the shelf")
    if part and not ("/" in part or "." in part or os.path.exists(part)):
        common.need_parts([part], args.shelf or "shelf")


def _flags_said(args: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """Which of these were said, as flags.

    >>> _flags_said(argparse.Namespace(bits=0, replace=None, task_options=[]), ("bits", "replace"))
    ['--bits']
    """
    spelled = {"task_options": "task-set"}
    return [
        f"--{spelled.get(name, name.replace('_', '-'))}"
        for name, value in common.values_of(args, names).items()
        if value != []
    ]


def refuse(args: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """Refuse flags that were said and would change nothing.

    >>> refuse(argparse.Namespace(margin=1.0), ("margin",), "can only be used with --points")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.SettingsError: --margin can only be used with --points
    """
    from dovetail.core.errors import SettingsError

    if flags := _flags_said(args, names):
        raise SettingsError(f"{' and '.join(flags)} {why}")
