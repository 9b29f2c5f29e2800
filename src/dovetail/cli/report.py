"""Make a report of records: one self-contained page, or Markdown; and files of their figures.

The page (.html) opens offline, prints, and needs no server.  Markdown (.md) has its figures as SVG
in a folder beside it.
"""

from __future__ import annotations

import argparse
import os

from dovetail.cli import common
from dovetail.settings.show import Report

EXAMPLE = """dovetail report records/ --shelf shelf -o report.html
  dovetail report records/ -o report.md
  dovetail report records/ --figures figures --format png"""


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("records", nargs="*", help="record files, or folders of them")
    common.add_settings(parser, Report.declared.values())
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Write the report."""
    from dovetail.core.errors import FormatError
    from dovetail.shelf.names import need_folder

    options = common.settings_of(args, Report)
    if not args.records and args.shelf is None:
        raise FormatError("nothing to report: give record files, a folder of them, or --shelf")
    for source in args.records:
        if not os.path.exists(source):
            raise FormatError(f"{source}: no such file")
    if args.shelf is not None:
        need_folder(args.shelf)
    from dovetail.jobs.report import report

    return common.show(report(args.records, **options), args)
