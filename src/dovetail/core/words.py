"""Text of others for a reader's eyes: nothing that steers a terminal, and never too much of it.

What a file holds, and what it is called, may be anything of any length.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing costs a third of the start
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def harmless(text: str) -> str:
    r"""Without control characters: no escape code of a file's reaches the reader's terminal.

    Line breaks and tabs stay; whatever else does not print becomes the replacement character.

    >>> harmless("a\x1b[2Jb\n\x9b\u202ec")
    'a�[2Jb\n��c'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)


def one_line(text: object) -> str:
    r"""The same on one line: a name with a line break in it cannot pretend to be a message.

    >>> from pathlib import Path
    >>> one_line(Path("a\nAll is well.\x1b"))
    'a All is well.�'
    """
    return harmless(str(text)).translate(_SPACES)


def listed(names: Sequence[str], most: int = 12) -> str:
    """Names in a row, at most so many, and how many more there are.

    >>> listed(["ant", "bee"]), listed(["ant", "bee", "cat"], most=1)
    ('ant, bee', 'ant and 2 more')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def shortened(text: str, most: int) -> str:
    """At most so many characters: the beginning and the end, and how much is left out between.

    >>> shortened("short", 80), shortened("x" * 1_000_000, 80)
    ('short', 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx … (999,960 characters left out) … xxxxxxxxxx')
    """
    if len(text) <= most:
        return text
    room = max(most - _MARK, 0)
    head, tail = room - room // 4, room // 4
    lost = f" … ({len(text) - room:,} characters left out) … "
    return text[:head] + lost + text[len(text) - tail :]


def counted(count: int, noun: str) -> str:
    """So many of them.

    >>> counted(1, "part"), counted(3, "part")
    ('1 part', '3 parts')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def numbered(words: Iterable[str], taken: Iterable[str] = (), mark: str = "-") -> list[str]:
    """The words, each different: one that was there before gets the next number that is free.

    >>> numbered(["mlp", "mlp", "rp", "mlp-2", "mlp"], taken=["rp"])
    ['mlp', 'mlp-2', 'rp-2', 'mlp-2-2', 'mlp-3']
    """
    used = dict.fromkeys(taken)
    tried: dict[str, int] = {}
    before = len(used)
    for word in words:
        name, number = word, tried.get(word, 1)
        while name in used:
            number += 1
            name = f"{word}{mark}{number}"
        used[name], tried[word] = None, number
    return list(used)[before:]


_SPACES = str.maketrans("\n\t", "  ")
_MARK = 40  # characters of the words that say what is left out
