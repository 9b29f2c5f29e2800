"""The errors dovetail raises on purpose.

One root, so that ``except DovetailError`` catches everything a user can cause; each leaf also is
the builtin a caller would expect.  A message says what is wrong, every reason, and the way out.
"""

from __future__ import annotations

import reprlib

from dovetail.core.words import harmless, listed, one_line, shortened

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, ClassVar

_LONGEST_LINE = 1000
_LONGEST = (
    8000  # characters of a message; a join that is refused says every reason and every repair
)


class DovetailError(Exception):
    """The root of all errors that dovetail raises on purpose.

    Messages quote files and their names.  What would steer a terminal is taken out of them here,
    and what is too long to read is shortened, whoever raises them.

    >>> issubclass(ContractError, DovetailError) and issubclass(ContractError, ValueError)
    True
    >>> len(str(FormatError(f"no part {'x' * 300_000}; name another"))) <= 1000
    True

    Arguments are named by :func:`argument`, so that each door spells them its own way.

    >>> error = SettingsError(f"{argument('epochs')} must be at least 1; say {argument('at', ...)}")
    >>> print(error, error.spelled(lambda name, _: f"--{name}"), sep="\\n")
    epochs must be at least 1; say at=
    --epochs must be at least 1; say --at
    """

    _lines: ClassVar[bool] = True  # whether a message may have several

    def __init__(self, message: str = "") -> None:
        self.marked = message
        super().__init__(self.spelled(lambda name, value: f"{name.rpartition('.')[2]}{value}"))

    def spelled(self, spell: Callable[[str, str], str]) -> str:
        """The message, its arguments as ``spell(name, value)`` has them.

        A value is what follows the name in Python: ``"=True"``, ``"='batch'"``, ``"="``, or ``""``.
        """
        words = []
        for piece in self.marked.split(_BEGIN):
            called, end, rest = piece.partition(_END)
            name, equals, value = called.partition("=")
            words.append(spell(name, equals + value) + rest if end else piece)
        message = "".join(words)
        lines = harmless(message).split("\n") if self._lines else [one_line(message)]
        return shortened("\n".join(shortened(line, _LONGEST_LINE) for line in lines), _LONGEST)


class ContractError(DovetailError, ValueError):
    """Two parts, or a part and its input, do not fit.

    >>> raise ContractError("'head' cannot follow 'front': 16 channels meet 32.")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.ContractError: 'head' cannot follow 'front': 16 channels meet 32.
    """


class CutError(DovetailError, ValueError):
    """A network cannot be cut there.

    >>> str(CutError("no cut point 'layer9'; near names: layer1, layer2"))
    "no cut point 'layer9'; near names: layer1, layer2"
    """


class RecipeError(DovetailError, ValueError):
    """A recipe names an operator, a builder or an argument that is not known.

    >>> str(RecipeError("unknown builder 'resnet21'"))
    "unknown builder 'resnet21'"
    """


class FormatError(DovetailError, ValueError):
    """A file is missing, damaged, or not what it says it is.

    One line, whatever the file is called.

    >>> str(FormatError("model.safetensors: sha256 differs from the manifest"))
    'model.safetensors: sha256 differs from the manifest'
    """

    _lines = False


class TaskError(DovetailError, ValueError):
    """Data that no task can be made of, or a task that lacks what a verb needs.

    >>> str(TaskError("'digits' has one class; a classifier needs two"))
    "'digits' has one class; a classifier needs two"
    """


class SettingsError(DovetailError, ValueError):
    """An option out of range, or options that contradict each other.

    >>> str(SettingsError("epochs must be at least 1, got 0"))
    'epochs must be at least 1, got 0'
    """


class TrainingError(DovetailError, RuntimeError):
    """Training went wrong, such as a loss that is no longer a number.

    >>> str(TrainingError("the loss became nan in epoch 2; lower the learning rate"))
    'the loss became nan in epoch 2; lower the learning rate'
    """


class ShelfError(DovetailError, LookupError):
    """No such part, version or shelf.

    >>> str(ShelfError("no part 'lenet' on this shelf"))
    "no part 'lenet' on this shelf"
    """

    _lines = False


class MissingExtraError(DovetailError, ImportError):
    """An optional package is not installed.

    >>> str(MissingExtraError('Drawing needs matplotlib: pip install "dovetail[plots]"'))
    'Drawing needs matplotlib: pip install "dovetail[plots]"'
    """


_BEGIN, _END, _UNSAID = "\x02", "\x03", object()


def argument(name: str, value: Any = _UNSAID) -> str:
    """An argument in a message of ours: its name alone, or with a value; ``...`` for any value.

    Arguments of a builder are called ``set.classes``, those of a task ``task_set.unreadable``.

    >>> print(DovetailError(f"pass {argument('force', True)}, or build it: {argument('set.n', 3)}"))
    pass force=True, or build it: n=3
    """
    said = "" if value is _UNSAID else "=" if value is ... else f"={value!r}"
    return f"{_BEGIN}{name}{said}{_END}"


def first_line(error: BaseException) -> str:
    """What an error of others says, in one line; its class when it says nothing.

    >>> first_line(RuntimeError("bad shape\\nat line 3")), first_line(AssertionError())
    ('bad shape', 'AssertionError')
    """
    return shortened(one_line(next(iter(str(error).splitlines()), "")), 300) or type(error).__name__


def shown(value: object, most: int = 80) -> str:
    """A value as Python writes it, shortened: what comes from a file may be megabytes long.

    >>> shown("mlp"), len(shown("x" * 1_000_000))
    ("'mlp'", 80)
    """
    try:
        text = _brief(most).repr(value)
    except (RecursionError, ValueError):  # too deep, or a number too long to be written out
        text = f"<{type(value).__name__}>"
    return text if len(text) <= most else text[: most - 3] + "..."


def nearest(name: str, known: Iterable[str], *, most: int = 3) -> str:
    """A clause that names what the user may have meant, or what there is; may be empty.

    >>> nearest("layr3", ["layer1", "layer3", "head"])
    '; did you mean layer3, layer1?'
    >>> nearest("x", ["layer1", "head"])
    '; there is layer1, head'
    """
    from difflib import get_close_matches

    # Nobody mistypes hundreds of letters, and comparing that many is slow.
    known = [shortened(one_line(one), 80) for one in known]
    close = get_close_matches(name, known, n=most, cutoff=0.5) if len(name) <= 200 else []
    if close:
        return f"; did you mean {', '.join(close)}?"
    return f"; there is {listed(known)}" if known else ""


def _brief(most: int) -> reprlib.Repr:
    """Writes no more than it will show: what comes from a file may be a list of millions."""
    brief = reprlib.Repr()
    brief.maxlevel = 6
    brief.maxtuple = brief.maxlist = brief.maxdict = brief.maxset = brief.maxfrozenset = most
    brief.maxstring = brief.maxlong = brief.maxother = most
    return brief
