"""Containers of many blocks and groups, without the million elements that fill one."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from dovetail.pack import compressing, index


@contextmanager
def small_blocks(block=256, group=1000):
    """While it lasts, what is packed and unpacked has blocks of so many elements."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "BLOCK", block)
        patch.setattr(compressing, "_GROUP", group)
        yield
