"""A hub on this machine: the few addresses that sending and fetching a folder need, in memory."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Hub(BaseHTTPRequestHandler):
    """Answers like a Hugging Face hub; ``repos`` and ``asked`` belong to the server."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            repo_id = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            self.server.made[repo_id] = asked
            self.server.repos.setdefault(repo_id, {})
            return self.answer({"url": f"http://127.0.0.1/{repo_id}", "name": repo_id})
        if found := re.fullmatch(r"/api/models/(.+)/preupload/main", self.path):
            listed = json.loads(body)["files"]
            how = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
            return self.answer({"files": [{"path": each["path"], **how} for each in listed]})
        if found := re.fullmatch(r"/api/models/(.+)/commit/main", self.path):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    data = base64.b64decode(line["value"]["content"])
                    self.server.repos[found[1]][line["value"]["path"]] = data
            address = f"http://127.0.0.1/{found[1]}"
            return self.answer({"success": True, "commitOid": "1f" * 20, "commitUrl": address})
        if self.path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        return self.answer({"error": "not here"}, 404)

    def do_GET(self):
        path = self.path.partition("?")[0]
        if found := re.fullmatch(r"/api/models/(.+)/revision/(.+)", path):
            files = self.server.repos.get(found[1])
            if files is None:
                return self.answer({}, 404, {"X-Error-Code": "RepoNotFound"})
            if found[2] not in ("main", "1f" * 20):
                return self.answer({}, 404, {"X-Error-Code": "RevisionNotFound"})
            siblings = [{"rfilename": name} for name in files]
            return self.answer({"id": found[1], "sha": "1f" * 20, "siblings": siblings})
        if found := re.fullmatch(r"/api/models/(.+)/tree/(.+)", path):
            files = self.server.repos[found[1]].items()
            return self.answer(
                [
                    {"type": "file", "path": name, "size": len(data), "oid": oid(data)}
                    for name, data in files
                ]
            )
        if found := re.fullmatch(r"/(.+)/resolve/[^/]+/(.+)", path):
            data = self.server.repos[found[1]][found[2]]
            if self.command == "GET":
                self.server.fetched.append(found[2])
            tags = {"ETag": f'"{oid(data)}"', "X-Repo-Commit": "1f" * 20}
            return self.answer(data, 200, tags)
        return self.answer({"error": "not here"}, 404)

    do_HEAD = do_GET

    def answer(self, value, code=200, headers=()):
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.server.asked.append(f"{self.command} {self.path} {code}")
        self.send_response(code)
        for name, text in {"Content-Length": str(len(data)), **dict(headers)}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_):
        pass


def oid(data):
    return hashlib.sha1(data).hexdigest()


@contextmanager
def hub_server():
    """A running hub, with what it was sent and asked."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.repos, server.made, server.asked, server.fetched = {}, {}, [], []
    server.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
