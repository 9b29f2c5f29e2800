"""What people hand to an estimator, made into tensors or refused with a reason.

Arrays are read by scikit-learn's own rules, so that an estimator refuses what any other would;
the refusal is a :class:`TaskError` that says what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, column_or_1d, validate_data
from torch import Tensor

from dovetail.core.errors import SettingsError, TaskError, first_line, shown
from dovetail.tasks.arrays import as_float

Array = np.ndarray[Any, Any]

LARGEST = 1e100
"""Of numbers to predict: squares of larger ones, times anything, are beyond float64."""


class InputTypeError(TaskError, TypeError):
    """Data of a type that no estimator reads, such as a sparse matrix.

    >>> issubclass(InputTypeError, TaskError) and issubclass(InputTypeError, TypeError)
    True
    """


def as_inputs(
    X: Any,
    estimator: BaseEstimator | None = None,
    *,
    reset: bool = True,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Inputs ``[n, ...]`` as a task holds them: uint8 stays, all else becomes float32.

    Args:
        X: Array, tensor, nested list or data frame, finite and dense; rows or images.
        estimator: Whose inputs they are.  It learns ``n_features_in_`` (and the names of a data
            frame's columns) with ``reset``, and refuses inputs unlike those without; images of
            another shape than its ``input_shape_``, if it has one, too.
        reset: Whether these are the inputs to fit.
        dtype: What all but uint8 becomes; float64 for those who compute on the rows themselves.

    >>> as_inputs([[1, 2], [3, 4]]).dtype, as_inputs(np.zeros((2, 1, 8, 8), np.uint8)).dtype
    (torch.float32, torch.uint8)
    >>> as_inputs([[1.0], [float("nan")]])
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: Input X contains NaN. Mend or drop those rows first
    """
    values = _read(X, estimator, reset)
    if values.dtype == np.uint8:
        return torch.from_numpy(np.array(values, order="C"))
    wide = torch.from_numpy(np.array(values, dtype=np.float64, order="C"))
    if float(wide.abs().max()) > torch.finfo(dtype).max:
        raise TaskError("the inputs hold numbers too large for float32; scale them down")
    return wide.to(dtype)


def as_rows(X: Any, estimator: BaseEstimator | None = None, *, reset: bool = True) -> Tensor:
    """Rows ``[n, d]`` of float64, read like :func:`as_inputs`; further axes are flattened.

    Pixels of uint8 are divided by 255, as for any part.

    >>> as_rows([[1, 2], [3, 4]]).dtype, as_rows(np.zeros((2, 1, 8, 8))).shape
    (torch.float64, torch.Size([2, 64]))
    """
    return as_float(as_inputs(X, estimator, reset=reset, dtype=torch.float64)).double().flatten(1)


def as_labels(y: Any) -> Array:
    """Labels of classes ``[n]``, as they are spelt.

    >>> as_labels(["owl", "cat"]).tolist()
    ['owl', 'cat']
    >>> as_labels(["owl", float("nan")])
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: the labels hold NaN in 1 of 2 rows, first in row 1; drop those
    rows, or fill them with a class
    """
    if isinstance(y, list | tuple):  # as an array, NaN beside text would be spelt "nan"
        _refuse_missing(y)
    with _refusals():
        labels: Array = column_or_1d(_on_cpu(_not_none(y)), warn=True)
        if labels.dtype.kind == "O" or (labels.dtype.kind == "f" and np.isnan(labels).any()):
            _refuse_missing(labels)
        finite = labels.dtype.kind == "f"  # names and integers always are
        check_array(labels, ensure_2d=False, dtype=None, ensure_all_finite=finite, input_name="y")
        check_classification_targets(labels)
    return labels


def as_classes(y: Any) -> tuple[Tensor, Array]:
    """Codes ``[n]`` from 0 to C - 1, and the C classes, sorted, as the user spells them.

    >>> codes, classes = as_classes(["owl", "cat", "owl"])
    >>> codes, classes.tolist()
    (tensor([1, 0, 1]), ['cat', 'owl'])
    >>> as_classes([7, 7])
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: all 2 labels are of one class, 7; a classifier needs two
    """
    labels = as_labels(y)
    classes, codes = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise TaskError(
            f"all {len(labels)} labels are of one class, {classes[0]}; a classifier needs two"
        )
    return torch.from_numpy(codes.reshape(-1).astype(np.int64)), classes


