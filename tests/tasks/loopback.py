"""A server on this machine that behaves as it is told, well or badly."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """``answers`` maps a path to what is done with a request for it."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"
        self.answers: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}
        self.over = threading.Event()
        self.asked: list[str] = []

    def gives(self, path: str, content: bytes, *, length: int | None = None) -> str:
        """Serve content, under a length that may be a lie (negative: none is sent)."""

        def answer(request: BaseHTTPRequestHandler) -> None:
            request.send_response(200)
            promised = len(content) if length is None else length
            if promised >= 0:
                request.send_header("Content-Length", str(promised))
            request.end_headers()
            request.wfile.write(content)

        self.answers[path] = answer
        return self.address + path

    def redirects(self, path: str, to: str) -> str:
        """Send whoever asks elsewhere."""

        def answer(request: BaseHTTPRequestHandler) -> None:
            request.send_response(302)
            request.send_header("Location", to)
            request.send_header("Content-Length", "0")
            request.end_headers()

        self.answers[path] = answer
        return self.address + path

    def hangs(self, path: str, content: bytes) -> str:
        """Send the beginning, then nothing more until the test is over."""

        def answer(request: BaseHTTPRequestHandler) -> None:
            request.send_response(200)
            request.send_header("Content-Length", str(len(content)))
            request.end_headers()
            request.wfile.write(content[: len(content) // 2])
            request.wfile.flush()
            self.over.wait(20)

        self.answers[path] = answer
        return self.address + path


@contextmanager
def serving() -> Iterator[Server]:
    """A running server, gone afterwards."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.asked.append(self.path)
            answer = server.answers.get(self.path)
            if answer is None:
                self.send_error(404, "Not Found")
                return
            with suppress(OSError):  # whoever asked may have given up
                answer(self)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        server = Server(http.server_address[1])
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.over.set()
            http.shutdown()
            thread.join()
