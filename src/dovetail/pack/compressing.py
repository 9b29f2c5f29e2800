"""Weights to bytes: Algorithm 1 of the thesis "Efficient deep learning", chapter 3, and around it.

For each tensor: its range, the number of levels (:mod:`dovetail.pack.rules`), the level of each
weight (:mod:`dovetail.pack.quantise`), their numbers coded (:mod:`dovetail.pack.coding`).  What is
no floating tensor, is small, or is named in ``lossless`` keeps every bit.  Containers are written
as their tensors arrive, into memory or into a file.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from torch import Tensor, nn

from dovetail.core.errors import SettingsError, TaskError, argument, shown
from dovetail.core.files import whole_file
from dovetail.pack.code_choice import best_code
from dovetail.pack.container import HEAD, exact_block, quantised_block, ranges, write_index
from dovetail.pack.index import LONGEST_NAME, Entry, Group
from dovetail.pack.packed import Packed, described
from dovetail.pack.quantise import Grid, divisible, finest, low_and_high, ranged
from dovetail.pack.rules import Rules
from dovetail.pack.tensors import checked, elements_of, raw_bytes
from dovetail.pack.threads import Pool
from dovetail.settings.pack import Bits

_GROUP = 1 << 20
_PIECES, _PIECE = 64, 1 << 12

State = Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]


def compress(
    state_dict: State,
    extra_bits: int = Bits.extra_bits,
    probe_bits: int = 4,
    sample: float = 0.03,
    *,
    bits: int | Mapping[str, int] | None = Bits.bits,
    levels: int | Mapping[str, int] | None = Bits.levels,
    gradients: Mapping[str, Tensor | float] | None = None,
    channels: bool = Bits.channels,
    lossless: Sequence[str] = Bits.lossless,
    smallest: int = 256,
    seed: int = 0,
) -> bytes:
    r"""Pack tensors into a container; the same tensors and settings give the same bytes.

    Args:
        state_dict: Names and tensors; any dtype, shape and device.
        extra_bits: The floor :math:`c`: bits on top of the entropy or the gradient's logarithm.
        probe_bits: The entropy is that of a histogram of :math:`2^M` bins.
        sample: The fraction :math:`F` of the weights in that histogram (at least 512 weights, at
            most 65 536).
        bits: Instead of the entropy's: one number for all, or one a name (other names keep to the
            entropy).  A small tensor that is named is quantised too.  ``N`` bits are ``2 ** N``
            levels.
        levels: The same in levels, of which there may be any number from 2 to 65 536.
        gradients: The gradient rule instead: for each name the gradient, or its root mean square.
        channels: A range for each row (first axis) of a tensor instead of one for all of it.
        lossless: Patterns of names to keep exactly, such as ``"*.bias"``.
        smallest: Tensors with fewer elements are kept exactly; so are vectors below 65 536.
        seed: Decides which weights are sampled.

    >>> import torch
    >>> state = {"w": torch.linspace(-1, 1, 10_000).reshape(100, 100), "steps": torch.tensor(3)}
    >>> data = compress(state)
    >>> len(data) < 0.4 * 40_000
    True
    >>> from dovetail.pack.decompressing import decompress
    >>> back = decompress(data)
    >>> back["steps"], bool((back["w"] - state["w"]).abs().max() <= 1 / 1000)
    (tensor(3), True)
    """
    rules = Rules(
        extra_bits, probe_bits, sample, bits, gradients, channels, lossless, smallest, seed, levels
    )
    sink = BytesIO()
    stream(sink, state_dict, rules)
    return sink.getvalue()


def write(
    path: str | Path,
    state_dict: State,
    *settings: Any,
    metadata: Mapping[str, str] | None = None,
    **named_settings: Any,
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
    rules = Rules(*settings, **named_settings)
    with whole_file(Path(path)) as file:
        entries = stream(file, state_dict, rules, metadata)
        size = file.tell()
    return described(entries, size, rules.described())


def stream(
    sink: BinaryIO, state_dict: State, rules: Rules, metadata: Mapping[str, str] | None = None
) -> list[Entry]:
    """Write a container as the tensors arrive; no more than one of them is held at a time."""
    writer = _Writer(sink)
    with Pool() as threads:
        for name, value in _named_tensors(state_dict):
            _check_name(name)
            if name in rules.seen:
                raise SettingsError(f"two tensors are called {name!r}")
            writer.tensor(name, checked(name, value), rules, threads)
    rules.missed()
    about = {"metadata": dict(metadata)} if metadata else {}
    writer.finish(rules.described() | about)
    return writer.entries


class _Writer:
    def __init__(self, sink: BinaryIO) -> None:
        self.sink = sink
        self.entries: list[Entry] = []
        self.groups: list[Group] = []
        self.at = sink.write(HEAD)
        self.size = self.crc = 0

    def tensor(self, name: str, tensor: Tensor, rules: Rules, threads: Pool) -> None:
        entry = Entry(name, tensor.dtype, tuple(tensor.shape))
        if not rules.exact(name, tensor) and self.quantised(entry, tensor, rules, threads):
            return
        data = raw_bytes(tensor)
        pieces = (data[columns] for _, columns in entry.blocks())
        self.add(entry, threads.each(exact_block, pieces, entry.block_count))

    def quantised(self, entry: Entry, tensor: Tensor, rules: Rules, threads: Pool) -> bool:
        """Whether the tensor could be written in levels."""
        matrix = ranged(tensor, rules.channels)
        low, high = low_and_high(matrix)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise TaskError(
                f"{entry.name!r} has elements that are not finite, which no level is near: "
                f"keep it exactly with {argument('lossless', (entry.name,))}"
            )
        if not divisible(low, high):
            return False
        entry = replace(entry, rows=len(matrix))
        if (low == high).all():
            self.add(entry, iter([ranges(low, high)]))
            return True
        levels = rules.levels_for(entry.name, matrix, low, high)
        grid = Grid(min(levels, finest(tensor.dtype, low, high)), low, high)
        if grid.overshoots(tensor.dtype):
            return False
        code = best_code(_counts(matrix, grid), grid.bits, tensor.numel())
        entry = replace(entry, code=code, levels=grid.levels)

        def block(where: tuple[slice, slice]) -> list[bytes]:
            weights = matrix[where]
            numbers = elements_of(weights).reshape(weights.shape)
            return quantised_block(numbers, grid, where[0], code)

        def all_blocks() -> Iterator[list[bytes]]:
            yield ranges(low, high)
            yield from threads.each(block, entry.blocks(), entry.block_count)

        self.add(entry, all_blocks())
        return True

    def add(self, entry: Entry, blocks: Iterator[list[bytes]]) -> None:
        lengths = []
        for block in blocks:
            for piece in block:
                self.sink.write(piece)
                self.crc = zlib.crc32(piece, self.crc)
            lengths.append(sum(map(len, block)))
            self.size += lengths[-1]
            if self.size >= _GROUP:
                self.close()
        self.entries.append(replace(entry, lengths=tuple(lengths)))

    def close(self) -> None:
        if self.size:
            self.groups.append(Group(self.size, self.crc))
        self.at += self.size
        self.size = self.crc = 0

    def finish(self, settings: dict[str, Any]) -> None:
        self.close()
        self.sink.write(write_index(self.entries, self.groups, self.at, settings))


def _named_tensors(state_dict: State) -> Iterable[tuple[str, Tensor]]:
    """Names and tensors; what one has a network in, and may take for them, is told."""
    if isinstance(state_dict, Mapping):
        return state_dict.items()
    state: Any = state_dict
    kind = type(state).__name__
    if isinstance(state, nn.Module):
        raise SettingsError(f"a module ({kind}) is no state dict; give module.state_dict()")
    if isinstance(getattr(state, "module", None), nn.Module):
        raise SettingsError(
            f"a part ({kind}) is no state dict; pack it with dovetail.pack_part(part), or give its "
            "tensors alone, part.module.state_dict()"
        )
    if isinstance(state, str | bytes | Tensor) or not isinstance(state, Iterable):
        raise SettingsError(
            f"names and tensors are packed, such as module.state_dict(); got {shown(state)}"
        )
    return state_dict


def _check_name(name: object) -> None:
    try:
        fits = isinstance(name, str) and len(name) <= LONGEST_NAME and name.encode() is not None
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise SettingsError(
            f"{shown(name)} is no name for a tensor: at most {LONGEST_NAME} letters"
        )


def _counts(matrix: Tensor, grid: Grid) -> np.ndarray:
    """A histogram of the symbols: of all of them, or of pieces from all over a large tensor."""
    counts = np.zeros(1 << grid.bits, np.int64)
    for rows, columns in _pieces(*matrix.shape):
        piece = matrix[rows, columns]
        symbols = grid.symbols(elements_of(piece).reshape(piece.shape), rows)
        counts += np.bincount(symbols.reshape(-1), minlength=len(counts))
    return counts


def _pieces(rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
    """Evenly spaced pieces of ``[rows, columns]``: parts of one row, or whole rows."""
    total = rows * columns
    if total <= _PIECES * _PIECE:
        yield slice(None), slice(None)
        return
    for start in np.linspace(0, total - _PIECE, _PIECES).astype(int).tolist():
        row, at = divmod(start, columns)
        if columns >= _PIECE:
            at = min(at, columns - _PIECE)
            yield slice(row, row + 1), slice(at, at + _PIECE)
        else:
            yield slice(row, -(-(start + _PIECE) // columns)), slice(None)
