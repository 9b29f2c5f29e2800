"""Parsers that cost nothing until they are asked for.

A command line that is listed, misspelt or asked for help is answered in little more than Python's
own start, so no command's module is imported, and no action's arguments are made, before the user
has named it.
"""

from __future__ import annotations

import argparse
import os

from dovetail.core.words import harmless

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn


class Help(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal, which argparse would import much to find out.

    >>> parser = argparse.ArgumentParser("cut", formatter_class=Help)
    >>> parser.format_usage()
    'usage: cut [-h]\\n'
    """

    def __init__(self, prog: str, **about: Any) -> None:
        super().__init__(prog, **{"width": columns() - 2, **about})


class Parser(argparse.ArgumentParser):
    """A parser whose mistakes are one line, as all of dovetail's.

    ``spellings`` has what stands for arguments that are no option's destination.
    """

    def __init__(self, **about: Any) -> None:
        super().__init__(**{"formatter_class": Help, **about})
        self.spellings: dict[str, str] = {}

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is, and leave with 2."""
        self.exit(2, f"dovetail: {harmless(message)}; see '{self.prog} --help'\n")

    def spell(self, name: str, value: str) -> str:
        """An argument of an error, as this command has it: by the destination of its options.

        Arguments of builders (``set.``) and of tasks (``task_set.``) have an option in common.

        >>> parser = Parser(prog="join")
        >>> _ = parser.add_argument("--norms"), parser.add_argument("--all", dest="all_versions")
        >>> parser.spell("norms", "='batch'"), parser.spell("all_versions", "=True")
        ('--norms batch', '--all')
        >>> parser.spell("set.classes", "=10"), parser.spell("weights", "=")
        ('--set classes=10', 'weights=')
        """
        if name in self.spellings:
            return self.spellings[name].format(value.removeprefix("="))
        through, dot, inner = name.partition(".")
        plain = value.removeprefix("=")
        if plain.startswith("("):
            plain = plain.strip("()").removesuffix(",").replace(", ", ",")
        plain = plain.replace("'", "").replace('"', "")
        if dot:
            return f"--{through.replace('_', '-')} {inner}{'=' if plain else ''}{plain}"
        options = (each.option_strings for each in self._actions if each.dest == name)
        long = (flag for strings in options for flag in strings if flag.startswith("--"))
        flag = next(long, None)
        if flag is None:
            return name + value
        if plain == "False":
            return f"--no-{flag.removeprefix('--')}"
        return flag if plain in ("", "True") else f"{flag} {plain}"

    def spell_first(self, message: str, args: argparse.Namespace) -> str:
        """A message that begins with the name of an option that was said begins with its flag.

        Estimators and what is below them know no door: they name their arguments plainly.

        >>> parser = Parser(prog="adapt")
        >>> _ = parser.add_argument("--labels-per-class", dest="labels")
        >>> said = parser.parse_args(["--labels-per-class", "0"])
        >>> parser.spell_first("labels must be at least 1, got 0", said)
        '--labels-per-class must be at least 1, got 0'
        >>> parser.spell_first("labels must be at least 1, got 0", parser.parse_args([]))
        'labels must be at least 1, got 0'
        """
        first, gap, rest = message.partition(" ")
        name, equals, value = first.partition("=")
        if not gap or getattr(args, name, None) is None:
            return message
        return f"{self.spell(name, equals + value)} {rest}"


class Branch(Parser):
    """The parser of one command or action, which comes to be when it is asked to parse.

    ``fill`` adds its arguments; ``words`` is what there is to parse.
    """

    def __init__(self, *, fill: Callable[[Parser], None], **about: Any) -> None:
        self._later: tuple[Callable[[Parser], None], dict[str, Any]] | None = (fill, about)

    def parse_known_args(self, *words: Any, **into: Any) -> Any:
        """Come to be, and parse."""
        if self._later is not None:
            fill, about = self._later
            self._later = None
            super().__init__(**about)
            self.words: list[str] = list(words[0] or ()) if words else []
            self.set_defaults(parser=self)
            fill(self)
        return super().parse_known_args(*words, **into)


def branches(
    parser: argparse.ArgumentParser, title: str, **about: Any
) -> argparse._SubParsersAction[Branch]:
    """A place for commands or actions, of which one must be named.

    >>> parser = Parser(prog="shelf")
    >>> actions = branches(parser, "actions", dest="action")
    >>> _ = actions.add_parser("ls", help="list", fill=lambda ls: ls.set_defaults(wide=True))
    >>> args = parser.parse_args(["ls"])
    >>> args.action, args.wide
    ('ls', True)
    """
    return parser.add_subparsers(
        title=title,
        metavar=title.removesuffix("s").upper(),
        required=True,
        prog=parser.prog,  # else argparse lays out a usage to find it
        parser_class=Branch,
        **about,
    )


def columns() -> int:
    """How wide the terminal is, or is said to be."""
    try:
        width = int(os.environ.get("COLUMNS") or 0)
        return width if width > 0 else os.get_terminal_size().columns or 80
    except (OSError, ValueError):  # no terminal, or no number
        return 80
