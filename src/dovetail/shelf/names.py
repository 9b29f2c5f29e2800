"""Names and references, ``lenet-digits`` and ``lenet-digits@2``, and which of them a shelf has.

Light on purpose, as the command line asks here before it loads torch: names of folders decide, and
no file is opened.
"""

from __future__ import annotations

import os
import re
import stat
from collections import namedtuple

from dovetail.core.errors import ShelfError, nearest, shown

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

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


HALVES = {"front": (".front",), "head": (".head", ".back")}
"""How the halves of a network are called behind its name."""


def names(shelf: Path | str) -> list[str]:
    """The folders that may hold versions, whether they do or not."""
    return sorted(filter(is_name, folders(shelf)))


def versions(shelf: Path | str, name: str) -> list[int]:
    """The versions of a name, in order."""
    return sorted(filter(None, map(version_of, folders(f"{shelf}/{name}"))))


def need_folder(shelf: Path | str) -> None:
    """Refuse what is no shelf.

    >>> need_folder("no such folder")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.ShelfError: there is no shelf no such folder; `dovetail shelf add`...
    """
    try:
        mode = os.stat(shelf).st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a null byte
        raise ShelfError(f"there is no shelf {shelf}; `dovetail shelf add` creates one") from None
    except OSError as error:
        raise refused("read", shelf, error) from None
    if not stat.S_ISDIR(mode):
        raise ShelfError(f"{shelf} is not a folder; a shelf is")


def need_part(ref: str, shelf: Path | str, endings: Sequence[str] = ()) -> None:
    """Refuse what is neither a part's folder nor ``name`` or ``name@version`` on the shelf.

    With ``endings``, the name and one of them will do, too.
    """
    if os.path.isfile(f"{ref}/manifest.json"):
        return
    need_folder(shelf)
    wanted = read_reference(ref)
    try:
        if not any(versions(shelf, ref + ending) for ending in endings):
            choose(wanted, versions(shelf, wanted.name), shelf)
    except OSError as error:
        raise refused("read", shelf, error) from None


def name_of(ref: str) -> str:
    """A part's name without its version or its folder's path.

    >>> name_of("lenet@2"), name_of("parts/lenet")
    ('lenet', 'lenet')
    """
    return os.path.basename(ref.rstrip("/")).partition("@")[0]


def stem_of(ref: str) -> str:
    """The name of the network that a half was cut from; of anything else its own.

    >>> stem_of("pair.digits.front@2"), stem_of("low.back"), stem_of("low")
    ('pair.digits', 'low', 'low')
    """
    name = name_of(ref)
    return next(
        (
            name.removesuffix(end)
            for end in (*HALVES["front"], *HALVES["head"])
            if name.endswith(end)
        ),
        name,
    )


def choose(wanted: Reference, present: Collection[int], shelf: Path | str) -> int:
    """The version that is asked for, of those that there are of its name: the latest, or one.

    >>> choose(read_reference("lenet"), [1, 3], "shelf")
    3
    >>> choose(read_reference("lenet@2"), [1, 3], "shelf")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.ShelfError: 'lenet' has no version 2; there is 1, 3
    """
    if not present:
        full = (name for name in names(shelf) if versions(shelf, name))
        known = nearest(wanted.name, full) or ", which is empty"
        raise ShelfError(f"no part {wanted.name!r} on the shelf {shelf}{known}")
    version: int = max(present) if wanted.version is None else wanted.version
    if version not in present:
        listed = ", ".join(map(str, present))
        raise ShelfError(f"{wanted.name!r} has no version {version}; there is {listed}")
    return version


def refused(what: str, folder: Path | str, error: OSError) -> ShelfError:
    """The error for what the file system does not allow.

    >>> refused("write to", "shelf", PermissionError(13, "Permission denied"))
    ShelfError('cannot write to the shelf shelf: Permission denied')
    """
    return ShelfError(f"cannot {what} the shelf {folder}: {error.strerror or error}")


def folders(folder: Path | str) -> list[str]:
    """The names of the folders in a folder, in no order; none when it is not there."""
    try:
        with os.scandir(folder) as items:
            return [item.name for item in items if item.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def stamp(folder: str) -> str:
    """By which the files of a part are known: inode, time and size of manifest, config and note.

    >>> stamp("no such folder")
    '- - -'
    """
    files = (f"{folder}/manifest.json", f"{folder}/config.json", f"{folder}.json")
    return " ".join(map(_stat, files))


def _stat(path: str) -> str:
    try:
        facts = os.lstat(path)
    except OSError:
        return "-"
    return f"{facts.st_ino}:{facts.st_mtime_ns}:{facts.st_size}"
