"""What every test starts from: one thread, and the same random numbers whatever ran before."""

from __future__ import annotations

import fcntl
import json
import os

# One thread, here and in what is started from here: on a busy machine two are slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


@pytest.fixture(scope="session")
def toured(tmp_path_factory):
    """The folder of one tour in a process of its own, and what it said; made by who asks first."""
    from cli.console import Said, spawn

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "toured"
    folder.mkdir(exist_ok=True)
    said = folder / "said.json"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not said.exists():
            words = ("demo", "--epochs", 1, "--folder", "tour", "--json")
            said.write_text(json.dumps(vars(spawn(*words, folder=folder))))
    return folder, Said(**json.loads(said.read_text()))


@pytest.fixture(autouse=True)
def _the_same_random_numbers():
    torch.manual_seed(0)
