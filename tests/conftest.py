"""What every test starts from: one thread, and the same random numbers whatever ran before."""

from __future__ import annotations

import fcntl
import gc
import json
import os

# One thread, here and in what is started from here: on a busy machine two are slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

# The same examples in every run: what they find is found by everybody, or by nobody.
settings.register_profile("same", derandomize=True, deadline=None, database=None, max_examples=30)
settings.load_profile("same")
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def pytest_collection_finish() -> None:
    """Never look for garbage among what is imported: what tests leave behind is found the sooner.

    Every graph of fx is a class of its own, and the more classes there are, the longer fx takes.
    """
    gc.collect()
    gc.freeze()


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
    torch.default_generator.manual_seed(0)  # torch.manual_seed looks for accelerators each time