def codes_among(y: Any, classes: Array) -> Tensor:
    """Codes ``[n]`` of labels that must be among these classes, those an estimator was fitted to.

    >>> codes_among(["owl", "cat"], np.array(["cat", "owl"]))
    tensor([1, 0])
    """
    places = {name: i for i, name in enumerate(classes.tolist())}
    labels = as_labels(y).tolist()
    if unknown := [label for label in labels if label not in places]:
        raise TaskError(
            f"{shown(unknown[0])} is not among the classes fitted to; fit again with all of them"
        )
    return torch.tensor([places[label] for label in labels], dtype=torch.int64)


def as_numbers(y: Any) -> tuple[Tensor, bool]:
    """Numbers to predict ``[n, k]``, float64, and whether they came as ``[n]``.

    >>> as_numbers([1, 2.5])
    (tensor([[1.0000],
            [2.5000]], dtype=torch.float64), True)
    """
    targets = _on_cpu(_not_none(y))
    with _refusals():
        _refuse_text(targets)
        values = np.array(check_array(targets, ensure_2d=False, input_name="y"))
    if values.ndim > 2 or values.size == 0:
        raise TaskError(f"targets have shape {list(values.shape)}; give [n] or [n, k] numbers")
    columns = torch.from_numpy(values.astype(np.float64)).reshape(len(values), -1)
    if float(columns.abs().max()) > LARGEST:
        raise TaskError(
            f"targets reach {float(columns.abs().max()):.3g}, and their squares are no numbers any "
            "more; scale them down"
        )
    return columns, values.ndim == 1


def as_weights(sample_weight: Any, count: int) -> Tensor | None:
    """Weights of ``count`` rows, float64 and not negative; a number is the weight of each.

    >>> as_weights([1, 0.5], 2)
    tensor([1.0000, 0.5000], dtype=torch.float64)
    >>> as_weights([1, -1], 2)
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: sample weights must not be negative, found -1
    """
    if sample_weight is None:
        return None
    if isinstance(sample_weight, Real):
        sample_weight = np.full(count, float(sample_weight))
    options: dict[str, Any] = {"ensure_2d": False, "dtype": np.float64}
    with _refusals():
        values = np.array(check_array(_on_cpu(sample_weight), input_name="weights", **options))
    if values.shape != (count,):
        raise TaskError(f"sample weights have shape {list(values.shape)}; give one for each row")
    if values.min() < 0:
        raise TaskError(f"sample weights must not be negative, found {values.min():g}")
    return torch.from_numpy(values)


def as_counts(sample_weight: Any, count: int) -> tuple[Tensor | slice, Tensor | None]:
    """Which rows count at all, and how many times each of those does; None where each does once.

    >>> as_counts([2, 0, 1], 3)
    (tensor([0, 2]), tensor([2., 1.], dtype=torch.float64))
    """
    weights = as_weights(sample_weight, count)
    if weights is None:
        return slice(None), None
    rows = weights.nonzero().flatten()
    if not len(rows):
        raise TaskError("all sample weights are zero; some row must count")
    counts = weights[rows]
    return rows, None if bool((counts == 1).all()) else counts


def class_names(classes: Any) -> tuple[str, ...]:
    """Classes as a part names them: whole numbers without a point.

    >>> class_names(np.array([0.0, 1.0])), class_names(np.array(["ant", "bee"]))
    (('0', '1'), ('ant', 'bee'))
    """
    listed = classes.tolist()
    return tuple(
        str(int(each)) if isinstance(each, float) and each.is_integer() else str(each)
        for each in listed
    )


def names_of(classes: Array, names: Any = None) -> tuple[str, ...]:
    """What a part is to call these classes: as they are spelt, or by their places in ``names``.

    >>> names_of(np.array([0, 2]), ["ant", "bee", "cat"])
    ('ant', 'cat')
    >>> names_of(np.array([0, 3]), ["ant", "bee", "cat"])
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: class_names has 3 names, and 3 is no place among them; labels
    are places in that list, from 0
    """
    if names is None:
        return class_names(classes)
    listed = [str(name) for name in names]
    for each in classes.tolist():
        whole = isinstance(each, int | float) and float(each).is_integer()
        if not (whole and 0 <= each < len(listed)):
            raise TaskError(
                f"class_names has {len(listed)} names, and {shown(each)} is no place among them; "
                "labels are places in that list, from 0"
            )
    return tuple(listed[int(each)] for each in classes.tolist())


