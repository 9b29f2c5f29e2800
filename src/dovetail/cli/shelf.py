"""Look after a shelf: list, find, show, add, remove, verify and share parts."""

from __future__ import annotations

import argparse
import sys

from dovetail.cli import common
from dovetail.cli.parsing import branches

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from dovetail.jobs.outcome import Outcome

__all__ = ["EXAMPLE", "add", "run"]

EXAMPLE = "dovetail shelf ls 'lenet-*'"

_FILTERS = ("fits", "space", "classes", "task", "tag", "takes", "gives")


def add(parser: argparse.ArgumentParser) -> None:
    """The sub-commands."""
    actions = branches(parser, "actions", dest="action")
    for fill, words, example in (
        (_ls, "list the parts", "ls 'lenet-*'"),
        (_find, "find parts by what they are, the best fit first", "find --fits lenet@2"),
        (_path, "the best chain of parts from a front to a head", "path net.front a.back"),
        (_show, "show one part: contract, recipe, origin, lineage", "show lenet@2"),
        (
            _add,
            "put a part, or a network of others with its weights, on the shelf, after checking it",
            "add timm/resnet18 --weights resnet18.safetensors",
        ),
        (_rm, "remove a version, or a whole name with --all", "rm lenet@1"),
        (_verify, "read every part again and tell all that is wrong", "verify"),
        (_push, "send a part to a hub's repository", "push lenet@2 someone/lenet"),
        (_pull, "fetch a part from a hub's repository, checked", "pull someone/lenet"),
    ):
        actions.add_parser(
            example.partition(" ")[0],
            help=words,
            description=words[0].upper() + words[1:] + ".",
            epilog=f"example:\n  dovetail shelf {example}",
            fill=fill,
        )


def _every(parser: argparse.ArgumentParser) -> None:
    common.add_shelf(parser)
    common.add_json(parser)


def _ls(parser: argparse.ArgumentParser) -> None:
    _every(parser)
    parser.add_argument("pattern", nargs="?", help="of the name, such as 'lenet-*'")
    asked = parser.add_argument_group("only parts that")
    asked.add_argument("--fits", metavar="REF", help="can follow or precede this one")
    asked.add_argument("--space", help="take or give this space")
    asked.add_argument("--classes", type=common.words, metavar="A,B", help="know all these classes")
    asked.add_argument("--task", help="were made on this task")
    asked.add_argument("--tag", help="bear this tag")
    asked.add_argument("--takes", type=_sizes, metavar="16x2x2", help="take this shape ('?': any)")
    asked.add_argument("--gives", type=_sizes, metavar="16x?x?", help="give this shape")


_find = _ls


def _path(parser: argparse.ArgumentParser) -> None:
    _every(parser)
    parser.add_argument("front", metavar="FRONT", help="name, or name@version")
    parser.add_argument("head", metavar="HEAD", help="name, or name@version")


def _show(parser: argparse.ArgumentParser) -> None:
    _every(parser)
    parser.add_argument("part", help="name, or name@version")


def _add(parser: argparse.ArgumentParser) -> None:
    _every(parser)
    parser.add_argument(
        "source",
        help="a folder written by save_pretrained; or a network's name, such as timm/resnet18 or "
        "efficientnet-lite0, which brings its weights",
    )
    parser.add_argument("--name", help="name on the shelf (default: the folder's)")
    network = parser.add_argument_group("a network by its name")
    network.add_argument(
        "--weights", metavar="FILE", help="its trained weights, a .safetensors or .pth file"
    )
    network.add_argument("--features", action="store_true", help="without its classifier")
    network.add_argument("--classes", type=common.words, metavar="A,B", help="names of its outputs")
    network.add_argument("--size", type=int, metavar="PIXELS", help="of the images it will take")
    common.add_set(parser)
    _tags(parser)


def _rm(parser: argparse.ArgumentParser) -> None:
    _every(parser)
    parser.add_argument("part", help="name@version")
    parser.add_argument("--all", dest="all_versions", action="store_true", help="every version")


def _verify(parser: argparse.ArgumentParser) -> None:
    _every(parser)
    parser.add_argument("part", nargs="?", help="only this one")
    parser.add_argument(
        "--sweep", action="store_true", help="delete day-old unfinished work of writers that died"
    )


def _push(parser: argparse.ArgumentParser) -> None:
    _every(parser)
    parser.add_argument("part", help="name, or name@version")
    parser.add_argument("repo", metavar="REPO", help="repository, such as someone/lenet")
    parser.add_argument("--public", action="store_true", help="of a new repository: all may see it")


def _pull(parser: argparse.ArgumentParser) -> None:
    _every(parser)
    parser.add_argument("repo", metavar="REPO", help="repository, such as someone/lenet")
    parser.add_argument("--name", help="name on the shelf (default: the repository's)")
    parser.add_argument("--revision", help="branch, tag or commit (default: main)")
    _tags(parser)


def _tags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tag", dest="tags", action="append", metavar="TAG", help="may be repeated"
    )


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
    paper = "json" if args.json else common.paper()
    if _is_plain(args) and paper is not None:
        return _tell(args, paper)
    return common.show(_outcome(args), args)


def _is_plain(args: argparse.Namespace) -> bool:
    """Whether the whole shelf is asked for, or one part: what nothing but the parts decides."""
    if args.action == "ls":
        return not any(getattr(args, name) for name in ("pattern", *_FILTERS))
    return bool(args.action == "show")


def _tell(args: argparse.Namespace, paper: str) -> int:
    """Say what was said the last time if nothing has changed, which takes next to nothing."""
    from dovetail.shelf import glance, names

    try:
        now = glance.stamps(args.shelf)
        if args.action == "show":
            names.need_part(args.part, args.shelf)
    except OSError:  # a closed folder, which the list has words for
        return common.show(_outcome(args), args)
    if not now and args.action == "ls":
        sys.stdout.write(glance.empty_list(args.shelf, as_json=args.json))
        return 0
    question = f"{args.action} {getattr(args, 'part', '')}".rstrip()
    said = glance.remembered(args.shelf, f"{question} {paper}", now)
    if said is None:
        said = common.keep_answer(args.shelf, question, now, paper, _outcome(args))
    sys.stdout.write(said)
    return 0


def _outcome(args: argparse.Namespace) -> Outcome:
    from dovetail.jobs import shelf

    match args.action:
        case "ls" | "find":
            wanted = {name: getattr(args, name) for name in _FILTERS}
            return shelf.ls(args.pattern, shelf=args.shelf, **wanted)
        case "path":
            return shelf.path(args.front, args.head, shelf=args.shelf)
        case "show":
            return shelf.show(args.part, shelf=args.shelf)
        case "add":
            from dovetail.jobs.shelf_add import add as add_part  # torch loads here

            names = ("name", "tags", "weights", "features", "classes", "size")
            about = {name: getattr(args, name) for name in names}
            return add_part(args.source, **about, args=dict(args.args), shelf=args.shelf)
        case "rm":
            return shelf.rm(args.part, all_versions=args.all_versions, shelf=args.shelf)
        case "push":
            return shelf.push(args.part, args.repo, public=args.public, shelf=args.shelf)
        case "pull":
            about = {"name": args.name, "revision": args.revision, "tags": args.tags}
            return shelf.pull(args.repo, **about, shelf=args.shelf)
        case _:
            return shelf.verify(args.part, sweep=args.sweep, shelf=args.shelf)
