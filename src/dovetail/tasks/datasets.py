"""A task from a map-style data set, such as torchvision's: every item is read once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dovetail.core.errors import TaskError, first_line
from dovetail.core.progress import progress
from dovetail.tasks.data_files import MOST_BYTES
from dovetail.tasks.image_files import is_grey, upright
from dovetail.tasks.task import Kind, Task

__all__ = ["is_dataset", "read_dataset"]


def is_dataset(source: Any) -> bool:
    """Whether something has items by number and says how many.

    >>> is_dataset([(0, 1)]), is_dataset("digits"), is_dataset(iter([]))
    (True, False, False)
    """
    indexed = hasattr(source, "__getitem__") and hasattr(source, "__len__")
    return indexed and not isinstance(source, str | bytes | dict)


def read_dataset(
    dataset: Any,
    *,
    test: Any = None,
    classes: Sequence[Any] | None = None,
    kind: Kind | None = None,
    name: str | None = None,
    seed: int = 0,
) -> Task:
    """Read the items ``(input, target)`` of a data set into a task.

    An input is a PIL image, an array or a tensor, all of one shape.  Targets: whole numbers or
    texts mean classes, floats regression, a row of zeros and ones multilabel, a row of floats
    regression to several numbers.  Random transforms are drawn once and stay as drawn.

    Args:
        dataset: Anything with ``len(dataset)`` and ``dataset[i]``.
        test: Another one, whose items are the test split; without it a fifth tests.
        classes: Names of the classes by index; by default ``dataset.classes``, if it is there.
        kind: What the targets mean, if not as above.
        name: What reports call the task; by default the name of the data set's type.
        seed: For the split.

    >>> from torch.utils.data import TensorDataset
    >>> read_dataset(TensorDataset(torch.rand(20, 3, 8, 8), torch.arange(20) % 2), name="toy")
    Task('toy', 2 classes, 20 images 3×8×8, train 14 / validation 2 / test 4)
    """
    parts = {"train": dataset} if test is None else {"train": dataset, "test": test}
    for part, items in parts.items():
        if not is_dataset(items):
            raise TaskError(
                f"the {part} data set is a {type(items).__name__} without len() and [i]; only "
                "map-style data sets can be read (of an iterable, give its list)"
            )
    counts = {part: len(items) for part, items in parts.items()}
    if not counts["train"]:
        raise TaskError("the data set has no items")
    inputs, targets = _read(parts, sum(counts.values()))
    own = getattr(dataset, "classes", None)
    names = own if classes is None and isinstance(own, list | tuple) else classes
    known = kind or _kind_of(targets)
    told: Any = targets
    if known == "classes" and names is not None:
        told = _by_name(targets, list(names))
    elif not isinstance(targets[0], str):
        told = np.stack([np.asarray(target) for target in targets])
    more: dict[str, Any] = {}
    if test is not None:
        border = counts["train"]
        more["split"] = {"train": range(border), "test": range(border, len(inputs))}
    if known in ("classes", "multilabel") and names is not None:
        more["classes"] = list(names)
    named = type(dataset).__name__ if name is None else name
    return Task(inputs, told, name=named, kind=known, seed=seed, **more)


def _read(parts: dict[str, Any], total: int) -> tuple[Tensor, list[Any]]:
    inputs: Tensor | None = None
    targets: list[Any] = []
    with progress("reading items", total) as step:
        for part, items in parts.items():
            for i in range(len(items)):
                where = f"item {i} of the {part} data set"
                value, target = _item(items, i, where)
                if inputs is None:
                    inputs = _room(value, total, where)
                if (value.shape, value.dtype) != (inputs.shape[1:], inputs.dtype):
                    raise TaskError(
                        f"{where} is {_shape(value)}, the first one {_shape(inputs[0])}; bring "
                        "them to one shape in the data set's transform"
                    )
                inputs[len(targets)] = value
                if targets and np.shape(target) != np.shape(targets[0]):
                    raise TaskError(f"the target of {where} has another shape than the first one")
                targets.append(target)
                step("")
    assert inputs is not None  # there are items
    return inputs, targets


def _item(items: Any, i: int, where: str) -> tuple[Tensor, Any]:
    try:
        item = items[i]
    except Exception as error:  # whatever the code of others raises
        raise TaskError(f"{where} cannot be read: {first_line(error)}") from error
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise TaskError(f"{where} is a {type(item).__name__}, not a pair of input and target")
    value, target = item
    if isinstance(value, Image.Image):
        value = np.array(upright(value, grey=is_grey(value)))
    try:
        tensor = value.detach().cpu() if isinstance(value, Tensor) else torch.as_tensor(value)
        if isinstance(target, Tensor):
            target = target.detach().cpu().numpy()
        elif not isinstance(target, str):
            target = np.asarray(target)
            if target.dtype.kind not in "biuf":
                raise TypeError(f"a target of type {type(item[1]).__name__}")
    except (TypeError, ValueError, RuntimeError) as error:
        raise TaskError(f"{where} is not made of numbers: {first_line(error)}") from None
    if tensor.dtype != torch.uint8:
        tensor = tensor.to(torch.float32)
    return tensor, target


def _room(value: Tensor, total: int, where: str) -> Tensor:
    needed = total * value.numel() * value.element_size()
    if needed > MOST_BYTES:
        raise TaskError(
            f"{total} items like {where} take {needed / 1e9:.1f} GB of memory, more than "
            f"{MOST_BYTES / 1e9:.1f}; make them smaller in the data set's transform"
        )
    return torch.empty(total, *value.shape, dtype=value.dtype)


def _kind_of(targets: list[Any]) -> Kind:
    first = targets[0]
    if isinstance(first, str):
        return "classes"
    if first.size == 1:
        return "regression" if first.dtype.kind == "f" else "classes"
    flags = all(bool(np.isin(target, (0, 1)).all()) for target in targets)
    return "multilabel" if flags else "regression"


def _by_name(targets: list[Any], names: list[Any]) -> list[str]:
    """Targets as names: a class may itself be called 7, so an index must not be mistaken for it."""
    told = []
    for i, target in enumerate(targets):
        if isinstance(target, str):
            told.append(target)
            continue
        index = int(target)
        if not 0 <= index < len(names):
            raise TaskError(f"target {index} of item {i} is no index of the {len(names)} classes")
        told.append(str(names[index]))
    return told


def _shape(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
