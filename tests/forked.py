"""Real processes that are there at once: forked from a server that has imported torch already.

A fresh process imports torch for seconds of processor time; a fork of this test process could hang
in the threads that it does not inherit.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import traceback
from pathlib import Path

PATIENCE = 600
"""Seconds until a process that hangs is given up; one that does not is never near it."""

_IMPORTED = [
    "dovetail.cli.train",
    "dovetail.closed_form.estimators",
    "dovetail.closed_form.estimators",
    "dovetail.jobs.train",
    "dovetail.ranking.ranker",
    "sklearn.datasets",
    "torch._dynamo",  # which the first step of an optimiser imports
]


def start(target, *args):
    """A process that calls ``target``, which other processes can import."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    process = context.Process(target=target, args=args)
    process.start()
    return process


def meet(source, folder):
    """Run a script in two processes, whose arguments are their rank and the folder."""
    started = [start(_run_source, source, str(rank), str(folder)) for rank in range(2)]
    for rank, process in enumerate(started):
        _end(process, Path(folder, f"wrong{rank}"))


def run_file(path, *words, folder):
    """Run a script with these words after its name, in a process of its own."""
    _end(
        start(_run_file, str(path), [str(word) for word in words], str(folder)),
        Path(folder, "wrong"),
    )


def _end(process, wrong):
    process.join(PATIENCE)
    assert not wrong.exists(), wrong.read_text()
    assert process.exitcode == 0


def _run_source(source, rank, folder):
    import torch

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    sys.argv = ["script", rank, folder]
    code = compile(source, "script", "exec")
    _told(lambda: exec(code, {"__name__": "__main__"}), Path(folder, f"wrong{rank}"))


def _run_file(path, words, folder):
    sys.argv = [path, *words]
    sys.path.insert(0, str(Path(path).parent))
    with open(os.devnull, "w") as sys.stdout:
        _told(lambda: runpy.run_path(path, run_name="__main__"), Path(folder, "wrong"))


def _told(work, wrong):
    """Do it; write what goes wrong to a file, and leave at once: others may be waiting."""
    try:
        work()
    except BaseException as error:
        if not (isinstance(error, SystemExit) and not error.code):
            wrong.write_text(traceback.format_exc())
            os._exit(1)
