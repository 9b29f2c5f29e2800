"""The errors dovetail raises on purpose.

One root, so that ``except DovetailError`` catches everything a user can cause; each leaf also is
the builtin a caller would expect.  A message says what is wrong, every reason, and the way out.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = [
    "ContractError",
    "CutError",
    "DovetailError",
    "FormatError",
    "MissingExtraError",
    "RecipeError",
    "SettingsError",
    "ShelfError",
    "TaskError",
    "TrainingError",
    "first_line",
    "nearest",
    "shown",
]


class DovetailError(Exception):
    """The root of all errors that dovetail raises on purpose.

    >>> issubclass(ContractError, DovetailError) and issubclass(ContractError, ValueError)
    True
    """


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

    >>> str(FormatError("model.safetensors: sha256 differs from the manifest"))
    'model.safetensors: sha256 differs from the manifest'
    """


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


class MissingExtraError(DovetailError, ImportError):
    """An optional package is not installed.

    >>> str(MissingExtraError('Drawing needs matplotlib: pip install "dovetail[plots]"'))
    'Drawing needs matplotlib: pip install "dovetail[plots]"'
    """


def first_line(error: BaseException) -> str:
    """What an error of others says, in one line; its class when it says nothing.

    >>> first_line(RuntimeError("bad shape\\nat line 3")), first_line(AssertionError())
    ('bad shape', 'AssertionError')
    """
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def shown(value: object, most: int = 80) -> str:
    """A value as Python writes it, shortened: what comes from a file may be megabytes long.

    >>> shown("mlp"), len(shown("x" * 1_000_000))
    ("'mlp'", 80)
    """
    if isinstance(value, str) and len(value) > most:
        value = value[:most]
    try:
        text = repr(value)
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
    known = list(known)
    # Nobody mistypes hundreds of letters, and comparing that many is slow.
    close = get_close_matches(name, known, n=most, cutoff=0.5) if len(name) <= 200 else []
    if close:
        return f"; did you mean {', '.join(close)}?"
    if not known:
        return ""
    shown = ", ".join(known[:12]) + (f" and {len(known) - 12} more" if len(known) > 12 else "")
    return f"; there is {shown}"
