"""Look after a shelf: list, find, show, add, remove, verify and share parts."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dovetail.cli import common

if TYPE_CHECKING:
    from dovetail.flows.outcome import Outcome

__all__ = ["EXAMPLE", "add", "run"]

EXAMPLE = "dovetail shelf ls 'lenet-*'"


def add(parser: argparse.ArgumentParser) -> None:
    """The sub-commands."""
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
    _add_filters(ls)
    find = action("find", "find parts by what they are, the best fit first", "find --fits lenet@2")
    find.add_argument("pattern", nargs="?", help="of the name, such as 'lenet-*'")
    _add_filters(find)
    path = action("path", "the best chain of parts from a front to a head", "path net.front a.back")
    path.add_argument("front", metavar="FRONT", help="name, or name@version")
    path.add_argument("head", metavar="HEAD", help="name, or name@version")
    show = action("show", "show one part: contract, recipe, origin, lineage", "show lenet@2")
    show.add_argument("part", help="name, or name@version")
    put = action("add", "check a part and put it on the shelf", "add ./lenet --tag mine")
    put.add_argument(
        "source", help="a folder written by save_pretrained, or efficientnet-lite0, -lite1, -lite2"
    )
    put.add_argument("--name", help="name on the shelf (default: the folder's)")
    common.add_set(put)
    put.add_argument("--tag", dest="tags", action="append", metavar="TAG", help="may be repeated")
    rm = action("rm", "remove a version, or a whole name with --all", "rm lenet@1")
    rm.add_argument("part", help="name@version")
    rm.add_argument("--all", dest="all_versions", action="store_true", help="every version")
    verify = action("verify", "read every part again and tell all that is wrong", "verify")
    verify.add_argument("part", nargs="?", help="only this one")
    verify.add_argument(
        "--sweep", action="store_true", help="delete day-old unfinished work of writers that died"
    )
    push = action("push", "send a part to a hub's repository", "push lenet@2 someone/lenet")
    push.add_argument("part", help="name, or name@version")
    push.add_argument("repo", metavar="REPO", help="repository, such as someone/lenet")
    push.add_argument("--public", action="store_true", help="of a new repository: all may see it")
    pull = action("pull", "fetch a part from a hub's repository, checked", "pull someone/lenet")
    pull.add_argument("repo", metavar="REPO", help="repository, such as someone/lenet")
    pull.add_argument("--name", help="name on the shelf (default: the repository's)")
    pull.add_argument("--revision", help="branch, tag or commit (default: main)")
    pull.add_argument("--tag", dest="tags", action="append", metavar="TAG", help="may be repeated")


def _add_filters(parser: argparse.ArgumentParser) -> None:
    asked = parser.add_argument_group("only parts that")
    asked.add_argument("--fits", metavar="REF", help="can follow or precede this one")
    asked.add_argument("--space", help="take or give this space")
    asked.add_argument("--classes", type=_words, metavar="A,B", help="know all these classes")
    asked.add_argument("--task", help="were made on this task")
    asked.add_argument("--tag", help="bear this tag")
    asked.add_argument("--takes", type=_sizes, metavar="16x2x2", help="take this shape ('?': any)")
    asked.add_argument("--gives", type=_sizes, metavar="16x?x?", help="give this shape")


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _sizes(text: str) -> tuple[int | None, ...]:
    """A shape as people write it.

    >>> _sizes("16x?x2"), _sizes("64")
    ((16, None, 2), (64,))
    """
    axes = text.replace("×", "x").split("x")
    if not all(axis == "?" or axis.isdecimal() for axis in axes):
        raise argparse.ArgumentTypeError(f"expected a shape such as 16x2x2, got {text!r}")
    return tuple(None if axis == "?" else int(axis) for axis in axes)


def run(args: argparse.Namespace) -> int:
    """Run the action; verify exits with 1 when a part is damaged."""
    return common.show(_outcome(args), args)


def _outcome(args: argparse.Namespace) -> Outcome:
    from dovetail.flows import shelf

    match args.action:
        case "ls" | "find":
            asked = ("fits", "space", "classes", "task", "tag", "takes", "gives")
            wanted = {name: getattr(args, name) for name in asked}
            return shelf.ls(args.pattern, shelf=args.shelf, **wanted)
        case "path":
            return shelf.path(args.front, args.head, shelf=args.shelf)
        case "show":
            return shelf.show(args.part, shelf=args.shelf)
        case "add":
            about = {"name": args.name, "tags": args.tags, "args": dict(args.args)}
            return shelf.add(args.source, **about, shelf=args.shelf)
        case "rm":
            return shelf.rm(args.part, all_versions=args.all_versions, shelf=args.shelf)
        case "push":
            return shelf.push(args.part, args.repo, public=args.public, shelf=args.shelf)
        case "pull":
            about = {"name": args.name, "revision": args.revision, "tags": args.tags}
            return shelf.pull(args.repo, **about, shelf=args.shelf)
        case _:
            return shelf.verify(args.part, sweep=args.sweep, shelf=args.shelf)
