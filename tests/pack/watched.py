"""Work in a child process whose memory is watched: a fork, for importing torch takes seconds."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from pathlib import Path

import torch

PATIENCE = 60  # seconds until a child is ended


def in_child(work, *, headroom=None):
    """What ``work`` returned or raised, the megabytes it added to the peak, and its seconds."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        found = {}
        try:
            os.close(reading)
            signal.alarm(PATIENCE)
            torch.set_num_threads(1)  # the threads of the parent are not here
            if headroom is not None:
                pages = int(Path("/proc/self/statm").read_text().split()[0])
                resource.setrlimit(
                    resource.RLIMIT_AS, (pages * resource.getpagesize() + headroom,) * 2
                )
            before, began = peak(), time.process_time()
            try:
                found["gave"] = work()
            except BaseException as error:
                found["raised"], found["said"] = type(error).__name__, str(error)
            found |= {"megabytes": peak() - before, "seconds": time.process_time() - began}
            with os.fdopen(writing, "w") as file:
                json.dump(found, file)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    os.waitpid(child, 0)
    return json.loads(text)


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
