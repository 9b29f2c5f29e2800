"""Classes by platonic projections."""

from __future__ import annotations

from typing import Any

from sklearn.base import ClassifierMixin

from dovetail.closed_form.estimators import PlatonicEstimator
from dovetail.closed_form.layers import Layer
from dovetail.closed_form.network import two_columns
from dovetail.closed_form.targets import ClassTargets
from dovetail.measure.estimator_inputs import class_names

__all__ = ["PlatonicClassifier"]


class PlatonicClassifier(ClassifierMixin, PlatonicEstimator):  # type: ignore[misc]
    r"""Classify by a multi-layer perceptron that is solved for, not trained.

    Every hidden layer is least squares on a mixture of what it has and of what it should tell
    (:mod:`dovetail.closed_form.platonic`); the last is least squares on the labels, one column of
    -1 and +1 for two classes, else one-hot.  There is no step size, no epoch, no gradient.

    Inputs are rows, or images of any shape (flattened; bytes are divided by 255).  They are centred
    each, and scaled by one number for all; inputs of unlike units want ``scale_inputs="each"``.

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
            that is fewer numbers (:mod:`~dovetail.closed_form.low_rank`): wider for as many
            weights.  ``None`` leaves them whole.
        scale_inputs: ``"together"`` divides all inputs by one number, ``"each"`` each by its own
            deviation (:mod:`~dovetail.closed_form.scaling`); either is folded into the weights.

    After :meth:`fit`: ``classes_``; ``coefs_`` and ``intercepts_`` of all layers, on raw inputs;
    ``factors_``, for each hidden layer the two whose product its weights are, or ``None``;
    ``n_layers_``, inputs and outputs included; ``fits_``, a
    :class:`~dovetail.closed_form.platonic.LayerFit` for each hidden layer; ``distances_`` and
    ``conditions_`` from them; ``record_`` with a view.

    There are no probabilities: the scores are least squares, and rows that were fitted cannot say
    how far to trust them.  ``sklearn.calibration.CalibratedClassifierCV`` makes some of rows held
    out.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).uniform(-1, 1, (200, 2))
    >>> inside = np.where((x**2).sum(1) < 0.5, "in", "out")
    >>> net = PlatonicClassifier((32, 32), activation="tanh").fit(x, inside)
    >>> net.score(x, inside) > 0.95, net.predict([[0.0, 0.1], [0.9, 0.9]]).tolist()
    (True, ['in', 'out'])
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> PlatonicClassifier:
        """Fit to inputs ``[n, ...]`` and classes ``[n]``.

        A row of weight 2 counts as two rows; weights that are not whole are compared with their
        mean.
        """
        targets = ClassTargets()
        self._fit(X, y, sample_weight, targets)
        self.classes_ = targets.classes
        return self

    def fit_batches(
        self, batches: Any, *, classes: Any = None, distributed: bool = False
    ) -> PlatonicClassifier:
        """Fit to rows that come in batches and are never held together.

        Two passes, one more for each layer (two where several tries are made and rows are many),
        two more for sorted PCA, and one more for each layer with ``ema``.  In
        memory are a block of rows and the sums; the result is that of :meth:`fit` with the same
        ``solver`` (``"cholesky"`` or ``"eigen"``), whatever the sizes of the batches.

        Args:
            batches: ``(X, y)`` or ``(X, y, sample_weight)`` each, from a list, a ``DataLoader``
                (that does not shuffle), or a function that makes a new iterator at each call.
            classes: All classes; unless given, the first pass finds them.
            distributed: Whether the processes of a ``torch.distributed`` group have a share of
                the rows each.  All of them get the same network.
        """
        targets = ClassTargets(classes)
        self._fit_batches(batches, targets, distributed)
        self.classes_ = targets.classes
        return self

    def decision_function(self, X: Any) -> Any:
        """Scores ``[m, C]``; for two classes one score ``[m]``, positive for the second."""
        found = self.outputs(X)
        return (found[:, 1] - found[:, 0] if len(self.classes_) == 2 else found).numpy()

    def predict(self, X: Any) -> Any:
        """The class of the greatest score."""
        scores = self.decision_function(X)
        chosen = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)
        return self.classes_[chosen]

    def _output_layers(self) -> list[Layer]:
        *hidden, head = self._layers()
        return [*hidden, two_columns(head) if len(self.classes_) == 2 else head]

    def _class_names(self) -> tuple[str, ...]:
        return class_names(self.classes_)
