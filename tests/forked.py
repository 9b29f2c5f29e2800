"""Real processes that are there at once: forked from a server that has imported torch already.

A fresh process imports torch for seconds of processor time; a fork of this test process could hang
in the threads that it does not inherit.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from pathlib import Path

PATIENCE = 600
"""Seconds until a process that hangs is given up; one that does not is never near it."""

_IMPORTED = [
    "dovetail.cli.train",
    "dovetail.closed_form.classifier",
    "dovetail.closed_form.regressor",
    "dovetail.flows.train",
    "dovetail.ranking.ranker",
    "sklearn.datasets",
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
    started = [start(_run, source, str(rank), str(folder)) for rank in range(2)]
    for rank, process in enumerate(started):
        process.join(PATIENCE)
        wrong = Path(folder, f"wrong{rank}")
        assert not wrong.exists(), wrong.read_text()
        assert process.exitcode == 0


def _run(source, rank, folder):
    import torch

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    sys.argv = ["script", rank, folder]
    try:
        exec(compile(source, "script", "exec"), {"__name__": "__main__"})
    except BaseException:
        Path(folder, f"wrong{rank}").write_text(traceback.format_exc())
        os._exit(1)  # at once: the other one waits for it
