"""What a shelf was asked and said, for as long as nothing on it has changed: its list, and cards.

To make a list takes contracts, recipes and all that reads them; to tell it again takes one file.
It holds the words with a *stamp* of each part (as the index does, see ``index``), so that a stale,
missing or damaged one costs time, never truth; and a shelf that cannot be written to has none.
"""

from __future__ import annotations

import json
import os
import re
import stat
import zlib

from dovetail import __version__
from dovetail.shelf.names import names, need_folder, stamp, versions

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from pathlib import Path

FILE = ".glance.json"
FORMAT = f"1 of dovetail {__version__}"
"""Another version may say things in other words, so its file is not read."""

FEW = 1000
"""Of larger shelves nothing is remembered: to read a long list takes as long as to make it."""

LAST = 32
"""How many answers are remembered; the oldest goes first."""

_MOST_BYTES = 4 << 20
Stamps = dict[str, str]


def stamps(shelf: Path | str) -> Stamps:
    """What each part's files are known by, unread; none of what is not a shelf.

    Raises:
        ShelfError: there is no such folder.
    """
    need_folder(shelf)
    return {
        f"{name}@{version}": stamp(f"{shelf}/{name}/{version}")
        for name in names(shelf)
        for version in versions(shelf, name)
    }


def remembered(shelf: Path | str, question: str, now: Stamps) -> str | None:
    """The answer, if it was given since the shelf is what it is ``now``."""
    return _answers(shelf, now).get(question)


def remember(shelf: Path | str, question: str, now: Stamps, answer: str) -> None:
    """Keep an answer for the next time, where that is allowed.

    >>> import tempfile
    >>> shelf = tempfile.mkdtemp(); os.makedirs(f"{shelf}/lenet/1")
    >>> remember(shelf, "ls", stamps(shelf), "lenet@1")
    >>> remembered(shelf, "ls", stamps(shelf))
    'lenet@1'
    >>> os.makedirs(f"{shelf}/lenet/2"); remembered(shelf, "ls", stamps(shelf))
    """
    from pathlib import Path

    from dovetail.core.errors import DovetailError
    from dovetail.core.files import write_whole

    if not now or len(now) > FEW:
        return
    said = {**_answers(shelf, now), question: answer}
    value = {"format": FORMAT, "stamps": now, "said": dict(list(said.items())[-LAST:])}
    body = json.dumps(value).encode()
    try:
        write_whole(Path(shelf) / FILE, b"%08x\n" % zlib.crc32(body) + body)
    except (DovetailError, OSError):
        return  # a shelf that only others may write to, or a full disk


def empty_list(shelf: str, *, as_json: bool) -> str:
    """The list of a shelf without parts."""
    if not as_json:
        return f"{emptiness(shelf)}\n\n"
    data = {"complete": True, "rows": [], "settings": {}, "shelf": shelf}
    return f"{json.dumps(data, indent=2)}\n"


def emptiness(shelf: str) -> str:
    """What is said of a shelf without parts.

    >>> emptiness("shelf")
    "The shelf 'shelf' is empty."
    """
    return f"The shelf {shelf!r} is empty."


def _answers(shelf: Path | str, now: Stamps) -> dict[str, str]:
    try:
        path = f"{shelf}/{FILE}"
        if not stat.S_ISREG(os.lstat(path).st_mode):  # a pipe would keep us waiting
            return {}
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(handle, "rb") as file:
            check, _, body = file.read(_MOST_BYTES).partition(b"\n")
        if int(check, 16) != zlib.crc32(body):
            return {}
        value = json.loads(body)
        if (value["format"], value["stamps"]) != (FORMAT, now):
            return {}
        return {question: said for question, said in value["said"].items() if _is_harmless(said)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _is_harmless(words: object) -> bool:
    """Whether these can be words of ours: text that steers a terminal in its colours alone."""
    if not isinstance(words, str):
        return False
    return re.sub(r"\x1b\[[0-9;]{0,20}m|\n", "", words).isprintable()
