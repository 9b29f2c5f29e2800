"""Cut a network after a point and put both halves on the shelf; without --at, list the points."""

from __future__ import annotations

import argparse

from dovetail.cli import common
from dovetail.settings.join import Cut

EXAMPLE = "dovetail cut lenet --at conv2"


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("part", help="name or name@version on the shelf, or a part's folder")
    parser.add_argument("--name", help="the halves become NAME.front and NAME.back")
    common.add_settings(parser, Cut.declared.values())
    common.add_shelf(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Cut, or list."""
    common.need_parts([args.part], args.shelf)
    from dovetail.jobs.cut import cut  # torch loads here

    return common.show(cut(args.part, args.at, **common.frame_of(args)), args)
