"""What every test starts from: one thread, and the same random numbers whatever ran before."""

from __future__ import annotations

import pytest
import torch

torch.set_num_threads(1)  # on a busy machine two threads are slower than one


@pytest.fixture(autouse=True)
def _the_same_random_numbers():
    torch.manual_seed(0)
