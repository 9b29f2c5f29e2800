"""Run every trick in a child process of its own, and print what each did, as JSON.

Started as a script by ``test_cases``.  A fork costs milliseconds where a fresh process would import
torch for seconds; a child that hangs is ended by its alarm, one that grows by its limit.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import torch
from hostile.cases import CASES
from hostile.liar import honest

from dovetail.core.errors import DovetailError
from dovetail.parts.cutting import cut
from dovetail.parts.part import Part
from dovetail.shelf.store import Shelf

PATIENCE = 20  # seconds until a child is ended
ENOUGH = 0.9  # seconds after which a case is measured again
HEADROOM = 4 << 30  # bytes a child may map on top of what it starts with


def in_child(work, patience=PATIENCE):
    """What ``work`` returns, in a child; or how the child ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            signal.alarm(patience)
            mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (mapped + HEADROOM,) * 2)
            with os.fdopen(writing, "w") as file:
                json.dump(work(), file)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"error": f"ended by signal {os.WTERMSIG(status)}"}


def attempt(case, path):
    def work():
        before = resource.getrusage(resource.RUSAGE_SELF)
        start = time.perf_counter()
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
        after = resource.getrusage(resource.RUSAGE_SELF)
        return found | {
            "wall": time.perf_counter() - start,
            "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            "megabytes": (after.ru_maxrss - before.ru_maxrss) / 1024,
        }

    return in_child(work)


def on_a_shelf(folder, canary):
    """All hostile folders on one shelf, between two good parts."""
    for name, case in CASES.items():
        if case.is_part:
            (folder / name).mkdir(parents=True)
            case.prepare(folder / name / "1", canary)
    shelf = Shelf(folder)
    for name in ("aaa-good", "zzz-good"):
        shelf.add(honest(), name=name)

    def work():
        start = time.perf_counter()
        listed = {entry.ref: entry.problem for entry in Shelf(folder).entries()}
        middle = time.perf_counter()
        check = shelf.verify()
        return {
            "listed": listed,
            "problems": {problem.ref: problem.what[:300] for problem in check.problems},
            "loads": [shelf.get(name, verify=True).digest for name in ("aaa-good", "zzz-good")],
            "list_seconds": middle - start,
            "verify_seconds": time.perf_counter() - middle,
        }

    return in_child(work, 6 * PATIENCE)  # all of them, on a machine that may be busy


def main(folder):
    torch.set_num_threads(1)
    canary = folder / "canary"
    front, _ = cut(honest(), at="hidden1")  # what is imported on first use is not a trick's doing
    Part.from_pretrained(front.save_pretrained(folder / "warm"), verify=True)
    with suppress(Exception):  # not installed, or beside another torch
        import_module("timm")
    results = {}
    for name, case in CASES.items():
        path = case.prepare(folder / name, canary)
        found = attempt(case, path)
        for _ in range(2):  # on a busy machine even processor time is not all one's own
            if found.get("cpu", 0) > ENOUGH:
                found = min(found, attempt(case, path), key=lambda f: f.get("cpu", PATIENCE))
        results[name] = found | {"canary": canary.exists()}
        canary.unlink(missing_ok=True)
    shelf = on_a_shelf(folder / "shelf", canary)
    json.dump({"cases": results, "shelf": shelf, "canary": canary.exists()}, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
