"""A headless Chromium for tests, driven over its debugging pipe with the standard library alone.

Messages are JSON, each ended by a zero byte, on the file descriptors 3 and 4: no port, no socket,
no driver of a third party.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless",
    "--no-sandbox",  # containers run tests as root, where the sandbox cannot start
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_ON_3_AND_4 = 'exec "$0" "$@" 3<&0 4>&1 0</dev/null 1>&2'
_PATIENCE = 60.0


def find_chromium() -> str:
    """The browser's path; without one the test is skipped, or fails where one is demanded."""
    found = os.environ.get("DOVETAIL_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), "")
    if found:
        return found
    sentence = f"no browser: none of {', '.join(_NAMES)} found; set DOVETAIL_CHROMIUM to one"
    if os.environ.get("DOVETAIL_NEED_BROWSER") == "1":
        pytest.fail(sentence)
    pytest.skip(sentence)


class Browser:
    """One tab; ``requests`` are the addresses it asked for, ``errors`` what the console said."""

    def __init__(self) -> None:
        chromium = find_chromium()
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        profile = f"--user-data-dir={self._profile.name}"
        self._process = subprocess.Popen(
            ["sh", "-c", _ON_3_AND_4, chromium, *_FLAGS, profile, "about:blank"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._session: str | None = None
        self._number, self._rest = 0, b""
        page = next(t for t in self.send("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self.send("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._profile.cleanup()

    def send(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol and wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._process.stdin.write(json.dumps(message).encode() + b"\0")
        self._process.stdin.flush()
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def open(self, path: Path, *, width: int = 1000, height: int = 900, dark: bool = False) -> None:
        """Show a file in a window of a size; at phone widths, as a phone would."""
        phone = width < 600
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.requests.clear()
        self.errors.clear()
        self.send("Page.navigate", url=path.as_uri())
        address = json.dumps(path.as_uri())
        until = time.monotonic() + _PATIENCE
        while not self.run(f"document.readyState === 'complete' && location.href === {address}"):
            assert time.monotonic() < until, f"{path} did not load"
            time.sleep(0.02)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        done = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def print_media(self) -> None:
        """Lay the page out as for paper, at the width of A4 without its margins."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=718,
            height=1000,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.send("Emulation.setEmulatedMedia", media="print", features=[])

    def press(self, key: str) -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def move(self, x: float, y: float) -> None:
        """Move the pointer."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        """Press and release the left button."""
        self.move(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def centre(self, selector: str) -> tuple[float, float]:
        """Scroll an element into sight; the middle of it in the window."""
        chosen = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{chosen}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        box = self.run(f"{chosen}.getBoundingClientRect().toJSON()")
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def _next(self) -> dict[str, Any]:
        """The next message; events are noted on the way."""
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._process.stdout], [], [], _PATIENCE)
            assert ready, "the browser does not answer"
            data = os.read(self._process.stdout.fileno(), 1 << 20)
            assert data, "the browser has gone"
            self._rest += data
        text, self._rest = self._rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, event: str | None, said: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.errors.append(str(said["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning"):
            self.errors.append(str(said["args"]))
        elif event == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.errors.append(said["entry"]["text"])
