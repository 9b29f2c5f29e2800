"""Write a part as a file that runs without dovetail: ONNX, or a program of torch.export.

The outputs of what is written are compared with the part's before the file is there.
"""

from __future__ import annotations

import argparse

from dovetail.cli import common
from dovetail.settings.export import Export, format_of

EXAMPLE = """\
dovetail export lenet -o lenet.onnx
  dovetail export lenet@2 -o lenet.pt2 --no-pixels"""


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("part", help="name or name@version on the shelf, or a part's folder")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="what to write; the ending says how: .onnx or .pt2",
    )
    common.add_settings(parser, Export.declared.values())
    common.add_shelf(parser)
    common.add_record(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Export and say how well it agrees."""
    settings = common.settings_of(args, Export)
    format_of(args.output, replace=settings.get("replace", Export.replace))
    common.need_parts([args.part], args.shelf)
    from dovetail.jobs.export import export  # torch loads here

    return common.show(export(args.part, args.output, shelf=args.shelf, **settings), args)
