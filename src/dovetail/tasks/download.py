"""One file over the network: whole and not too large, or an error and nothing."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from dovetail.core.errors import TaskError, first_line
from dovetail.core.progress import progress

__all__ = ["download"]

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
