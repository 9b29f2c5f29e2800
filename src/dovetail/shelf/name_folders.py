"""The folders of the names, one a name, and none that differs from another by its case only.

To see that no other name differs by its case takes a list of all names, and listing ten thousand
for each new one would make adding quadratic.  So the list is remembered for as long as the shelf's
folder bears the same time and number of sub-folders; a new name of our own is added to it.  File
systems that do not count sub-folders are listed each time: slower, and as right.
"""

from __future__ import annotations

from pathlib import Path

from dovetail.core.errors import ShelfError
from dovetail.shelf.locks import locked
from dovetail.shelf.names import check_name
from dovetail.shelf.places import names

__all__ = ["Homes"]


class Homes:
    """The folders of a shelf's names.

    >>> import tempfile
    >>> homes = Homes(Path(tempfile.mkdtemp()))
    >>> homes.open("LeNet").name
    'LeNet'
    >>> homes.open("lenet")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.ShelfError: 'lenet' differs from 'LeNet' by its case only, ...
    """

    def __init__(self, shelf: Path) -> None:
        self.shelf = shelf
        self._known: dict[str, list[str]] = {}
        self._stamp: tuple[int, int, int] | None = None

    def open(self, name: str) -> Path:
        """The folder of a name, made when it is new; whoever then puts nothing in removes it."""
        home = self.shelf / check_name(name)
        with locked(self.shelf):  # so that 'LeNet' and 'lenet' do not both come to be
            self._look()
            others = self._known.setdefault(name.casefold(), [])
            if name not in others:
                if others:
                    raise ShelfError(
                        f"{name!r} differs from {others[0]!r} by its case only, and not every file "
                        "system tells them apart; choose another name"
                    )
                home.mkdir(exist_ok=True)
                others.append(name)
                self._expect_one_more()
        return home

    def _look(self) -> None:
        stamp = _stamp(self.shelf)
        if stamp != self._stamp:
            self._known = {}
            for name in names(self.shelf):
                self._known.setdefault(name.casefold(), []).append(name)
            self._stamp = stamp  # taken before the list: what came between is seen next time

    def _expect_one_more(self) -> None:
        before, after = self._stamp, _stamp(self.shelf)
        alone = before is not None and after[:2] == (before[0], before[1] + 1)
        self._stamp = after if alone else None


def _stamp(shelf: Path) -> tuple[int, int, int]:
    facts = shelf.stat()
    return facts.st_ino, facts.st_nlink, facts.st_mtime_ns
