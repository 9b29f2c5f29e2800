"""Look after a shelf: list, find, show, add, remove, verify and share parts."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from dovetail.cli import common
from dovetail.cli.parsing import branches
from dovetail.settings.shelf import ACTIONS, Find

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from collections.abc import Callable

    from dovetail.jobs import Outcome

EXAMPLE = "dovetail shelf ls 'lenet-*'"

_INPUTS = ("pattern", "front", "head", "source", "part", "repo")
"""What actions work on, in the order in which their jobs take it."""


def add(parser: argparse.ArgumentParser) -> None:
    """The sub-commands."""
    actions = branches(parser, "actions", dest="action")
    for words, example in (
        ("list the parts", "ls 'lenet-*'"),
        ("find parts by what they are, the best fit first", "find --fits lenet@2"),
        ("the best chain of parts from a front to a head", "path net.front a.back"),
        ("show one part: contract, recipe, origin, lineage", "show lenet@2"),
        (
            "put a part, or a network of others with its weights, on the shelf, after checking it",
            "add timm/resnet18 --weights resnet18.safetensors",
        ),
        ("remove a version, or a whole name with --all", "rm lenet@1"),
        ("read every part again and tell all that is wrong", "verify"),
        ("send a part to a hub's repository", "push lenet@2 someone/lenet"),
        ("fetch a part from a hub's repository, checked", "pull someone/lenet"),
    ):
        action = example.partition(" ")[0]
        actions.add_parser(
            action,
            help=words,
            description=words[0].upper() + words[1:] + ".",
            epilog=f"example:\n  dovetail shelf {example}",
            fill=partial(_fill, action),
        )


def _fill(action: str, parser: argparse.ArgumentParser) -> None:
    """What the action works on, and what it lets people choose."""
    if action in ("ls", "find"):
        parser.add_argument("pattern", nargs="?", help="of the name, such as 'lenet-*'")
    elif action == "path":
        parser.add_argument("front", metavar="FRONT", help="name, or name@version")
        parser.add_argument("head", metavar="HEAD", help="name, or name@version")
    elif action == "add":
        parser.add_argument(
            "source",
            help="a folder written by save_pretrained; or a network's name, such as timm/resnet18 "
            "or efficientnet-lite0, which brings its weights",
        )
        common.add_set(parser)
    elif action == "verify":
        parser.add_argument("part", nargs="?", help="only this one")
    elif action != "pull":
        parser.add_argument("part", help="name, or name@version")
    if action in ("push", "pull"):
        parser.add_argument("repo", metavar="REPO", help="repository, such as someone/lenet")
    if action in ACTIONS:
        group = parser.add_argument_group("only parts that") if ACTIONS[action] is Find else parser
        common.add_settings(group, ACTIONS[action].declared.values())
    common.add_shelf(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run the action; verify exits with 1 when a part is damaged."""
    paper = "json" if args.json else common.paper()
    if _is_plain(args) and paper is not None:
        return _tell(args, paper)
    return common.show(_outcome(args), args)


def _is_plain(args: argparse.Namespace) -> bool:
    """Whether the whole shelf is asked for, or one part: what nothing but the parts decides."""
    if args.action == "ls":
        return not any(getattr(args, name) for name in ("pattern", *Find.declared))
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
    answer = glance.remembered(args.shelf, f"{question} {paper}", now)
    if answer is None:
        answer = common.keep_answer(args.shelf, question, now, paper, _outcome(args))
    sys.stdout.write(answer)
    return 0


def _outcome(args: argparse.Namespace) -> Outcome:
    from dovetail.jobs import shelf

    options = common.settings_of(args, ACTIONS[args.action]) if args.action in ACTIONS else {}
    if args.action == "add":
        from dovetail.jobs.shelf import add as add_part  # torch loads here

        return add_part(args.source, **options, args=dict(args.args), shelf=args.shelf)
    do: Callable[..., Outcome] = getattr(shelf, "ls" if args.action == "find" else args.action)
    inputs = [getattr(args, name) for name in _INPUTS if name in args]
    return do(*inputs, **options, shelf=args.shelf)
