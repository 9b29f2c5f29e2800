"""Unpack to plain tensors: a packed part becomes a plain one, a .dovepack file a .safetensors file.

The weights stay what packing made of them; what was rounded away does not come back.
"""

from __future__ import annotations

import argparse

from dovetail.cli import common
from dovetail.cli.pack import need_source, one_or_all, refuse

__all__ = ["EXAMPLE", "add", "run"]

EXAMPLE = """\
dovetail unpack lenet-packed --name lenet-plain
  dovetail unpack weights.dovepack --to weights.safetensors
  dovetail unpack --all --to plain-shelf"""


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "part",
        nargs="?",
        metavar="PART",
        help="name or name@version on the shelf, a part's folder, or a .dovepack file",
    )
    parser.add_argument(
        "--all",
        dest="all_parts",
        action="store_true",
        help="the latest version of every part that is packed",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--to",
        type=common.path,
        metavar="PATH",
        help="folder or file to write; with --all a shelf (default: beside the source)",
    )
    where.add_argument("--name", help="name on the shelf (default: NAME-unpacked)")
    parser.add_argument("--replace", action="store_true", help="overwrite what is at --to")
    parser.add_argument(
        "--most-gigabytes",
        type=float,
        metavar="GB",
        help="of a file: refuse to unpack to more (default: what packing rarely exceeds)",
    )
    common.spells(parser, overwrite="--replace", most_bytes="--most-gigabytes; in bytes it is {}")
    common.add_shelf(parser)
    parser.set_defaults(shelf=None)  # so that one that says nothing can be refused
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Unpack one thing, or a shelf."""
    one_or_all(args, "unpack")
    if args.all_parts:
        refuse(args, ("name", "replace", "most_gigabytes"), "cannot be used with --all")
    need_source(args)
    from dovetail.jobs.unpack import unpack, unpack_all  # torch loads here

    if args.all_parts:
        return common.show(unpack_all(to=args.to, shelf=args.shelf), args)
    outcome = unpack(
        args.part,
        to=args.to,
        name=args.name,
        replace=args.replace,
        most_gigabytes=args.most_gigabytes,
        shelf=args.shelf,
    )
    return common.show(outcome, args)
