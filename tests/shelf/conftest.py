"""Tiny parts, and shelves of them."""

from __future__ import annotations

import pytest

from dovetail.parts.part import build
from dovetail.shelf.store import Shelf


@pytest.fixture
def shelf(tmp_path):
    return Shelf(tmp_path / "shelf")


@pytest.fixture(scope="session")
def tiny():
    """A part of a few dozen weights for any seed."""

    def make(seed=0, **args):
        return build("mlp", **{"shape": (3,), "hidden": (4,), "classes": 2, "seed": seed, **args})

    return make
