"""Look after a shelf: list, show, add, remove and verify parts."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dovetail.cli import common

if TYPE_CHECKING:
    from dovetail.flows.outcome import Outcome

__all__ = ["EXAMPLE", "add", "run"]

EXAMPLE = "dovetail shelf ls 'lenet-*'"


def add(parser: argparse.ArgumentParser) -> None:
    """The five sub-commands."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)

    def action(name: str, words: str, example: str) -> argparse.ArgumentParser:
        child = actions.add_parser(
            name,
            help=words,
            description=words[0].upper() + words[1:] + ".",
            epilog=f"example:\n  dovetail shelf {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        common.add_shelf(child)
        common.add_json(child)
        return child

    ls = action("ls", "list the parts", "ls 'lenet-*'")
    ls.add_argument("pattern", nargs="?", help="of the name, such as 'lenet-*'")
    show = action("show", "show one part: contract, recipe, origin, lineage", "show lenet@2")
    show.add_argument("part", help="name, or name@version")
    put = action("add", "check a part's folder and copy it to the shelf", "add ./lenet --tag mine")
    put.add_argument("folder", help="a folder written by save_pretrained")
    put.add_argument("--name", help="name on the shelf (default: the folder's)")
    put.add_argument("--tag", dest="tags", action="append", metavar="TAG", help="may be repeated")
    rm = action("rm", "remove a version, or a whole name with --all", "rm lenet@1")
    rm.add_argument("part", help="name@version")
    rm.add_argument("--all", dest="all_versions", action="store_true", help="every version")
    verify = action("verify", "read every part again and tell all that is wrong", "verify")
    verify.add_argument("part", nargs="?", help="only this one")


def run(args: argparse.Namespace) -> int:
    """Run the action; verify exits with 1 when a part is damaged."""
    return common.show(_outcome(args), args)


def _outcome(args: argparse.Namespace) -> Outcome:
    from dovetail.flows import shelf

    match args.action:
        case "ls":
            return shelf.ls(args.pattern, shelf=args.shelf)
        case "show":
            return shelf.show(args.part, shelf=args.shelf)
        case "add":
            return shelf.add(args.folder, name=args.name, tags=args.tags, shelf=args.shelf)
        case "rm":
            return shelf.rm(args.part, all_versions=args.all_versions, shelf=args.shelf)
        case _:
            return shelf.verify(args.part, shelf=args.shelf)
