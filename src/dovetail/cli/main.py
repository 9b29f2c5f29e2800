"""``dovetail``: find the command and run it; a user's mistake is one message and exit code 2."""

from __future__ import annotations

import errno
import os
import sys
from functools import partial
from importlib import import_module

from dovetail import __version__
from dovetail.cli.parsing import Parser, branches
from dovetail.core.words import harmless

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from collections.abc import Sequence

_COMMANDS = {
    "fit": "from a folder of images or a table to a model in use",
    "demo": "a tour on small digits: train, cut, shelve, join, measure",
    "data": "list and get the data sets that are known by name",
    "train": "train a network on a task and put it on the shelf",
    "cut": "cut a network into two parts that fit",
    "join": "join parts end to end, or say why not",
    "recombine": "measure every front with every head, without training",
    "reuse": "put shelved parts to use: another domain, front, device, class or task",
    "rank": "rank parts, cut points or epochs for a task, without training",
    "adapt": "fit a part to few labels, by inference, a probe or fine-tuning",
    "inspect": "look into a part: what its layers learnt, and why it transfers",
    "predict": "name the classes of new inputs",
    "pack": "pack weights small: a part, a file or a whole shelf",
    "unpack": "turn packed weights into plain tensors again",
    "export": "write a part as ONNX or a torch.export program, checked",
    "shelf": "list, show, add, remove, verify and share parts",
    "report": "make a page of records and of the shelf",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 for a 'no', 2 for a mistake, 130 for Ctrl-C."""
    args = _parser().parse_args(argv)
    try:
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as interrupt:
        said = str(interrupt) or "nothing is half-written"
        print(f"dovetail: interrupted; {said}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if _out_of_memory(error):
            print(
                "dovetail: out of memory; ask for less (--channels, --set, --batch-size)",
                file=sys.stderr,
            )
            return 2
        if not _users_mistake(error):
            raise
        from dovetail.core.errors import DovetailError, SettingsError

        if isinstance(error, DovetailError):
            message = error.spelled(args.parser.spell)
            if isinstance(error, SettingsError):
                message = args.parser.spell_first(message, args)
        else:
            message = harmless(str(error))
        print(f"dovetail: {message}", file=sys.stderr)
        return 2


def _users_mistake(error: Exception) -> bool:
    from dovetail.core.errors import DovetailError

    out_of_space = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EACCES)
    return out_of_space or isinstance(error, DovetailError)


def _out_of_memory(error: Exception) -> bool:
    """Whether Python or torch could not allocate; on the CPU torch says so in words only.

    >>> _out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ..."))
    True
    >>> _out_of_memory(RuntimeError("shapes differ"))
    False
    """
    said = str(error)
    in_words = "can't allocate memory" in said or "out of memory" in said
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and in_words)


def _parser() -> Parser:
    parser = Parser(
        prog="dovetail",
        description="Build deep networks from parts that fit.",
        epilog="Start with 'dovetail demo'. Each command has --help with an example.",
    )
    parser.add_argument("--version", action="version", version=f"dovetail {__version__}")
    commands = branches(parser, "commands")
    for name, words in _COMMANDS.items():
        commands.add_parser(name, help=words, fill=partial(_fill, name))
    return parser


def _fill(name: str, parser: Parser) -> None:
    command = import_module(f"dovetail.cli.{name}")
    parser.description = command.__doc__
    parser.epilog = f"example:\n  {command.EXAMPLE}"
    parser.set_defaults(run=command.run)
    command.add(parser)
