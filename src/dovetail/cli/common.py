"""Options that several commands share, what is told before torch loads, how an outcome is shown."""

from __future__ import annotations

import argparse
import os
import sys

from dovetail.cli.parsing import columns
from dovetail.settings.common import Common, Reading

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path
    from typing import Any

    from dovetail.core.settings import Setting, Settings
    from dovetail.core.views import View
    from dovetail.jobs import Outcome


def add_json(parser: argparse.ArgumentParser) -> None:
    """``--json``: one object for machines instead of words for people."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_settings(
    parser: argparse._ActionsContainer, declared: Iterable[Setting], *, hidden: bool = False
) -> None:
    """A flag for each setting, as it is declared; what was not said stays ``None``.

    So a flag that was given where it means nothing can be refused, and defaults are the verb's.

    >>> from dovetail.settings.train import Loop
    >>> parser = argparse.ArgumentParser("train")
    >>> add_settings(parser, Loop.declared.values())
    >>> settings_of(parser.parse_args(["--epochs", "3", "--no-resume"]), Loop)
    {'epochs': 3, 'resume': False}
    """
    for one in declared:
        about: dict[str, Any] = {"dest": one.name, "default": None}
        about["help"] = argparse.SUPPRESS if hidden else one.words.replace("%", "%%")
        if one.kind == "bool":
            about["action"] = argparse.BooleanOptionalAction if one.default else "store_true"
        else:
            type = one.type.removesuffix(" | None")
            about |= {"type": _READS.get(type, str), "metavar": one.metavar}
            if one.many:
                about |= {"nargs": "+"} if one.many == "+" else {"action": "append"}
                about["type"] = str
        parser.add_argument(*one.flag.split(), **about)


def values_of(args: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """What was said, of these arguments."""
    return {name: value for name in names if (value := getattr(args, name, None)) is not None}


def settings_of(args: argparse.Namespace, settings: type[Settings]) -> dict[str, Any]:
    """What was said of these settings, as they allow it."""
    values = values_of(args, settings.declared)
    settings.check(values)
    return values


def spells(parser: argparse.ArgumentParser, **spellings: str) -> None:
    """What the command says for arguments that are none of its options."""
    getattr(parser, "spellings", {}).update(spellings)


def add_common(
    parser: argparse.ArgumentParser, *, name: str = "", seed: bool = True, record: bool = True
) -> None:
    """What every command that works on tasks has: how they are read, shelf, data, seed, JSON.

    ``name`` says what goes on the shelf under ``--name``.
    """
    if name:
        parser.add_argument("--name", help=name)
    if seed:
        add_settings(parser, [Common.declared["seed"]])
    add_task_options(parser)
    add_shelf(parser)
    add_settings(parser, [Common.declared["data"]])
    if record:
        add_record(parser)
    add_json(parser)


def frame_of(args: argparse.Namespace) -> dict[str, Any]:
    """What was said of that, for a job's frame."""
    names = ("name", "seed", "shelf", "data", "resume", "checkpoint_seconds")
    return {**values_of(args, names), "task_options": _task_options(args)}


def add_shelf(parser: argparse.ArgumentParser) -> None:
    """``--shelf``: which folder of parts."""
    add_settings(parser, [Common.declared["shelf"]])
    parser.set_defaults(shelf=Common.shelf)


def add_record(parser: argparse.ArgumentParser) -> None:
    """``--record``: keep what was measured, for ``dovetail report``."""
    parser.add_argument(
        "--record",
        type=_folder,
        metavar="FOLDER",
        help="save the records here, for 'dovetail report'",
    )


def place(text: str) -> str:
    """A folder's name as a path would write it, for options that a listing has, too.

    >>> place("./shelf/"), place("/a//b/../c"), place("")
    ('shelf', '/a/b/../c', '.')
    """
    root = "/" if text.startswith("/") else ""
    return root + "/".join(part for part in text.split("/") if part not in ("", ".")) or "."


def _folder(text: str) -> Path:
    """A folder that is there or can be made: told before hours of work, not after."""
    from pathlib import Path

    folder = Path(text)
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise argparse.ArgumentTypeError(f"{there} is a file; name a folder")
    return folder


