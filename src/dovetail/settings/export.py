"""What an export lets people choose."""

from __future__ import annotations

import os

from dovetail.core.errors import SettingsError, argument
from dovetail.core.settings import Settings, setting

FORMATS = {".onnx": "ONNX", ".pt2": "torch.export"}
"""What can be written, by the ending of the file."""


class Export(Settings):
    """Write a part as a file that runs without dovetail."""

    pixels: bool = setting(
        True, "standardise inside, so that it takes pixels from 0 to 1 as they are"
    )
    tolerance: float = setting(
        1e-4, "how far outputs may be from the part's, as a share of the largest", above=0
    )
    replace: bool = setting(False, "overwrite what is there")


def format_of(path: str, *, replace: bool = Export.replace) -> str:
    """What the ending of a new file asks for; no other ending will do, nor a file that is there.

    >>> format_of("net.onnx")
    'ONNX'
    """
    ending = os.path.splitext(path)[1].lower()
    if ending not in FORMATS:
        raise SettingsError(f"{path}: the ending says the format; end it with .onnx or .pt2")
    if os.path.isdir(path):
        raise SettingsError(f"{path} is a folder; name a file")
    if os.path.exists(path) and not replace:
        raise SettingsError(f"{path} is there already; pass {argument('replace', True)}")
    return FORMATS[ending]
