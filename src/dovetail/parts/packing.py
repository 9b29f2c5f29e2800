"""A part whose weights are what a packed container decodes to, and which is saved as it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from dovetail.core.errors import FormatError, SettingsError
from dovetail.parts.described import described
from dovetail.parts.origin import Origin
from dovetail.parts.packed_file import holds, unpacked
from dovetail.parts.part import Part

__all__ = ["with_packed", "without_packed"]


def with_packed(
    part: Part,
    container: bytes,
    *,
    settings: Mapping[str, Any] | None = None,
    measured: Mapping[str, float] | None = None,
) -> Part:
    """A new part with the weights that a container of this part's weights decodes to.

    Its contract stays, and with it its spaces: what fitted the part fits the packed one.  Its
    origin names the part as parent.  Saved or shelved, it is written as the container.

    >>> from dovetail.pack.compressing import compress
    >>> from dovetail.parts.part import build
    >>> part = build("mlp", shape=(64,), hidden=(32,), classes=3)
    >>> small = with_packed(part, compress(part.module.state_dict()))
    >>> small.origin.how, small.contract == part.contract, small.digest == part.digest
    ('pack', True, False)
    """
    module = copy.deepcopy(part.module)
    wanted = described(module.state_dict())
    module.load_state_dict(unpacked(container, wanted), strict=True)
    if not holds(container, module.state_dict()):
        raise FormatError(
            "the container decodes tensors that are tied to different values; pack them by one "
            "number of bits (bits=...), or keep them exactly (lossless=...)"
        )
    origin = Origin(
        how="pack",
        parents=(part.digest,),
        task=part.origin.task,
        task_fingerprint=part.origin.task_fingerprint,
        settings=dict(settings or {}),
        measured=dict(measured or {}),
    )
    return part.changed(module=module, origin=origin, packed=container)


def without_packed(part: Part) -> Part:
    """The same part, to be saved as plain tensors; its weights stay what packing made of them."""
    if part.packed is None:
        raise SettingsError(f"{part.described!r} is not packed; there is nothing to unpack")
    return part.changed(packed=None)
