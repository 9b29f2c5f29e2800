"""Where packed and unpacked things go when nothing else is said, and whether there is room."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from dovetail.core.errors import FormatError, SettingsError, nearest

__all__ = ["beside", "free", "matching", "size_of"]


def beside(folder: Path, ending: str) -> Path:
    """The folder beside another, with a longer name.

    >>> print(beside(Path("parts/lenet"), "-packed"))
    parts/lenet-packed
    """
    whole = folder.resolve() if folder.name in ("", "..") else folder
    return whole.with_name(f"{whole.name}{ending}")


def free(path: Path, replace: bool, source: Path) -> None:
    """Refuse, before any work, a place that is taken, unless it is to be replaced.

    The source itself is never replaced: what it holds would be gone.
    """
    if path.exists() and source.exists() and path.samefile(source):
        raise FormatError(f"{path} is what is read; choose another place with --to")
    if not replace and path.exists():
        raise FormatError(f"{path} is there already; say --replace, or another place with --to")


def matching(patterns: Sequence[str], names: Iterable[str]) -> None:
    """Refuse a pattern that no name matches: what it was to protect would be changed.

    >>> matching(["*.bias"], ["head.weight", "head.bias"])
    """
    names = list(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise SettingsError(
                f"no tensor matches lossless {pattern!r}{nearest(pattern, names)}; the patterns "
                "are of names such as " + ", ".join(names[:3])
            )


def size_of(folder: Path) -> int:
    """The bytes of the files in a part's folder.

    >>> import tempfile; folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a").write_text("four"); size_of(folder)
    4
    """
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
