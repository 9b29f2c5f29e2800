"""Classes and numbers by platonic projections: the two scikit-learn estimators."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from dovetail.closed_form.batches import (
    ClassTargets,
    NumberTargets,
    Stream,
    Targets,
    read_batch,
    reblocked,
    refuse_other_kind,
    surveyed,
    weighed,
)
from dovetail.closed_form.fit_record import PlatonicFit, cautions
from dovetail.closed_form.layers import (
    Activation,
    Layer,
    activation_of,
    factors_of,
    network_part,
    two_columns,
)
from dovetail.closed_form.patches import maps_of, patch_layer
from dovetail.closed_form.platonic import platonic
from dovetail.closed_form.rows import BLOCK, Block, HeldRows, Rows, StreamedRows
from dovetail.closed_form.scaling import Scaling, Spread, scaling_of
from dovetail.closed_form.settings import Settings, settings_of
from dovetail.closed_form.sureness import temperature_while_fitting
from dovetail.core.errors import shown
from dovetail.core.progress import progress
from dovetail.dist.group import check_group, told_by_each
from dovetail.measure.estimator_inputs import as_inputs, class_names
from dovetail.measure.estimators import Classifier, Regressor, temperature_of
from dovetail.parts.facts import Origin
from dovetail.parts.part import Part
from dovetail.tasks.arrays import as_float

Array = np.ndarray[Any, Any]


class PlatonicEstimator(BaseEstimator):  # type: ignore[misc]
    """A multi-layer perceptron fitted by a chain of least-squares problems.

    The arguments are described at :class:`PlatonicClassifier`.
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
        scale_inputs: Any = "auto",
        filters: Any = None,
        patch_size: Any = None,
        pool: Any = None,
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
        self.filters = filters
        self.patch_size = patch_size
        self.pool = pool

    def outputs(self, X: Any) -> Tensor:
        """What the network gives for inputs ``[m, ...]``: ``[m, k]``, float64.

        A column for each class, or for each number to predict.
        """
        check_is_fitted(self)
        raw = as_inputs(X, self, reset=False, dtype=torch.float64)
        refuse_other_kind(self.pixels_, raw.dtype == torch.uint8)
        layers, pieces = self._layers(), []
        for start in range(0, len(raw), BLOCK):
            some, front = raw[start : start + BLOCK], self.front_
            z = as_float(some).double().flatten(1) if front is None else maps_of(front, some)
            for layer in layers:
                z = layer(z)
            pieces.append(z)
        return torch.cat(pieces)

    def to_torch(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        """The network as a module of ``[n, ...]`` inputs; pixels in [0, 1] where bytes were fitted.

        In float64 it gives what the estimator gives.  float32 halves it, and costs the digits that
        a large condition (``conditions_``) says: measure before you rely on it.
        """
        return self.to_part(dtype).module

    def to_part(self, dtype: torch.dtype = torch.float64) -> Part:
        """The network as a part: to evaluate, cut, save, shelve; a temperature is in its head."""
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        origin = Origin(
            how="closed-form",
            settings=self.record_.settings,
            measured={"least squares distance": self.record_.distance},
        )
        *hidden, head = self._layers()
        if temperature := vars(self).get("temperature_"):
            head = Layer(head.weights / temperature, head.bias / temperature, head.activation)
            origin = replace(origin, settings={**origin.settings, "temperature": temperature})
        return network_part(
            [*hidden, head],
            self.activation_,
            self.input_shape_,
            dtype,
            origin,
            classes=class_names(self.classes_) if hasattr(self, "classes_") else None,
            inputs=None if names is None else tuple(str(name) for name in names),
            front=self.front_,
        )

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to inputs ``[n, ...]`` and classes ``[n]``, or numbers ``[n]`` or ``[n, k]``.

        A row of weight 2 counts as two rows; weights that are not whole are compared with their
        mean.
        """
        settings = settings_of(self, streamed=False)
        targets, reader = self._targets(), type(self)()
        read = read_batch((X, y, sample_weight), targets, reader, reset=True)
        if settings.filters is not None:
            images = read.x.reshape(len(read.x), *reader.input_shape_)
            reader.front_ = patch_layer(
                images,
                settings.filters,
                size=settings.patch_size,
                pool=settings.pool,
                seed=settings.seed,
            )
            read = read._replace(x=maps_of(reader.front_, images))
        spread = surveyed(lambda: (read,), targets)
        scaling = scaling_of(spread, read.x.shape[1], targets.width, settings.scale_inputs)
        rows = HeldRows(*scaling.scaled(weighed(read, targets.columns(read.y))))
        return self._solve(rows, targets, settings, spread, scaling, reader)

    def _fit_batches(self, batches: Any, targets: Targets, distributed: bool) -> Self:
        if distributed:
            check_group()
        settings = settings_of(self, streamed=True)
        reader = type(self)()
        stream = Stream(batches, targets, reader)
        spread = surveyed(stream, targets, shared=distributed)
        inputs = math.prod(reader.input_shape_)
        scaling = scaling_of(spread, inputs, targets.width, settings.scale_inputs)

        def blocks() -> Iterator[Block]:
            reads = (weighed(read, targets.columns(read.y)) for read in stream())
            return reblocked(map(scaling.scaled, reads))

        rows = StreamedRows(blocks, shared=distributed)
        return self._solve(rows, targets, settings, spread, scaling, reader, stream)

    def _solve(
        self,
        rows: Rows,
        targets: Targets,
        settings: Settings,
        spread: Spread,
        scaling: Scaling,
        reader: BaseEstimator,
        stream: Stream | None = None,
    ) -> Self:
        """Fit, and only when all went well forget what was fitted before.

        Args:
            rows: Scaled inputs and targets.
            targets: What the columns of the targets stand for.
            settings: The arguments, checked.
            spread: Of the raw rows.
            scaling: What made the rows of them.
            reader: Knows what inputs look like.
            stream: Where the rows come from, if they are not held.
        """
        seed = int(told_by_each(settings.seed)[0]) if rows.shared else settings.seed
        copies = spread.weight / spread.row_weight  # a weight of 2 is two rows here as well
        widths = settings.widths_for(copies)
        projections = settings.projections_for(len(scaling.centre), widths, spread.rows, copies)
        names = ("target_scale", "label_weight", "ridge", "solver", "ema", "patience", "rank")
        options = {name: getattr(settings, name) for name in names}
        arguments: dict[str, Any] = {
            "widths": widths,
            "activation": settings.activation,
            "projections": projections,
            "tries": settings.tries,
            "seed": seed,
            **options,
        }
        # What is held takes moments: no progress is shown for it.
        with progress("fitting", len(widths), show=False if stream is None else None) as step:
            network = platonic(
                rows, **arguments, on_layer=lambda _, fit: step(f"LSD {fit.distance:.3g}")
            )
        read = {name: value for name, value in vars(reader).items() if name.endswith("_")}
        learnt: dict[str, Any] = {"front_": None, **read, **targets.learnt}
        if is_classifier(self):
            learnt["temperature_"] = temperature_while_fitting(
                network, rows, lambda some: platonic(some, **arguments)
            )
        layers, named = scaling.folded(network), isinstance(self.activation, str)
        record = PlatonicFit(
            settings={
                "hidden_layer_sizes": list(widths),
                "activation": self.activation if named else shown(self.activation),
                "projection": list(projections),
                "n_tries": settings.tries,
                **options,
                "scale_inputs": settings.scale_inputs,
                "filters": settings.filters,
                "seed": seed,
            },
            n=spread.rows,
            passes=1 if stream is None else stream.passes,
            start=network.start,
            layers=network.fits,
            kept=len(network.layers),
            note=cautions(
                network.fits[: len(network.layers)],
                copies,
                automatic=settings.ridge == "auto",
                patient=settings.patience is not None,
            ),
        )
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        for name, value in learnt.items():
            setattr(self, name, value)
        # As a module holds them, so that it multiplies in the same order: where the condition is
        # bad, another order of the same sums is visible in the outputs.
        self.coefs_ = [layer.weights.T.contiguous().numpy().T for layer in layers]
        self.intercepts_ = [layer.bias.numpy() for layer in layers]
        self.factors_ = [_factors(layer, settings.rank) for layer in layers[:-1]]
        self.activation_ = self.activation
        self.n_layers_ = len(layers) + 1
        self.n_outputs_ = len(self.intercepts_[-1])
        self.fits_ = list(network.fits)
        self.distances_ = np.array([fit.distance for fit in network.fits])
        self.conditions_ = np.array([fit.condition for fit in network.fits])
        self.record_ = record
        return self

    def _layers(self) -> list[Layer]:
        """The layers as they are multiplied, the last with a column for each thing to tell.

        One of low rank is two, the first of them linear.
        """
        activation, layers = activation_of(self.activation_), []
        weights_and_biases = list(zip(self.coefs_, self.intercepts_, strict=True))
        for (weights, bias), factors in zip(weights_and_biases[:-1], self.factors_, strict=True):
            if factors is not None:
                down, weights = factors
                layers.append(_layer(down, np.zeros(down.shape[1]), nn.Identity()))
            layers.append(_layer(weights, bias, activation))
        head = _layer(*weights_and_biases[-1], nn.Identity())
        return [*layers, two_columns(head) if len(getattr(self, "classes_", ())) == 2 else head]

    def _targets(self) -> Targets:
        """What reads the targets of :meth:`fit`."""
        raise NotImplementedError


class PlatonicClassifier(Classifier, PlatonicEstimator):
    r"""Classify by a multi-layer perceptron that is solved for, not trained.

    Every hidden layer is least squares on a mixture of what it has and of what it should tell
    (:mod:`dovetail.closed_form.platonic`); the last is least squares on the labels, one column of
    -1 and +1 for two classes, else one-hot.  There is no step size, no epoch, no gradient.

    Inputs are rows, or images of any shape (flattened; bytes are divided by 255).  They are centred
    each, brought to ranges that are not too far apart, and scaled by one number for all.

    Args:
        hidden_layer_sizes: A width for each hidden layer; ``()`` for none, which is ridge;
            ``"auto"`` for one layer of 100 units, or of half as many as there are rows where
            those are 50 to 200 (with about as many units as rows a network predicts worst).
        activation: A name of :data:`~dovetail.closed_form.layers.ACTIVATIONS`, or any monotonic
            function of tensors.
        projection: Where a layer's target comes from
            (:mod:`dovetail.closed_form.projections`): one name for all layers, or a tuple, whose
            last goes on; ``"deterministic"`` for sorted PCA, then platonic PCA; ``"auto"`` for
            sorted PCA in the first layer where there are 16 inputs or more, 32 rows or more and no
            fewer rows than units, and random projections else.
        n_tries: How many random projections a layer tries; the least LSD wins.
        target_scale: :math:`\alpha`, the size of what enters the activations.
        label_weight: :math:`\beta`, how much of a layer's target are the labels; ``"auto"`` gives
            them the variance of the features.
        ridge: Penalty on the squared weights, summed over rows; ``"auto"`` chooses one a layer by
            generalised cross-validation, which needs a spectrum: with the solvers ``"cholesky"``
            and ``"lstsq"`` it is none.
        solver: ``"cholesky"`` or ``"eigen"`` on sums over the rows, ``"pinv"`` or ``"lstsq"`` on
            the rows themselves; ``"auto"`` for the rows while that is quick.
        random_state: Of random projections; ``None`` is 0, so that runs repeat.
        ema: How slowly the importance of a row follows its errors, between 0 and 1; it weighs the
            row's label in the targets of the layers after the first.  ``None`` for all rows alike.
        patience: Stop after so many layers without a lower LSD, and keep those up to the lowest.
        rank: Cut the weights of hidden layers to this rank, and keep them as two factors where
            that is fewer numbers (:mod:`~dovetail.closed_form.layers`): wider for as many
            weights.  ``None`` leaves them whole.
        scale_inputs: ``"together"`` divides all inputs by one number, ``"each"`` each by its own
            deviation, ``"auto"`` all by one number once none reaches more than twice as far as
            most, or less than half (:mod:`~dovetail.closed_form.scaling`).  It is folded into the
            weights.
        filters: How many filters, patches of the images, to put in front
            (:mod:`~dovetail.closed_form.patches`); ``None`` for none.
        patch_size: Their side; ``None`` for a quarter of the image's, from 3 to 7.
        pool: Side of the squares that their answers are averaged over; ``None`` for what leaves
            maps of about 4 by 4.

    After :meth:`fit`: ``classes_``; ``coefs_`` and ``intercepts_`` of all layers, on raw inputs;
    ``factors_``, for each hidden layer the two whose product its weights are, or ``None``;
    ``front_``, the filters or ``None``; ``n_layers_``, inputs and outputs included; ``fits_``, a
    :class:`~dovetail.closed_form.platonic.LayerFit` for each hidden layer; ``distances_`` and
    ``conditions_`` from them; ``record_`` with a view.

    The scores are least squares, no logits; ``temperature_`` is what they are divided by before
    the softmax, found by leaving rows out (:mod:`~dovetail.closed_form.sureness`).
    :meth:`calibrate` finds it anew by rows held out.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).uniform(-1, 1, (200, 2))
    >>> inside = np.where((x**2).sum(1) < 0.5, "in", "out")
    >>> net = PlatonicClassifier((32, 32), activation="tanh").fit(x, inside)
    >>> net.score(x, inside) > 0.95, net.predict([[0.0, 0.1], [0.9, 0.9]]).tolist()
    (True, ['in', 'out'])
    """

    def fit_batches(
        self, batches: Any, *, classes: Any = None, distributed: bool = False
    ) -> PlatonicClassifier:
        """Fit to rows that come in batches and are never held together.

        Two passes, one more for each layer (two where several tries are made and rows are many),
        two more for sorted PCA, one more for each layer with ``ema``, and one for the temperature.
        In memory are a block of rows and the sums; the result is that of :meth:`fit` with the same
        ``solver`` (``"cholesky"`` or ``"eigen"``), whatever the sizes of the batches.

        Args:
            batches: ``(X, y)`` or ``(X, y, sample_weight)`` each, from a list, a ``DataLoader``
                (that does not shuffle), or a function that makes a new iterator at each call.
            classes: All classes; unless given, the first pass finds them.
            distributed: Whether the processes of a ``torch.distributed`` group have a share of
                the rows each.  All of them get the same network.
        """
        return self._fit_batches(batches, ClassTargets(classes), distributed)

    def logits(self, X: Any) -> Tensor:
        """The scores ``[m, c]``, float64, a column a class: of least squares, of any size."""
        return self.outputs(X)

    def _temperature_for(self, logits: Tensor, codes: Tensor) -> float:
        return temperature_of(logits, codes)

    def _targets(self) -> Targets:
        return ClassTargets()


class PlatonicRegressor(Regressor, PlatonicEstimator):
    """Predict numbers by a multi-layer perceptron that is solved for, not trained.

    Arguments and attributes are those of
    :class:`PlatonicClassifier`.  Several columns of numbers are
    fitted by one network.  They are standardised for the fit, so ``distances_`` are in units of
    their variances, added up over the columns.  Error bars there are after :meth:`calibrate`.

    >>> import numpy as np
    >>> x = np.linspace(-3, 3, 200)[:, None]
    >>> net = PlatonicRegressor((16, 16), activation="celu").fit(x, np.sin(x[:, 0]))
    >>> bool(abs(net.predict([[1.0]])[0] - np.sin(1.0)) < 0.05)
    True
    """

    def fit_batches(self, batches: Any, *, distributed: bool = False) -> PlatonicRegressor:
        """Fit to rows that come in batches, as the classifier does."""
        return self._fit_batches(batches, NumberTargets(), distributed)

    def _means(self, X: Any) -> Tensor:
        return self.outputs(X)

    def _targets(self) -> Targets:
        return NumberTargets()


def _layer(weights: Array, bias: Array, activation: Activation) -> Layer:
    return Layer(torch.from_numpy(weights), torch.from_numpy(bias), activation)


def _factors(layer: Layer, rank: int | None) -> tuple[Array, Array] | None:
    """Weights ``[d, r]`` and ``[r, w]`` that together are the layer's, where they are fewer."""
    pieces = (layer,) if rank is None else factors_of(layer, rank)
    return None if len(pieces) == 1 else (pieces[0].weights.numpy(), pieces[1].weights.numpy())
