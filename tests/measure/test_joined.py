"""The batches in which joined parts are measured: random, of like size, always the same."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.measure.joined import random_batches


@settings(max_examples=50, deadline=None)
@given(n=st.integers(1, 60), size=st.integers(1, 20), seed=st.integers(0, 3))
def test_batches_are_all_rows_once_and_never_small(n, size, seed):
    rows = torch.arange(n) * 3
    batches = random_batches(rows, seed, size)
    assert torch.cat(batches).sort().values.tolist() == rows.tolist()
    lengths = [len(batch) for batch in batches]
    assert max(lengths) <= size
    assert max(lengths) - min(lengths) <= 1
    assert len(batches) == 1 or size // 2 <= min(lengths)
    again = random_batches(rows, seed, size)
    assert all(torch.equal(a, b) for a, b in zip(batches, again, strict=True))


def test_batches_are_mixed():
    first = random_batches(torch.arange(1000), 0, 100)[0]
    assert first.float().mean() == pytest.approx(500, abs=120)
    assert not torch.equal(first, random_batches(torch.arange(1000), 1, 100)[0])
