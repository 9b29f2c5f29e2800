"""Where packed and unpacked things go when nothing else is said, and whether there is room."""

from __future__ import annotations

from pathlib import Path

from dovetail.core.errors import FormatError

__all__ = ["beside", "free", "size_of"]


def beside(folder: Path, ending: str) -> Path:
    """The folder beside another, with a longer name.

    >>> print(beside(Path("parts/lenet"), "-packed"))
    parts/lenet-packed
    """
    whole = folder.resolve() if folder.name in ("", "..") else folder
    return whole.with_name(f"{whole.name}{ending}")


def free(path: Path, replace: bool) -> None:
    """Refuse, before any work, a place that is taken, unless it is to be replaced."""
    if not replace and path.exists():
        raise FormatError(f"{path} is there already; say --replace, or another place with --to")


def size_of(folder: Path) -> int:
    """The bytes of the files in a part's folder.

    >>> import tempfile; folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a").write_text("four"); size_of(folder)
    4
    """
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
