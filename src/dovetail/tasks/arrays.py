"""Arrays of any origin to the few kinds of tensor a task holds, or a sentence that says why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.core.errors import TaskError, nearest
from dovetail.pack.tensors import dtype_name

_BLOCK = 4 << 20
_CHANNELS = (1, 3)
"""Lengths of an axis of colours: grey and RGB."""


def as_float(inputs: Tensor) -> Tensor:
    r"""Inputs in natural units: uint8 becomes :math:`x / 255` in float32, floats stay as they are.

    >>> as_float(torch.tensor([0, 51, 255], dtype=torch.uint8))
    tensor([0.0000, 0.2000, 1.0000])
    """
    if inputs.dtype == torch.uint8:
        return inputs.to(torch.float32).div_(255)
    return inputs


def blocks(values: Tensor, count: int | None = None) -> Iterator[slice]:
    """Slices that cover ``count`` rows (by default all) of such a tensor, 4 M numbers each.

    >>> list(blocks(torch.zeros(3, 1 << 21)))
    [slice(0, 2, None), slice(2, 3, None)]
    """
    count = len(values) if count is None else count
    step = max(1, _BLOCK // max(1, values[:1].numel()))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def take_rows(values: Tensor, index: Tensor) -> Tensor:
    """The rows of a sorted index without repeats: a view where they are consecutive.

    >>> take_rows(torch.tensor([5, 6, 7, 8]), torch.tensor([1, 3]))
    tensor([6, 8])
    """
    if len(index) and int(index[-1] - index[0]) + 1 == len(index):
        return values[int(index[0]) : int(index[-1]) + 1]
    return values.index_select(0, index)


def clean_inputs(inputs: Any) -> Tensor:
    """Inputs as a uint8 or float32 tensor ``[n, d]`` or ``[n, c, h, w]``, checked.

    An array ``[n, h, w]`` gets a channel axis.  Channels may come last when that is unambiguous:
    the last axis is 1 or 3 long and the second is not.

    >>> clean_inputs(np.zeros((5, 8, 9, 3), dtype=np.uint8)).shape
    torch.Size([5, 3, 8, 9])
    """
    values = _tensor(inputs)
    if values.ndim < 2:
        raise TaskError(
            f"inputs have shape {list(values.shape)}; give [n, d], [n, h, w] or [n, c, h, w]"
        )
    if len(values) == 0:
        raise TaskError("there are no samples")
    if values.numel() == 0:
        raise TaskError(f"inputs have shape {list(values.shape)}: the samples are empty")
    if values.ndim == 3:
        values = values[:, None]
    elif values.ndim == 4 and values.shape[3] in _CHANNELS and values.shape[1] not in _CHANNELS:
        values = values.permute(0, 3, 1, 2)
    if values.dtype != torch.uint8:
        if values.ndim > 2 and not (values.is_floating_point() or values.dtype == torch.bool):
            raise TaskError(
                f"images of dtype {dtype_name(values.dtype)} have no known scale; "
                "give uint8 (0 to 255) or floats (0 to 1)"
            )
        values = values.to(torch.float32)
        _refuse_not_finite(values, "input")
    return values.contiguous()


def class_targets(targets: Any, classes: Sequence[Any] | None) -> tuple[Tensor, tuple[str, ...]]:
    """Integers or names as int64 indices into the names of the classes.

    Without ``classes`` the names are the different targets, sorted.  With ``classes``, targets are
    looked up by name; integers that are no names are taken as indices.

    >>> class_targets(["cat", "ant", "cat"], None)
    (tensor([1, 0, 1]), ('ant', 'cat'))
    >>> class_targets([0, 1, 1], ["cat", "ant"])
    (tensor([0, 1, 1]), ('cat', 'ant'))
    """
    values = _label_array(targets)
    labels = values.tolist()
    unique = sorted(set(labels))
    names = _class_names(unique if classes is None else classes)
    place = {name: i for i, name in enumerate(names)}
    unknown = [name for name in map(str, unique) if name not in place]
    if unknown:
        if values.dtype.kind not in "iu":
            raise TaskError(f"unknown class {unknown[0]!r}{nearest(unknown[0], names)}")
        outside = [v for v in unique if not 0 <= v < len(names)]
        if outside:
            raise TaskError(
                f"target {outside[0]} is neither the name of a class nor an index below "
                f"{len(names)}{nearest(str(outside[0]), names)}"
            )
        return torch.from_numpy(values.astype(np.int64)), names
    code = {label: place[str(label)] for label in unique}
    return torch.tensor([code[label] for label in labels], dtype=torch.int64), names


def multilabel_targets(
    targets: Any, classes: Sequence[Any] | None
) -> tuple[Tensor, tuple[str, ...]]:
    """Zeros and ones ``[n, k]`` as float32, and the names of the k labels.

    >>> multilabel_targets([[True, False]], ["sky", "sea"])
    (tensor([[1., 0.]]), ('sky', 'sea'))
    """
    values = _tensor(targets, "targets")
    if values.ndim != 2 or not bool(((values == 0) | (values == 1)).all()):
        raise TaskError("multilabel targets must be zeros and ones of shape [n, labels]")
    names = _class_names(range(values.shape[1]) if classes is None else classes)
    if len(names) != values.shape[1]:
        raise TaskError(f"{values.shape[1]} columns of targets but {len(names)} names of classes")
    return values.to(torch.float32).contiguous(), names


def number_targets(targets: Any) -> Tensor:
    """Numbers ``[n]`` or ``[n, k]`` as finite float32.

    >>> number_targets([1, 2.5])
    tensor([1.0000, 2.5000])
    """
    values = _tensor(targets, "targets").to(torch.float32)
    if values.ndim not in (1, 2):
        raise TaskError(f"regression targets have shape {list(values.shape)}; give [n] or [n, k]")
    _refuse_not_finite(values, "target")
    return values.contiguous()


def refuse_lone_classes(counts: Mapping[str, int], where: str = "", what: str = "sample") -> None:
    """Refuse fewer than two classes, and a class that cannot both train and test.

    >>> refuse_lone_classes({"ant": 2, "bee": 1})
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: class 'bee' has one sample; each needs two, to train and to test
    """
    if len(counts) < 2:
        raise TaskError(f"{where}there is one class, {min(counts)!r}; a task of classes needs two")
    for name, count in counts.items():
        if count < 2:
            raise TaskError(
                f"{where}class {name!r} has {'one' if count else 'no'} {what}; each needs two, to "
                "train and to test"
            )


def _tensor(values: Any, what: str = "inputs") -> Tensor:
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
    else:
        try:
            array = np.asarray(values)
        except ValueError:
            raise TaskError(f"{what} are ragged: every sample must have the same shape") from None
        if array.dtype.kind not in "biufc":
            raise TaskError(f"{what} of dtype {array.dtype} are not numbers")
        array = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False))
        # torch shares numpy's memory and would let others write to what numpy says is read-only
        try:
            tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
        except TypeError:  # numbers of more bits than torch has
            raise TaskError(f"{what} of dtype {array.dtype} are not known; give float32") from None
    if tensor.is_complex():
        raise TaskError(f"{what} of dtype {dtype_name(tensor.dtype)} are not real numbers")
    return tensor


def _label_array(targets: Any) -> np.ndarray[Any, Any]:
    if isinstance(targets, Tensor):
        values = targets.detach().cpu().numpy()
    elif isinstance(targets, list | tuple) and all(isinstance(value, str) for value in targets):
        values = np.array(targets, dtype=object)  # else each would take the room of the longest
    else:
        values = np.asarray(targets)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise TaskError(
            f"targets of classes have shape {list(values.shape)}; give one label a sample "
            "(of one-hot rows, the argmax)"
        )
    if values.dtype.kind == "O" and all(isinstance(value, str) for value in values):
        return values
    if values.dtype.kind == "f":
        if not ((values == np.floor(values)) & (np.abs(values) < 2.0**63)).all():
            raise TaskError(
                "targets are not whole numbers, or too large to be told apart; for numbers say "
                'kind="regression"'
            )
        values = values.astype(np.int64)
    if values.dtype.kind not in "biuU":
        raise TaskError(
            f"targets of dtype {values.dtype} name no classes; give integers or strings"
        )
    return values


def _class_names(classes: Iterable[Any]) -> tuple[str, ...]:
    names = tuple(str(name) for name in classes)
    for name, times in Counter(names).most_common(1):
        if times > 1:
            raise TaskError(f"class {name!r} is named twice")
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:  # half a surrogate pair, which no file or screen can take
            raise TaskError(f"class {name!r} cannot be written as UTF-8; rename it") from None
    return names


def _refuse_not_finite(values: Tensor, what: str) -> None:
    for part in blocks(values):
        finite = torch.isfinite(values[part])
        if not bool(finite.all()):
            first = int((~finite.flatten(1).all(1) if finite.ndim > 1 else ~finite).nonzero()[0])
            raise TaskError(f"{what} of sample {part.start + first} is NaN or infinite")
