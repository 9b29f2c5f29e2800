"""A container written to a file as its tensors arrive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from dovetail.core.files import whole_file
from dovetail.pack.compressing import State, stream
from dovetail.pack.packed import Packed, described
from dovetail.pack.rules import Rules

__all__ = ["write"]


def write(
    path: str | Path,
    state_dict: State,
    extra_bits: int = 6,
    probe_bits: int = 4,
    sample: float = 0.03,
    *,
    bits: int | Mapping[str, int] | None = None,
    gradients: Mapping[str, Tensor | float] | None = None,
    channels: bool = False,
    lossless: Sequence[str] = (),
    smallest: int = 256,
    seed: int = 0,
    metadata: Mapping[str, str] | None = None,
) -> Packed:
    """Pack tensors into a file, which appears whole or not at all.

    The settings are those of :func:`dovetail.pack.compress`, and so are the bytes.  Names and
    tensors may come from a generator: no more than one tensor is held at a time, so that weights
    larger than memory pass through.  ``metadata``, such as a safetensors file has, is kept in the
    settings of the container's index.

    >>> import tempfile, torch
    >>> path = Path(tempfile.mkdtemp()) / "weights.dovepack"
    >>> made = write(path, (("layer" + str(i), torch.randn(50, 50)) for i in range(3)))
    >>> made.size == path.stat().st_size, len(made.tensors)
    (True, 3)
    """
    rules = Rules(
        extra_bits, probe_bits, sample, bits, gradients, channels, lossless, smallest, seed
    )
    with whole_file(Path(path)) as file:
        entries = stream(file, state_dict, rules, metadata)
        size = file.tell()
    return described(entries, size, rules.described())
