"""How a network was fitted, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.closed_form.platonic import LayerFit
from dovetail.core.records import Record
from dovetail.core.views import Figure, Series, Table, Text, View

MOST_LINES = 40
"""Of the table; of a deeper network every so-manieth layer is shown."""

MORE, ROUNDING = 1.01, 1e-9
"""An LSD that is higher by no more than this did not rise; targets are of the size of one."""


@dataclass(frozen=True, kw_only=True)
class PlatonicFit(Record, kind="platonic-fit"):
    """The layers of a platonic fit, the inputs before them, and the passes over the rows.

    >>> layer = LayerFit(8, "random", 1.0, 5, 0.0, 10.0, 0.25, 0.01)
    >>> PlatonicFit(n=100, passes=1, start=layer, layers=(layer, layer), kept=1).title
    'Platonic fit of 1 hidden layer to 100 rows'
    """

    n: int
    passes: int
    start: LayerFit
    layers: tuple[LayerFit, ...]
    kept: int
    """Layers of the network; those behind were tried and dropped (``patience``)."""
    note: str = ""
    """What else is to be said: what to be careful about, what rounding the weights costs."""

    @property
    def title(self) -> str:
        """How deep, and on how much."""
        return f"Platonic fit of {self.kept} hidden layer{'s' * (self.kept != 1)} to {self.n} rows"

    @property
    def distance(self) -> float:
        """The least squares distance of the network."""
        return (self.start, *self.layers)[self.kept].distance

    @property
    def seconds(self) -> float:
        """What all layers took together."""
        return self.start.seconds + sum(layer.seconds for layer in self.layers)

    def view(self) -> View:
        """A line for each layer, and how the least squares distance went."""
        everything = (self.start, *self.layers)
        step = -(-len(everything) // MOST_LINES)
        shown = sorted({*range(0, len(everything), step), self.kept})
        rows = tuple(
            (
                "inputs" if i == 0 else str(i) if i <= self.kept else f"{i} (dropped)",
                layer.width,
                layer.projection,
                layer.distance,
                layer.penalty,
                layer.condition,
                layer.seconds,
            )
            for i, layer in ((i, everything[i]) for i in shown)
        )
        distances = tuple(layer.distance for layer in everything)
        return (
            Text(f"{self.seconds:.3g} s, {self.passes} passes over {self.n} rows."),
            Table(
                ("layer", "width", "projection", "LSD", "penalty", "condition", "seconds"),
                rows,
                formats=("", "d", "", ".4g", ".2g", ".2g", ".3f"),
                caption="LSD: what the layer's own (penalised) head leaves of the targets, a row.",
            ),
            Figure(
                "line",
                "Least squares distance by layer",
                (Series("LSD", tuple(range(len(everything))), distances),),
                "layer (0: the inputs)",
                "LSD",
                log_y=all(0 < each < float("inf") for each in distances),
            ),
            *([Text(self.note)] if self.note else []),
        )


def cautions(layers: Sequence[LayerFit], rows: float, *, automatic: bool, patient: bool) -> str:
    """What to be careful about in a network of these layers, a sentence each; or nothing.

    Args:
        layers: Those that were kept.
        rows: How many were fitted, copies counted.
        automatic: Whether the ridge was chosen by cross-validation.
        patient: Whether layers behind the lowest LSD were to be dropped.

    >>> layer = LayerFit(80, "random", 1.0, 5, 0.0, 10.0, 0.25, 0.01)
    >>> cautions([layer], 100, automatic=True, patient=False)
    'Hidden layer 1 has 80 units for 100 rows: about as many units as rows, or more, fit them by
    heart, and the automatic ridge does not see it; try fewer units or a ridge of your own.'
    """
    warnings = []
    wide = [i for i, layer in enumerate(layers) if 2 * layer.width > rows]
    if automatic and wide:
        warnings.append(
            f"Hidden layer {wide[0] + 1} has {layers[wide[0]].width} units for {rows:.0f} rows: "
            "about as many units as rows, or more, fit them by heart, and the automatic ridge does "
            "not see it; try fewer units or a ridge of your own."
        )
    distances = [layer.distance for layer in layers]
    best = min(range(len(layers)), key=distances.__getitem__, default=0)
    if not patient and layers and distances[-1] > MORE * distances[best] + ROUNDING:
        warnings.append(
            f"The LSD is lowest after hidden layer {best + 1} ({distances[best]:.3g}) and rises to "
            f"{distances[best + 1]:.3g} in the next; patience=1 stops where it rises."
        )
    return " ".join(warnings)
