"""What the two platonic estimators share: arguments, fitting, and the way to torch and to parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from dovetail.closed_form.batches import (
    Read,
    Stream,
    read_batch,
    reblocked,
    refuse_other_kind,
    surveyed,
    weighed,
)
from dovetail.closed_form.fit_record import PlatonicFit, cautions
from dovetail.closed_form.layers import Activation, Layer, activation_of
from dovetail.closed_form.low_rank import factors_of
from dovetail.closed_form.network import network_part
from dovetail.closed_form.platonic import LayerFit, platonic
from dovetail.closed_form.rows import BLOCK, Block, HeldRows, Rows, StreamedRows
from dovetail.closed_form.scaling import Scaling, scaling_of
from dovetail.closed_form.settings import Settings, settings_of
from dovetail.closed_form.spread import Spread
from dovetail.closed_form.targets import Targets
from dovetail.core.errors import shown
from dovetail.core.progress import progress
from dovetail.dist.group import check_group, told_by_each
from dovetail.measure.estimator_inputs import as_inputs
from dovetail.parts.origin import Origin
from dovetail.parts.part import Part
from dovetail.tasks.arrays import as_float

__all__ = ["PlatonicEstimator"]

Array = np.ndarray[Any, Any]


class PlatonicEstimator(BaseEstimator):  # type: ignore[misc]
    """A multi-layer perceptron fitted by a chain of least-squares problems.

    The arguments are described at :class:`~dovetail.closed_form.classifier.PlatonicClassifier`.
    """

    def __init__(
        self,
        hidden_layer_sizes: Any = "auto",
        activation: Any = "relu",
        projection: Any = "auto",
        n_tries: Any = 5,
        target_scale: Any = 1.0,
        label_weight: Any = "auto",
        ridge: Any = "auto",
        solver: Any = "auto",
        random_state: Any = None,
        *,
        ema: Any = None,
        patience: Any = None,
        rank: Any = None,
        scale_inputs: Any = "together",
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.projection = projection
        self.n_tries = n_tries
        self.target_scale = target_scale
        self.label_weight = label_weight
        self.ridge = ridge
        self.solver = solver
        self.random_state = random_state
        self.ema = ema
        self.patience = patience
        self.rank = rank
        self.scale_inputs = scale_inputs

    def outputs(self, X: Any) -> Tensor:
        """What the network gives for inputs ``[m, ...]``: ``[m, k]``, float64.

        A column for each class, or for each number to predict.
        """
        check_is_fitted(self)
        raw = as_inputs(X, self, reset=False, dtype=torch.float64)
        refuse_other_kind(self.pixels_, raw.dtype == torch.uint8)
        layers, found = self._output_layers(), []
        for start in range(0, len(raw), BLOCK):
            z = as_float(raw[start : start + BLOCK]).double().flatten(1)
            for layer in layers:
                z = layer(z)
            found.append(z)
        return torch.cat(found)

    def to_torch(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        """The network as a module of ``[n, ...]`` inputs; pixels in [0, 1] where bytes were fitted.

        In float64 it gives what the estimator gives.  float32 halves it, and costs the digits that
        a large condition (``conditions_``) says: measure before you rely on it.
        """
        return self.to_part(dtype).module

    def to_part(self, dtype: torch.dtype = torch.float64) -> Part:
        """The network as a part: to evaluate, cut, save, shelve."""
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        origin = Origin(
            how="closed-form",
            settings=self.record_.settings,
            measured={"least squares distance": self.record_.distance},
        )
        return network_part(
            self._output_layers(),
            self.activation_,
            self.input_shape_,
            dtype,
            origin,
            classes=self._class_names(),
            inputs=None if names is None else tuple(str(name) for name in names),
        )

    def _fit(self, X: Any, y: Any, sample_weight: Any, targets: Targets) -> Self:
        settings = settings_of(self, streamed=False)
        reader = type(self)()
        read = read_batch((X, y, sample_weight), targets, reader, reset=True)
        spread = surveyed(lambda: (read,), targets)
        scaling = scaling_of(spread, read.x.shape[1], targets.width, settings.scale_inputs)
        block = weighed(read, targets.columns(read.y))
        weights = None if block.weights is None else block.weights / spread.row_weight
        rows = HeldRows(scaling.inputs(block.z), scaling.targets(block.y), weights)
        reader.input_shape_, reader.pixels_ = read.shape, read.pixels
        return self._solved(settings, rows, spread, scaling, reader, lambda: 1)

    def _fit_batches(self, batches: Any, targets: Targets, distributed: bool) -> Self:
        if distributed:
            check_group()
        settings = settings_of(self, streamed=True)
        reader = type(self)()
        stream = Stream(batches, targets, reader)
        spread = surveyed(stream, targets, shared=distributed)
        inputs = int(np.prod(stream.shape))
        scaling = scaling_of(spread, inputs, targets.width, settings.scale_inputs)
        blocks = _scaled_blocks(stream, targets, scaling, spread.row_weight)
        reader.pixels_ = stream.pixels
        rows = StreamedRows(blocks, shared=distributed)
        return self._solved(settings, rows, spread, scaling, reader, lambda: stream.passes)

    def _solved(
        self,
        settings: Settings,
        rows: Rows,
        spread: Spread,
        scaling: Scaling,
        reader: BaseEstimator,
        passes: Callable[[], int],
    ) -> Self:
        """Fit, and only when all went well forget what was fitted before."""
        seed = int(told_by_each(settings.seed)[0]) if rows.shared else settings.seed
        copies = spread.weight / spread.row_weight  # a weight of 2 is two rows here as well
        widths = settings.widths_for(copies)
        projections = settings.projections_for(len(scaling.centre), widths, spread.rows, copies)
        show = None if isinstance(rows, StreamedRows) else False  # what is held takes moments
        with progress("fitting", len(widths), show=show) as step:

            def told(_: int, fit: LayerFit) -> None:
                step(f"LSD {fit.distance:.3g}")

            found = platonic(
                rows,
                widths,
                activation=settings.activation,
                projections=projections,
                tries=settings.tries,
                target_scale=settings.target_scale,
                label_weight=settings.label_weight,
                solver=settings.solver,
                ridge=settings.ridge,
                ema=settings.ema,
                patience=settings.patience,
                rank=settings.rank,
                seed=seed,
                on_layer=told,
            )
        layers = scaling.folded(found)
        record = PlatonicFit(
            settings=self._told(settings, widths, projections, seed),
            n=spread.rows,
            passes=passes(),
            start=found.start,
            layers=found.fits,
            kept=len(found.layers),
            note=cautions(
                found.fits[: len(found.layers)],
                copies,
                automatic=settings.ridge == "auto",
                patient=settings.patience is not None,
            ),
        )
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        for name in [name for name in vars(reader) if name.endswith("_")]:
            setattr(self, name, getattr(reader, name))
        # As a module holds them, so that it multiplies in the same order: where the condition is
        # bad, another order of the same sums is visible in the outputs.
        self.coefs_ = [layer.weights.T.contiguous().numpy().T for layer in layers]
        self.intercepts_ = [layer.bias.numpy() for layer in layers]
        self.factors_ = [_factors(layer, settings.rank) for layer in layers[:-1]]
        self.activation_ = self.activation
        self.n_layers_ = len(layers) + 1
        self.n_outputs_ = len(self.intercepts_[-1])
        self.fits_ = list(found.fits)
        self.distances_ = np.array([fit.distance for fit in found.fits])
        self.conditions_ = np.array([fit.condition for fit in found.fits])
        self.record_ = record
        return self

    def _layers(self) -> list[Layer]:
        """The layers as they are multiplied: one of low rank is two, the first of them linear."""
        activation = activation_of(self.activation_)
        *hidden, head = zip(self.coefs_, self.intercepts_, [*self.factors_, None], strict=True)
        found = []
        for weights, bias, factors in hidden:
            if factors is not None:
                down, weights = factors
                found.append(_layer(down, np.zeros(down.shape[1]), nn.Identity()))
            found.append(_layer(weights, bias, activation))
        return [*found, _layer(head[0], head[1], nn.Identity())]

    def _output_layers(self) -> list[Layer]:
        """The layers, the last with a column for each thing to tell."""
        return self._layers()

    def _class_names(self) -> tuple[str, ...] | None:
        return None

    def _told(
        self,
        settings: Settings,
        widths: tuple[int, ...],
        projections: tuple[str, ...],
        seed: int,
    ) -> dict[str, Any]:
        named = isinstance(self.activation, str)
        return {
            "hidden_layer_sizes": list(widths),
            "activation": self.activation if named else shown(self.activation),
            "projection": list(projections),
            "n_tries": settings.tries,
            "target_scale": settings.target_scale,
            "label_weight": settings.label_weight,
            "ridge": settings.ridge,
            "solver": settings.solver,
            "ema": settings.ema,
            "patience": settings.patience,
            "rank": settings.rank,
            "scale_inputs": settings.scale_inputs,
            "seed": seed,
        }


def _layer(weights: Array, bias: Array, activation: Activation) -> Layer:
    return Layer(torch.from_numpy(weights), torch.from_numpy(bias), activation)


def _factors(layer: Layer, rank: int | None) -> tuple[Array, Array] | None:
    """Weights ``[d, r]`` and ``[r, w]`` that together are the layer's, where they are fewer."""
    pieces = (layer,) if rank is None else factors_of(layer, rank)
    return None if len(pieces) == 1 else (pieces[0].weights.numpy(), pieces[1].weights.numpy())


def _scaled_blocks(
    stream: Stream, targets: Targets, scaling: Scaling, row_weight: float
) -> Callable[[], Iterator[Block]]:
    def prepared(read: Read) -> Block:
        z, y, weights, _ = weighed(read, targets.columns(read.y))
        weights = None if weights is None else weights / row_weight
        return Block(scaling.inputs(z), scaling.targets(y), weights)

    return lambda: reblocked(prepared(read) for read in stream())
