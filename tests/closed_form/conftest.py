"""Rows that several files fit."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def rows():
    """Three curved classes of 2 inputs, and a number to predict."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(120, 2))
    return x, np.digitize((x**2).sum(1), [0.8, 2.2]), np.sin(x[:, 0]) + 0.3 * x[:, 1]
