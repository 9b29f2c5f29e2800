"""Scores by name, from sums; what several of them need is worked out once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from torch import Tensor

from dovetail.core.activations import KernelRange
from dovetail.core.errors import SettingsError, TaskError, nearest
from dovetail.ranking.sums.all_sums import Sums
from dovetail.ranking.sums.class_sums import ClassSums
from dovetail.ranking.sums.covariance_scores import CovarianceScores, bhattacharyya
from dovetail.ranking.sums.kernel_scores import KernelSums, centred_alignment

__all__ = ["ALIASES", "KINDS", "NUMBER_KINDS", "ScoresFromSums", "known_kind"]

KINDS = (
    "al",
    "utal",
    "nmse",
    "al-neo",
    "utal-neo",
    "nmse-neo",
    "centred-al",
    "centred-al-unit",
    "logme",
    "hscore",
    "hscore-lw",
    "gbc",
    "gbc-spherical",
)
"""The scores that come from sums."""

NUMBER_KINDS = ("centred-al", "centred-al-unit", "logme")
"""Those of them that targets which are numbers have."""

ALIASES = {"cka": "centred-al"}


def known_kind(kind: str) -> str:
    """The score's own name.

    >>> known_kind("cka")
    'centred-al'
    >>> known_kind("logmee")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.SettingsError: no sums give 'logmee'; did you mean logme?
    """
    name = ALIASES.get(kind, kind)
    if name not in KINDS:
        raise SettingsError(f"no sums give {kind!r}{nearest(kind, [*KINDS, *ALIASES])}")
    return name


class ScoresFromSums:
    """Every score of some sums.

    Args:
        sums: Of the rows, or of the rows turned into fewer coordinates.
        span: The range of the kernel.
        width: How many features there were.
        gaussians: The classes' means and squared deviations ``[C, d]`` in the features' own
            coordinates, which only GBC depends on.
    """

    def __init__(
        self,
        sums: Sums,
        span: KernelRange,
        width: int,
        gaussians: Callable[[], tuple[Tensor, Tensor]],
    ) -> None:
        self.sums, self.span, self.gaussians = sums, span, gaussians
        self.covariance = CovarianceScores(sums, width)

    def value(self, kind: str) -> float:
        """One score, by a name of :data:`KINDS`."""
        if kind in ("centred-al", "centred-al-unit"):
            return centred_alignment(self.sums, unit=kind == "centred-al-unit")
        if kind == "logme":
            return self.covariance.logme()
        classes = self.sums.targets
        if not isinstance(classes, ClassSums):
            raise TaskError(
                f"{kind!r} needs one class a row, given as integers; "
                f"targets that are numbers have {', '.join(NUMBER_KINDS)}"
            )
        if kind in ("hscore", "hscore-lw"):
            return getattr(self.covariance, kind.replace("-", "_"))()  # type: ignore[no-any-return]
        if kind.startswith("gbc"):
            means, squares = self.gaussians()
            return bhattacharyya(classes.counts, means, squares, spherical=kind != "gbc")
        return self._kernel_score(kind)

    def _kernel_score(self, kind: str) -> float:
        sums = self._kernel
        functions: dict[str, Callable[[], float]] = {
            "al": sums.al,
            "utal": sums.utal,
            "nmse": sums.nmse,
            "al-neo": sums.al_neo,
            "utal-neo": sums.al_neo,
            "nmse-neo": sums.nmse_neo,
        }
        return functions[kind]()

    @cached_property
    def _kernel(self) -> KernelSums:
        assert isinstance(self.sums.targets, ClassSums)
        return KernelSums(self.sums, self.sums.targets, self.span)
