"""Where to compute."""

from __future__ import annotations

import torch

from dovetail.core.errors import SettingsError, first_line

__all__ = ["choose_device"]


def choose_device(device: str | torch.device = "auto") -> torch.device:
    """The device asked for, or with ``"auto"`` the best there is.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(
            f"cannot compute on device {str(device)!r}: {first_line(error)}"
        ) from None
    return chosen
