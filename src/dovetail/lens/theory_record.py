"""What theory expects of a transfer, in numbers and in a sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dovetail.core.declared import measures, text
from dovetail.core.records import Record
from dovetail.core.views import Figure, Series


@dataclass(frozen=True, kw_only=True)
class GramTheory(
    Record,
    kind="gram-theory",
    title="What theory expects from {source} to {target}",
    brief="{source} to {target}: {_moves}",
):
    r"""What fine-tuning from a source would do on a target, beside training from scratch.

    ``transferred`` is :math:`y_{P\to Q}`, a row an example and a column an output, beside the
    ``labels`` :math:`y_Q`.  ``lipschitz_change`` is :math:`\lVert y_Q - y_{P\to Q}\rVert^2 -
    \lVert y_Q\rVert^2`; ``deviation`` and ``deviation_scratch`` are the **squares**
    :math:`\lVert W_Q - W_P\rVert_F^2` and :math:`\lVert W_Q - W_0\rVert_F^2`.  ``least_source`` and
    ``least_target`` are the least eigenvalues of the two matrices.

    >>> found = GramTheory(
    ...     source="a", target="b", n_source=1, n_target=1, outputs=("y",), labels=((1.0,),),
    ...     transferred=((0.8,),), lipschitz_change=-0.96, gradient_scratch=1.0, deviation=0.08,
    ...     deviation_scratch=2.0, least_source=0.5, least_target=0.5,
    ... )
    >>> found.helps, round(found.distance / found.distance_scratch, 2)
    (True, 0.2)
    """

    source: str
    target: str
    n_source: int
    n_target: int
    outputs: tuple[str, ...]
    labels: tuple[tuple[float, ...], ...]
    transferred: tuple[tuple[float, ...], ...]
    lipschitz_change: float
    gradient_scratch: float
    deviation: float
    deviation_scratch: float
    least_source: float
    least_target: float

    @property
    def distance(self) -> float:
        r"""How far fine-tuning moves the weights, :math:`\lVert W_Q - W_P\rVert_F`."""
        return math.sqrt(self.deviation)

    @property
    def distance_scratch(self) -> float:
        """How far training from scratch moves them."""
        return math.sqrt(self.deviation_scratch)

    @property
    def helps(self) -> bool:
        """Whether the weights have less far to go."""
        return self.deviation < self.deviation_scratch

    @property
    def complexity(self) -> tuple[float, float]:
        r""":math:`\sqrt{2 D / n}`, which bounds the error on new examples: with, and without."""
        both = (self.deviation, self.deviation_scratch)
        with_it, without = (math.sqrt(2 * each / self.n_target) for each in both)
        return with_it, without

    @property
    def steepness(self) -> float:
        """The squared gradient at the start, over that from scratch."""
        start = self.gradient_scratch
        return (start + self.lipschitz_change) / start if start else 1.0

    @property
    def summary(self) -> str:
        """The verdict in plain words."""
        way = self.deviation / self.deviation_scratch if self.deviation_scratch else 1.0
        further = math.sqrt(way) - 1
        if abs(further) < 0.02:
            verdict = "Theory expects nothing of this transfer"
        elif further < 0:
            verdict = "Theory expects transfer to help" + (" a little" if further > -0.1 else "")
        else:
            verdict = "Theory expects transfer to hurt" + (" a little" if further < 0.1 else "")
        steeper = self.steepness - 1
        and_ = "but" if (further < 0) != (steeper < 0) else "and"
        return (
            f"{verdict}: the weights move {_percent(further, 'further', 'less far')} than from "
            f"scratch, {and_} the loss begins {_percent(steeper, 'steeper', 'less steep')}."
        )

    @property
    def _moves(self) -> str:
        return f"distance {self.distance:.3g}, from scratch {self.distance_scratch:.3g}"

    @property
    def _shaky(self) -> str:
        least = min(self.least_source, self.least_target)
        if least > 1e-3:
            return ""
        return (
            f"The least eigenvalue is {least:.1g}: inputs lie close together, and only networks "
            "much wider than 1 / that come near these figures."
        )

    @property
    def _scaled(self) -> str:
        lengths = self.settings.get("lengths")
        if not isinstance(lengths, dict):
            return ""
        ends = [end for each in lengths.values() for end in each]
        if max(ends) - min(ends) < 1e-6 and abs(max(ends) - 1) < 1e-6:
            return ""
        return (
            f"Inputs were scaled to unit length; they were {min(ends):.3g} to {max(ends):.3g} long."
        )

    def _figure(self) -> Figure | None:
        """Labels that come with the source against the target's own, of the first output."""
        if not self.labels:
            return None
        own = tuple(row[0] for row in self.labels)
        come = tuple(row[0] for row in self.transferred)
        title = f"What the source says of the target's examples: {self.outputs[0]}"
        return Figure("scatter", title, (Series("examples", own, come),), "label", "transferred")

    shows = (
        text("{summary}"),
        measures(
            {
                "distance, fine-tuned": "distance",
                "distance, from scratch": "distance_scratch",
                "its square, fine-tuned (theorem 2)": "deviation",
                "its square, from scratch": "deviation_scratch",
                "complexity, fine-tuned": lambda self: self.complexity[0],
                "complexity, from scratch": lambda self: self.complexity[1],
                "change of the squared gradient (theorem 1)": "lipschitz_change",
                "squared gradient from scratch": "gradient_scratch",
                "least eigenvalue, source": "least_source",
                "least eigenvalue, target": "least_target",
                "examples, source": "n_source",
                "examples, target": "n_target",
            }
        ),
        text("{_shaky}", "warning"),
        text("{_scaled}", "note"),
        _figure,
    )


def _percent(change: float, more: str, less: str) -> str:
    """A share in words.

    >>> _percent(-0.4, "further", "less far"), _percent(2.5, "further", "less far")
    ('40 % less far', '3.5 times as far')
    """
    if abs(change) < 0.005:
        return f"no {more}"
    if change >= 1:
        return f"{1 + change:.2g} times as {less.removeprefix('less ')}"
    return f"{abs(change):.0%} {more if change > 0 else less}".replace("%", " %")
