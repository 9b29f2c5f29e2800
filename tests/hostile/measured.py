"""Run every trick in a child process of its own, and print what each did, as JSON.

Started as a script by ``test_cases``.  A fork costs milliseconds where a fresh process would import
torch for seconds.  What is measured is work, which is the same on any machine: pieces of networks
that are made, modules that are called, bytes that are read and held.  Time only ends a child that
hangs.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path

import torch
from hostile.cases import CASES
from hostile.liar import honest
from torch.nn.modules import module as hooks

from dovetail.core.errors import DovetailError
from dovetail.parts.cutting import cut
from dovetail.parts.foreign.timm_import import import_timm
from dovetail.parts.part import Part
from dovetail.shelf.store import Shelf

PATIENCE = 600  # seconds until a child that waits for something is ended
EFFORT = 120  # seconds of the processor until a child that works for ever is ended
HEADROOM = 4 << 30  # bytes a child may map on top of what it starts with


SHELVED = sorted(name for name, case in CASES.items() if case.is_part)[::3]
"""The tricks that lie on a shelf together, beside honest parts."""


def limited():
    """From now on this process maps no more than it may."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + HEADROOM,) * 2)


def in_child(work):
    """What ``work`` returns, in a child; or how the child ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            signal.alarm(PATIENCE)
            resource.setrlimit(resource.RLIMIT_CPU, (EFFORT, EFFORT))
            limited()
            with os.fdopen(writing, "w") as file:
                json.dump(work(), file)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"error": f"ended by signal {os.WTERMSIG(status)}"}


class Work:
    """What this process does from now on."""

    def __init__(self):
        self.pieces = self.calls = 0
        self._read, self._held = bytes_read(), megabytes_held()
        hooks.register_module_module_registration_hook(self._made)
        hooks.register_module_parameter_registration_hook(self._made)
        hooks.register_module_buffer_registration_hook(self._made)
        hooks.register_module_forward_pre_hook(self._called)

    def _made(self, *_):
        self.pieces += 1

    def _called(self, *_):
        self.calls += 1

    def done(self):
        return {
            "pieces": self.pieces,
            "calls": self.calls,
            "megabytes_read": (bytes_read() - self._read) / 2**20,
            "megabytes": megabytes_held() - self._held,
        }


def bytes_read():
    return int(Path("/proc/self/io").read_text().split()[1])


def megabytes_held():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def attempt(case, path):
    def work():
        done = Work()
        found = {"error": "loaded", "ours": False, "says": ""}
        try:
            case.load(path)
        except BaseException as error:
            found = {
                "error": type(error).__name__,
                "ours": isinstance(error, DovetailError),
                "says": str(error).replace(str(path), "…")[:2000],
                "length": len(str(error)),
                "trace": "" if isinstance(error, DovetailError) else traceback.format_exc()[-3000:],
            }
        return found | done.done()

    return in_child(work)


def look_at(folder):
    """What a shelf of hostile folders says, with two good parts among them."""
    shelf = Shelf(folder)
    for name in ("aaa-good", "zzz-good"):
        shelf.add(honest(), name=name)

    def work():
        listed = {entry.ref: entry.problem for entry in Shelf(folder).entries()}
        check = shelf.verify()
        return {
            "listed": listed,
            "problems": {problem.ref: problem.what[:300] for problem in check.problems},
            "loads": [shelf.get(name, verify=True).digest for name in ("aaa-good", "zzz-good")],
        }

    return in_child(work)


def main(folder):
    torch.set_num_threads(1)
    canary, good, shelf = folder / "canary", folder / "good", folder / "shelf"
    front, _ = cut(honest(), at="hidden1")  # what is imported on first use is not a trick's doing
    Part.from_pretrained(front.save_pretrained(folder / "warm"), verify=True)
    honest().save_pretrained(good)
    with suppress(Exception):  # not installed, or beside another torch
        import_timm()
    results = {}
    for name, case in CASES.items():
        path = case.prepare(folder / name, canary, good)
        results[name] = attempt(case, path) | {"canary": canary.exists()}
        canary.unlink(missing_ok=True)
        if name in SHELVED:
            (shelf / name).mkdir(parents=True)
            os.rename(path, shelf / name / "1")
    looked = look_at(shelf)
    said = {"cases": results, "shelved": SHELVED, "shelf": looked, "canary": canary.exists()}
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
