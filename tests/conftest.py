"""What every test starts from: one thread, and the same random numbers whatever ran before."""

from __future__ import annotations

import os

# One thread, here and in what is started from here: on a busy machine two are slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


@pytest.fixture(autouse=True)
def _the_same_random_numbers():
    torch.manual_seed(0)