def refuse_other_count(inputs: Tensor, targets: Tensor) -> None:
    """Refuse inputs and targets that are not as many.

    >>> refuse_other_count(torch.zeros(3, 2), torch.zeros(4))
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: 3 inputs but 4 targets; give one target for each input
    """
    if len(inputs) != len(targets):
        raise TaskError(
            f"{len(inputs)} inputs but {len(targets)} targets; give one target for each input"
        )


def seed_of(random_state: Any) -> int:
    """A seed from what scikit-learn calls a random state; ``None`` is 0, so that runs repeat.

    >>> seed_of(None), seed_of(7)
    (0, 7)
    """
    if random_state is None:
        return 0
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31 - 1))
    if isinstance(random_state, bool) or not isinstance(random_state, int | np.integer):
        raise SettingsError(
            f"random_state must be an integer, None or a NumPy generator; got {random_state!r}"
        )
    return int(random_state)


def _read(X: Any, estimator: BaseEstimator | None, reset: bool) -> Array:
    options: dict[str, Any] = {"dtype": None, "allow_nd": True, "order": "C"}
    inputs = _on_cpu(X)
    if not reset:
        _refuse_other_images(inputs, getattr(estimator, "input_shape_", None))
    with _refusals():
        if estimator is None:
            values: Array = check_array(inputs, input_name="X", **options)
        else:
            values = validate_data(estimator, inputs, reset=reset, **options)
        if values.dtype.kind == "O":
            values = check_array(values, allow_nd=True, dtype=np.float64, input_name="X")
    if values.dtype.kind not in "biuf":
        raise TaskError(f"inputs of dtype {values.dtype} are not numbers")
    return values


def _refuse_other_images(inputs: Any, fitted: tuple[int, ...] | None) -> None:
    """Refuse what has another shape, unless both are rows: scikit-learn counts their columns.

    Of images it would count the channels, and not look at anything else.
    """
    if fitted is None:
        return
    try:
        shape = np.shape(inputs)[1:]
    except (TypeError, ValueError):  # rows of unequal length and worse: scikit-learn says so
        return
    if shape and shape != fitted and max(len(shape), len(fitted)) > 1:
        raise TaskError(
            f"inputs have shape {list(shape)}, those that were fitted {list(fitted)}; bring them "
            "to that shape"
        )


def _on_cpu(values: Any) -> Any:
    if not isinstance(values, Tensor):
        return values
    values = values.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def _refuse_text(targets: Any) -> None:
    cells = np.asarray(targets, dtype=object).ravel().tolist()
    if text := [each for each in cells if isinstance(each, str | bytes)]:
        raise TaskError(
            f"targets are text, such as {shown(text[0])}, and a regressor predicts numbers; use a "
            "classifier"
        )
    if any(each is None for each in cells):
        raise TaskError("None is among the targets. Mend or drop those rows first")


def _refuse_missing(labels: Any) -> None:
    missing = [i for i, each in enumerate(labels) if _is_nan(each)]
    if missing:
        raise TaskError(
            f"the labels hold NaN in {len(missing)} of {len(labels)} rows, first in row "
            f"{missing[0]}; drop those rows, or fill them with a class"
        )
    if any(each is None for each in labels):
        raise TaskError("None is among the labels. Mend or drop those rows first")


def _is_nan(label: Any) -> bool:
    try:
        return bool(label != label)
    except TypeError:  # of pandas' NA nobody can say whether it equals itself
        return True
    except (RuntimeError, ValueError):  # a row of several
        return False


def _not_none(y: Any) -> Any:
    if y is None:
        raise TaskError("this estimator requires y to be passed, but the target y is None")
    return y


@contextmanager
def _refusals() -> Iterator[None]:
    """Say what scikit-learn refuses as an error of ours, in one line."""
    try:
        yield
    except TaskError:
        raise
    except TypeError as error:
        raise InputTypeError(first_line(error)) from None
    except ValueError as error:
        said = first_line(error)
        if "Reshape your data" in str(error):  # the whole array is printed in between
            said = f"{said.rstrip(':')}. {str(error).splitlines()[-1]}"
        missing = "NaN" in said or "infinity" in said
        raise TaskError(f"{said} Mend or drop those rows first" if missing else said) from None
