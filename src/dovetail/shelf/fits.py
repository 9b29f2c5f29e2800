"""What was measured of parts that were joined, kept beside the parts.

A contract says that two parts fit; only a measurement says how well.  Each is a small file in the
shelf's ``_fits``, named after what was measured (which parts, on which split of which task, with
which norms), so that measuring again replaces it and writers never meet in one file.  Parts are
named by the digests of their weights: renaming one or taking it off the shelf changes nothing here.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from dovetail.core.errors import DovetailError, FormatError, SettingsError
from dovetail.core.files import HIDDEN, write_whole
from dovetail.core.plain import dumps
from dovetail.shelf.entry import SUFFIX, checked_text, read_checked

FOLDER = "_fits"
"""Where measurements lie; no part can be called that."""

_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class MeasuredFit:
    """How well some parts predict together: a front, what lies between, and a head.

    ``front``, ``head`` and ``through`` (the stitches between, in order) are digests of parts;
    ``norms`` says which statistics their batch norms used, ``chance`` what guessing would reach and
    ``n`` on how many examples it was measured.

    >>> fit = MeasuredFit("1f", "9c", (), "digits", "07", "test", "batch", 0.91, 0.1, 360)
    >>> fit.chain
    ('1f', '9c')
    """

    front: str
    head: str
    through: tuple[str, ...]
    task: str
    task_fingerprint: str
    split: str
    norms: str
    accuracy: float
    chance: float
    n: int

    def __post_init__(self) -> None:
        if isinstance(self.through, str):
            raise SettingsError(f"through is a list of digests, as in ({self.through!r},)")
        object.__setattr__(self, "through", tuple(self.through))
        if not all(math.isfinite(v) and 0 <= v <= 1 for v in (self.accuracy, self.chance)):
            raise SettingsError(
                f"accuracy and chance are shares from 0 to 1, got {self.accuracy} and {self.chance}"
            )
        if self.n < 1:
            raise SettingsError(f"n is the number of examples measured on, got {self.n}")

    @property
    def chain(self) -> tuple[str, ...]:
        """The digests of all parts, front first."""
        return (self.front, *self.through, self.head)

    @property
    def name(self) -> str:
        """The file's name: the sha256 of what was measured, whatever came out.

        >>> one = MeasuredFit("1f", "9c", (), "digits", "07", "test", "batch", 0.91, 0.1, 360)
        >>> again = MeasuredFit("1f", "9c", (), "digits", "07", "test", "batch", 0.93, 0.1, 360)
        >>> one.name == again.name
        True
        """
        parts = [self.front, self.head, list(self.through)]
        facts = [*parts, self.task_fingerprint, self.split, self.norms]
        return hashlib.sha256(dumps(facts).encode()).hexdigest()


def write_fit(shelf: Path, fit: MeasuredFit) -> Path:
    """Write a measurement, whole or not at all, in place of an older one of the same.

    >>> import tempfile
    >>> fit = MeasuredFit("1f", "9c", (), "digits", "07", "test", "batch", 0.91, 0.1, 360)
    >>> shelf = Path(tempfile.mkdtemp())
    >>> read_fits(shelf) == [fit] if write_fit(shelf, fit) else None
    True
    """
    path = shelf / FOLDER / f"{fit.name}{SUFFIX}"
    write_whole(path, checked_text(fit))
    return path


def read_fits(shelf: Path) -> list[MeasuredFit]:
    """Every measurement that can be read, best first; damaged files are passed over."""
    fits = []
    for path in fit_files(shelf):
        with suppress(DovetailError):
            fits.append(read_fit(path))
    return sorted(fits, key=lambda fit: (-fit.accuracy, fit.name))


def fit_files(shelf: Path) -> list[Path]:
    """The files that are measurements or claim to be."""
    try:
        return sorted(
            path
            for path in (shelf / FOLDER).iterdir()
            if path.name.endswith(SUFFIX) and not path.name.startswith(HIDDEN)
        )
    except OSError:
        return []


def read_fit(path: Path) -> MeasuredFit:
    """Read one measurement.

    Raises:
        FormatError: it is damaged, or not what its name says.
    """
    try:
        fit = read_checked(MeasuredFit, path, most_bytes=_MOST_BYTES, links=False)
    except SettingsError as error:
        raise FormatError(f"{path}: {error}") from None
    if path.name != f"{fit.name}{SUFFIX}":
        raise FormatError(f"{path}: was changed or damaged after it was written")
    return fit


def best(fits: Iterable[MeasuredFit]) -> MeasuredFit | None:
    """The most telling measurement: the best one, of the training split only where no other is.

    >>> fits = [
    ...     MeasuredFit("1f", "9c", (), "digits", "07", split, "batch", accuracy, 0.1, 360)
    ...     for split, accuracy in [("train", 1.0), ("test", 0.8), ("validation", 0.7)]
    ... ]
    >>> best(fits).accuracy
    0.8
    """
    return max(fits, key=lambda fit: (fit.split != "train", fit.accuracy), default=None)


def neighbours(fits: Iterable[MeasuredFit], digest: str) -> dict[str, MeasuredFit]:
    """For each part that was measured right before or behind this one, the best measurement.

    >>> fit = MeasuredFit("1f", "9c", ("5a",), "digits", "07", "test", "batch", 0.91, 0.1, 360)
    >>> sorted(neighbours([fit], "1f")), sorted(neighbours([fit], "5a"))
    (['5a'], ['1f', '9c'])
    """
    beside: dict[str, list[MeasuredFit]] = {}
    for fit in fits:
        for before, after in pairwise(fit.chain):
            if before == digest:
                beside.setdefault(after, []).append(fit)
            if after == digest:
                beside.setdefault(before, []).append(fit)
    bests = ((other, best(several)) for other, several in beside.items())
    return {other: fit for other, fit in bests if fit is not None}