def add_set(parser: argparse.ArgumentParser) -> None:
    """``--set``: arguments of a network's builder."""
    parser.add_argument(
        "--set",
        dest="args",
        action="append",
        type=key_value,
        default=[],
        metavar="NAME=VALUE",
        help="an argument of the network's builder; may be repeated",
    )


def add_task_options(parser: argparse.ArgumentParser) -> None:
    """``--target``, ``--kind``, ``--size`` and ``--task-set``: how a task is read."""
    add_settings(parser, Reading.declared.values())
    parser.add_argument(
        "--task-set",
        dest="task_options",
        action="append",
        type=key_value,
        default=[],
        metavar="NAME=VALUE",
        help="another option of the task, such as unreadable=skip; may be repeated",
    )


def _task_options(args: argparse.Namespace) -> dict[str, Any]:
    """What ``load_task`` is asked for."""
    options = dict(getattr(args, "task_options", ())) | values_of(args, Reading.declared)
    if len(options.get("target", ())) == 1 and isinstance(options["target"], list):
        options["target"] = options["target"][0]
    return options


def key_value(text: str) -> tuple[str, Any]:
    """An argument of a builder: ``norm=batch``, ``hidden=[64,64]``.

    >>> key_value("hidden=[64,64]"), key_value("norm=batch")
    (('hidden', [64, 64]), ('norm', 'batch'))
    """
    import json

    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"expected name=value, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _words(text: str) -> tuple[str, ...]:
    """Words with commas between them.

    >>> _words("dcc, iiw")
    ('dcc', 'iiw')
    """
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _numbers(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them.

    >>> _numbers("1,10")
    (1, 10)
    """
    if not _words(text) or not all(word.isdecimal() for word in _words(text)):
        raise argparse.ArgumentTypeError(f"expected whole numbers such as 1,10, got {text!r}")
    return tuple(map(int, _words(text)))


def _numbers_or_all(text: str) -> tuple[int | str, ...]:
    """The same, and the word for all there are among them.

    >>> _numbers_or_all("1,10,all")
    (1, 10, 'all')
    """
    words = _words(text)
    if not words or not all(word.isdecimal() or word == "all" for word in words):
        message = f"expected whole numbers such as 1,10, or all, got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return tuple(word if word == "all" else int(word) for word in words)


def _number_or_word(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _size(text: str) -> int | tuple[int, int]:
    sides = text.lower().split("x")
    if not all(side.isdecimal() for side in sides) or len(sides) > 2:
        raise argparse.ArgumentTypeError(f"expected 32 or 24x32, got {text!r}")
    return int(sides[0]) if len(sides) == 1 else (int(sides[0]), int(sides[1]))


def _shape(text: str) -> tuple[int | None, ...]:
    """A shape as people write it.

    >>> _shape("16x?x2"), _shape("64")
    ((16, None, 2), (64,))
    """
    axes = text.replace("×", "x").split("x")
    if not all(axis == "?" or axis.isdecimal() for axis in axes):
        raise argparse.ArgumentTypeError(f"expected a shape such as 16x2x2, got {text!r}")
    return tuple(None if axis == "?" else int(axis) for axis in axes)


_READS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "float | str": _number_or_word,
    "Folder": place,
    "tuple[str, ...]": _words,
    "tuple[int, ...]": _numbers,
    "tuple[int | str, ...]": _numbers_or_all,
    "tuple[int, int] | int": _size,
    "tuple[int | None, ...]": _shape,
}
"""How values of settings are read, by their type."""


def need_tasks(names: Iterable[str | None], data: str | None) -> None:
    """Refuse, before torch is loaded, a task that is misspelt or not here; jobs look again.

    >>> need_tasks(["digits", None, "digits~invertd"], None)
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: 'digits~invertd': unknown change '~invertd'; did you mean...
    """
    from dovetail.tasks.known import refuse_unknown

    for name in names:
        if name is not None:
            refuse_unknown(name, data)


def need_parts(refs: Iterable[str | None], shelf: str, endings: Sequence[str] = ()) -> None:
    """Refuse, likewise, a part that is neither in a folder nor on the shelf."""
    from dovetail.shelf.names import need_part

    for ref in refs:
        if ref is not None:
            need_part(ref, shelf, endings)


def need_halves(refs: Iterable[str | None], side: str, shelf: str) -> None:
    """Refuse, likewise, a network without its ``"front"`` or ``"head"``; a half is one."""
    from dovetail.shelf.names import HALVES

    need_parts(refs, shelf, HALVES[side])


def show(outcome: Outcome, args: argparse.Namespace) -> int:
    """Print an outcome and keep its records; the command's exit code."""
    folder: Path | None = getattr(args, "record", None)
    if folder is not None:
        import hashlib

        from dovetail.core.files import write_whole
        from dovetail.core.records import slug

        for record in outcome.records:
            text = record.to_json()
            mark = hashlib.sha256(text.encode()).hexdigest()[:8]  # a second run keeps the first's
            write_whole(folder / f"{slug(record.title)}-{mark}.json", text)
    if args.json:
        sys.stdout.write(as_json(outcome.data))
    else:
        from dovetail.report.terminal import print_view

        print_view(outcome.view)
    if shelf := getattr(args, "shelf", None):
        _keep_list(shelf, "json" if args.json else paper())
    return 0 if outcome.ok else 1


def keep_answer(
    shelf: str, question: str, now: dict[str, str], paper: str, outcome: Outcome
) -> str:
    """What a shelf says to a question on this paper, kept until it changes; damage is not kept."""
    from dovetail.shelf import glance

    if paper == "json":
        answer = as_json(outcome.data)
    else:
        answer = as_text(outcome.view, terminal=paper != "pipe")
    if not any(row["problem"] for row in outcome.data.get("rows", [outcome.data])):
        glance.remember(shelf, f"{question} {paper}", now, answer)
    return answer


def _keep_list(shelf: str, paper: str | None) -> None:
    """Keep the list of a shelf that has changed, while all that it takes to make one is loaded."""
    from dovetail.core.errors import DovetailError
    from dovetail.jobs.shelf import ls
    from dovetail.shelf import glance

    try:
        now = glance.stamps(shelf)
        if paper is None or not 0 < len(now) <= glance.FEW:
            return
        if glance.remembered(shelf, f"ls {paper}", now) is None:
            keep_answer(shelf, "ls", now, paper, ls(shelf=shelf))
    except (DovetailError, OSError):
        return  # the list itself will say what is wrong


def paper() -> str | None:
    """What decides how text will look, in a word: a pipe, or a terminal's width and kind.

    None where it is decided by what only rich knows.
    """
    environment = os.environ.get
    if any(environment(name) for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")):
        return None
    if not (sys.stdout.encoding or "").lower().startswith("utf"):
        return None
    if not sys.stdout.isatty():
        return "pipe"
    if environment("TERM", "dumb") in ("dumb", "unknown"):
        return None
    kind = " ".join(environment(name, "-") for name in ("TERM", "COLORTERM", "NO_COLOR"))
    return f"{columns()} {kind}"


def aligned(heads: Sequence[str], rows: Sequence[Sequence[str | int | None]]) -> list[str]:
    """A small table of narrow letters in the lines that a pipe would get, numbers to the right.

    >>> print(*aligned(("name", "n"), (("digits", 1797), ("mnist", None))), sep="\\n")
    name        n
    ─────────────
    digits   1797
    mnist       –
    """
    shown = [heads, *(["–" if cell is None else str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    right = [any(isinstance(cell, int) for cell in column) for column in zip(*rows, strict=True)]
    lines = [
        "   ".join(
            cell.rjust(width) if flush else cell.ljust(width)
            for cell, width, flush in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in shown
    ]
    return [lines[0], "─" * (sum(widths) + 3 * (len(widths) - 1)), *lines[1:]]


def as_json(data: dict[str, Any]) -> str:
    """Data as every command prints them with ``--json``."""
    from dovetail.core.plain import dumps

    return dumps(data)


def as_text(view: View, *, terminal: bool = False) -> str:
    """A view as it would be printed into a pipe, or on this terminal."""
    from io import StringIO

    from rich.console import Console

    from dovetail.report.terminal import print_view

    out = StringIO()
    width, forced = (columns(), True) if terminal else (None, None)
    console = Console(file=out, highlight=False, width=width, force_terminal=forced)
    print_view(view, console=console, wide=not terminal)
    return out.getvalue()
