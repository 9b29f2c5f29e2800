"""All tricks, by name."""

from __future__ import annotations

from hostile import familiar, folders, others, packed, recipes, tensors, weights

_FILES = (folders, recipes, tensors, packed, others, weights, familiar)
CASES = {name: case for file in _FILES for name, case in file.TRICKS.items()}
assert len(CASES) == sum(len(file.TRICKS) for file in _FILES)
