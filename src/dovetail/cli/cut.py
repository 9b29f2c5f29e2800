"""Cut a network after a point and put both halves on the shelf; without --at, list the points."""

from __future__ import annotations

import argparse

from dovetail.cli import common

__all__ = ["EXAMPLE", "add", "run"]

EXAMPLE = "dovetail cut lenet --at conv2"


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("part", help="name or name@version on the shelf, or a part's folder")
    parser.add_argument("--at", help="cut point; left out, all are listed")
    parser.add_argument("--name", help="the halves become NAME.front and NAME.back")
    common.add_shelf(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Cut, or list."""
    from dovetail.cli.early import need_parts

    need_parts([args.part], args.shelf)
    from dovetail.jobs.cut import cut, list_points

    if args.at is None:
        return common.show(list_points(args.part, shelf=args.shelf), args)
    return common.show(cut(args.part, args.at, name=args.name, shelf=args.shelf), args)
