"""Rows of features that several steps of one job ask for, computed once an input.

A job that ranks networks and then fits heads to the best of them runs the same images through the
same layers.  Within :func:`remembering`, rows are found again by what they depend on: the network
up to its features, how these become rows, and the bytes of an input.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from dovetail.core.files import write_whole
from dovetail.core.plain import dumps
from dovetail.parts.modules import structure_of
from dovetail.parts.norms import uses_batch_statistics
from dovetail.parts.part import Part

MOST_BYTES = 1 << 30
"""Of rows that are remembered."""

_MARK = 16


@dataclass(eq=False)
class _Known:
    """Rows ``[n, d]`` of one network, and where the row of an input is."""

    places: dict[bytes, int]
    rows: Tensor


@dataclass(eq=False)
class RememberedRows:
    """Rows by network and input.  While it is ``learning`` it takes in what is computed.

    Later steps should find what earlier ones left, whether or not the job was stopped in between:
    what is computed beside is the same then, in the same batches.
    """

    learning: bool = True
    _networks: dict[str, _Known] = field(default_factory=dict)

    def of(self, part: Part, how: str, inputs: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
        """Rows ``[n, d]`` of raw inputs ``[n, ...]``; those that are not known by ``run``.

        ``how`` says how rows are made of what the network gives.
        """
        if part.recipe is None or uses_batch_statistics(part.module):
            return run(inputs)  # its weights do not say what it computes; or batches matter
        key, marks = _key(part, how), _marks(inputs)
        known = self._networks.get(key)
        places = {} if known is None else known.places
        missing = [i for i, mark in enumerate(marks) if mark not in places]
        if known is None or len(missing) == len(marks):
            rows = run(inputs)
        else:
            known_rows = [i for i, mark in enumerate(marks) if mark in places]
            rows = known.rows.new_empty(len(marks), known.rows.shape[1])
            rows[known_rows] = known.rows[[places[marks[i]] for i in known_rows]]
            if missing:
                rows[missing] = run(inputs[missing])
        if self.learning and missing and self._bytes + rows.nbytes <= MOST_BYTES:
            self._learn(key, [marks[i] for i in missing], rows[missing])
        return rows

    @property
    def _bytes(self) -> int:
        return sum(known.rows.nbytes for known in self._networks.values())

    def _learn(self, key: str, marks: list[bytes], rows: Tensor) -> None:
        known = self._networks.get(key)
        if known is None:
            known = self._networks[key] = _Known({}, rows[:0])
        start = len(known.rows)
        known.rows = torch.cat([known.rows, rows])
        for i, mark in enumerate(marks):
            known.places.setdefault(mark, start + i)

    def save(self, file: Path) -> None:
        """To a file that is whole or absent."""
        tensors = {}
        for key, known in self._networks.items():
            marks, places = zip(*known.places.items(), strict=True)
            tensors[f"{key}.marks"] = torch.frombuffer(
                bytearray(b"".join(marks)), dtype=torch.uint8
            ).reshape(-1, _MARK)
            tensors[f"{key}.rows"] = known.rows[list(places)].contiguous()
        write_whole(file, save(tensors))

    @classmethod
    def load(cls, file: Path) -> RememberedRows:
        """What :meth:`save` wrote, not learning; nothing where the file is absent or damaged."""
        remembered = cls(learning=False)
        try:
            tensors = load_file(file)
        except (OSError, SafetensorError):
            return remembered
        for name, marks in tensors.items():
            key, _, what = name.rpartition(".")
            rows = tensors.get(f"{key}.rows")
            if what == "marks" and rows is not None and marks.shape == (len(rows), _MARK):
                places = {bytes(mark): i for i, mark in enumerate(marks.numpy())}
                remembered._networks[key] = _Known(places, rows)
        return remembered


_AT_HAND: ContextVar[RememberedRows | None] = ContextVar("remembered rows", default=None)


@contextmanager
def remembering(rows: RememberedRows) -> Iterator[None]:
    """Features that are asked for meanwhile are looked for among these rows first."""
    token = _AT_HAND.set(rows)
    try:
        yield
    finally:
        _AT_HAND.reset(token)


def at_hand() -> RememberedRows | None:
    """The rows of the innermost :func:`remembering`, if there is one.

    >>> from dovetail.parts.part import build
    >>> part, seen = build("mlp", shape=(2,)), []
    >>> def run(x):
    ...     seen.append(len(x))
    ...     return x
    >>> with remembering(RememberedRows()):
    ...     _ = at_hand().of(part, "as they are", torch.eye(2), run)
    ...     at_hand().of(part, "as they are", torch.tensor([[0.0, 1.0], [3.0, 4.0]]), run)
    tensor([[0., 1.],
            [3., 4.]])
    >>> seen, at_hand()
    ([2, 1], None)
    """
    return _AT_HAND.get()


def _key(part: Part, how: str) -> str:
    facts = {
        "weights": part.digest,
        "structure": structure_of(part.module),
        "preprocess": part.contract.preprocess,
        "how": how,
    }
    return hashlib.sha256(dumps(facts).encode()).hexdigest()[:32]


def _marks(inputs: Tensor) -> list[bytes]:
    """A few bytes for each input, equal for equal ones of one type."""
    plain = inputs.detach().cpu().contiguous()
    about = f"{plain.dtype} {tuple(plain.shape[1:])}".encode()
    return [
        hashlib.blake2b(about + row.numpy().tobytes(), digest_size=_MARK).digest() for row in plain
    ]
