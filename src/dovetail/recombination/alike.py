"""How alike fronts are, channel by channel, beside how well they recombine.

The two are not the same: a head may be robust to a difference in one feature and sensitive to
another, so fronts that correlate less can recombine better.
"""

from __future__ import annotations

from itertools import combinations

from torch import Tensor, nn

from dovetail.measures.correlation import CrossMoments
from dovetail.parts.modes import evaluating
from dovetail.recombination.batches import mixed_batches
from dovetail.recombination.fan import Fan
from dovetail.recombination.record import Alike
from dovetail.recombination.row import REFUSED, Row
from dovetail.running.preprocess import prepare, refuse_other_inputs

__all__ = ["correlated"]

_WIDEST = 4096
"""More channels are left out: every one is correlated with every other, and then matched."""


def correlated(rows: list[Row]) -> tuple[Alike, ...]:
    """Correlate every two fronts that give one tensor of the same shape for the same images.

    The images are those of the first front's task, each front prepares them in its own way, and
    batch norms follow the first policy (recalibrated ones on the front's own task).  A front that
    cannot take these images, or gives no finite numbers for them, is left out.
    """
    if len(rows) < 2:
        return ()
    first, fronts = rows[0], {row.name: _with_norms(row) for row in rows}
    moments: dict[tuple[str, str], CrossMoments] = {}
    images = first.task.indices(first.how.split)
    for batch in mixed_batches(images, first.how.batch_size, first.how.seed):
        features: dict[str, Tensor] = {}
        for row in rows:
            if row.name in fronts and (found := _features(row, fronts[row.name], first, batch)):
                features[row.name] = found[0]
        fronts = {name: fronts[name] for name in features}
        for one, other in combinations(features, 2):
            if features[one].shape == features[other].shape and features[one].shape[1] <= _WIDEST:
                piece = CrossMoments.of(features[one], features[other])
                known = moments.get((one, other))
                moments[one, other] = piece if known is None else known.merge(piece)
    return tuple(
        Alike(one, other, _mean(found.correlations().diagonal()), _mean(found.matched()[1]))
        for (one, other), found in moments.items()
        if one in fronts and other in fronts
    )


def _with_norms(row: Row) -> nn.Module:
    norms = row.how.norms[0]
    batches = row.calibration() if norms == "recalibrated" else ()
    return Fan(row.front.module, {}).with_norms(norms, batches).front


def _features(row: Row, front: nn.Module, first: Row, batch: Tensor) -> tuple[Tensor, ...]:
    """What the front gives for images of the first front's task; nothing if it cannot."""
    try:
        refuse_other_inputs(first.task, row.front.contract)
        x = prepare(first.task.inputs[batch], row.front.contract).to(row.front.device)
        with evaluating(front):
            given = front(x)
    except REFUSED:
        return ()
    usable = isinstance(given, Tensor) and given.ndim >= 2 and bool(given.isfinite().all())
    return (given.cpu(),) if usable else ()


def _mean(values: Tensor) -> float:
    return float(values.mean())
