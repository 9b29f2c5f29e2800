"""Unpack to plain tensors: a packed part becomes a plain one, a .dovepack file a .safetensors file.

The weights stay what packing made of them; what was rounded away does not come back.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dovetail.cli import common

__all__ = ["EXAMPLE", "add", "run"]

EXAMPLE = """\
dovetail unpack lenet-packed --name lenet-plain
  dovetail unpack weights.dovepack --to weights.safetensors"""


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "part",
        metavar="PART",
        help="name or name@version on the shelf, a part's folder, or a .dovepack file",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--to", type=Path, metavar="PATH", help="folder or file to write (default: beside PART)"
    )
    where.add_argument("--name", help="name on the shelf (default: NAME-unpacked)")
    parser.add_argument("--replace", action="store_true", help="overwrite what is at --to")
    parser.add_argument(
        "--most-gigabytes",
        type=float,
        metavar="GB",
        help="of a file: refuse to unpack to more (default: what packing rarely exceeds)",
    )
    common.add_shelf(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Unpack."""
    from dovetail.flows.unpack import unpack

    outcome = unpack(
        args.part,
        to=args.to,
        name=args.name,
        replace=args.replace,
        most_gigabytes=args.most_gigabytes,
        shelf=args.shelf,
    )
    return common.show(outcome, args)
