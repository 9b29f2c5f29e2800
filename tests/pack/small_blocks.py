"""Containers of many blocks and groups, without the million elements that fill one."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest

from dovetail.pack import compressing, container


@contextmanager
def small_blocks(block=256, group=1000):
    """While it lasts, what is packed and unpacked has blocks of so many elements."""
    entry, planned = compressing.Entry, compressing.planned
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(container, "_BLOCKS", {**container._BLOCKS, container.FORMAT: block})
        patch.setattr(compressing, "Entry", partial(entry, block=block))
        patch.setattr(compressing, "planned", lambda *told: replace(planned(*told), block=block))
        patch.setattr(compressing, "_GROUP", group)
        yield
