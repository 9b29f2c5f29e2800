"""Names and references: ``lenet-digits`` and ``lenet-digits@2``."""

from __future__ import annotations

import re
from collections import namedtuple

from dovetail.core.errors import ShelfError, shown

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Reference", "check_name", "check_tags", "is_name", "read_reference", "version_of"]

LONGEST = 100
"""A name becomes a folder; file systems refuse much longer ones."""

HIGHEST = 999_999_999
"""A version has at most nine digits; a folder of a longer number is no version."""

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9_-])?")
_VERSION = re.compile(r"[1-9][0-9]{0,8}")


class Reference(namedtuple("Reference", ("name", "version"), defaults=(None,))):
    """A name, and a version unless the latest is meant.

    >>> str(Reference("lenet", 2)), str(Reference("lenet"))
    ('lenet@2', 'lenet')
    """

    __slots__ = ()
    name: str
    version: int | None

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name}@{self.version}"


def is_name(text: str) -> bool:
    """Whether a part may be called that.

    >>> is_name("lenet-digits_v1.5"), is_name("../etc"), is_name(".hidden"), is_name("a@2")
    (True, False, False, False)
    """
    return bool(_NAME.fullmatch(text)) and ".." not in text and len(text) <= LONGEST


def check_name(name: str) -> str:
    """The name itself, or an error that says what is allowed.

    >>> check_name("nets/lenet")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.ShelfError: 'nets/lenet' cannot name a part; a name has letters...
    """
    if not isinstance(name, str) or not is_name(name):
        raise ShelfError(
            f"{shown(name, 60)} cannot name a part; a name has letters a-z and A-Z, digits, '-', "
            f"'_' and single dots, begins with a letter or digit, does not end with a dot, and has "
            f"at most {LONGEST} characters"
        )
    return name


def version_of(text: str) -> int | None:
    """The version a folder's name stands for, if any.

    >>> version_of("12"), version_of("012"), version_of("notes")
    (12, None, None)
    """
    return int(text) if _VERSION.fullmatch(text) else None


def read_reference(text: str) -> Reference:
    """Read ``name`` or ``name@version``.

    >>> read_reference("lenet@2")
    Reference(name='lenet', version=2)
    >>> read_reference("lenet@new")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.ShelfError: 'lenet@new': a version is a whole number from 1 to...
    """
    if not isinstance(text, str):
        raise ShelfError(
            f"expected a reference such as 'lenet' or 'lenet@2', got {type(text).__name__}"
        )
    name, at, version = text.partition("@")
    check_name(name)
    if not at:
        return Reference(name)
    number = version_of(version)
    if number is None:
        raise ShelfError(
            f"{shown(text)}: a version is a whole number from 1 to {HIGHEST}, as in {name}@1"
        )
    return Reference(name, number)


def check_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """The tags sorted, each once; a tag is any short line of text.

    >>> check_tags(["small", "mine", "small"])
    ('mine', 'small')
    """
    if isinstance(tags, str):
        raise ShelfError(f"tags is a list of words, as in tags=[{tags!r}]")
    listed = sorted(set(tags))
    for tag in listed:
        if not isinstance(tag, str) or not tag.strip() or not tag.isprintable():
            raise ShelfError(f"a tag is a line of text, got {tag!r}")
        if len(tag) > LONGEST:
            raise ShelfError(f"a tag has at most {LONGEST} characters, got {len(tag)}")
    return tuple(listed)
