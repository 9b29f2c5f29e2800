"""Tasks by name, by path, or from a map-style data set such as torchvision's."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dovetail.core.errors import TaskError, first_line
from dovetail.core.progress import progress
from dovetail.tasks.array_files import find_idx, read_idx_folder, read_npz
from dovetail.tasks.catalogue import CATALOGUE, TENSORS, DataSet, read_tensors
from dovetail.tasks.data_files import open_data, refuse_large
from dovetail.tasks.image_files import is_grey, upright
from dovetail.tasks.image_folder import has_images, read_image_folder
from dovetail.tasks.known import (
    BUNDLED,
    base_of,
    changes_of,
    derived_by_name,
    names,
    not_here,
    places,
    unknown_task,
)
from dovetail.tasks.tables import read_table
from dovetail.tasks.task import Kind, Task


def load_task(
    source: Any, *, data: str | os.PathLike[str] | None = None, seed: int = 0, **options: Any
) -> Task:
    """A task by name, from a file or folder, or from a map-style data set.

    ==========================================  ===================================================
    source                                      options, and who explains them
    ==========================================  ===================================================
    ``digits``, ``mnist``, ``fashion-mnist``,
    ``cifar10``
    ``file.npz``                                ``kind, name``: ``array_files.read_npz``
    ``file.csv``, ``.tsv``, ``.parquet``        ``target, kind, drop, missing, name``:
                                                ``tables.read_table``
    a folder of MNIST's four idx files          ``classes, name``:
                                                ``array_files.read_idx_folder``
    a folder of images                          ``size, unreadable, pairs, name``:
                                                ``image_folder.read_image_folder``
    a data set with ``len`` and ``[i]``         ``test, classes, kind, name``:
                                                :func:`read_dataset`
    ==========================================  ===================================================

    A name or a path may go on with what is derived from it, in the words of
    :mod:`dovetail.tasks.derive`: ``mnist~inverted``, ``digits[0,1,2]~rot90``,
    ``mnist~blur1~noise0.2``, ``cifar10~grey``, ``digits~16x16``, ``mnist~5shot``.  A file that is
    called so comes first.

    Args:
        source: One of the above.
        data: The folder that holds ``mnist/`` and the like; by default ``$DOVETAIL_DATA``, or else
            ``./data`` and ``~/.local/share/dovetail``.
        seed: For the split.
        options: What the source takes; another is refused.

    >>> load_task("digits")
    Task('digits', 10 classes, 1797 images 1×8×8, train 1258 / validation 180 / test 359)
    >>> load_task("digits[0,1]~inverted")
    Task('digits[0,1]~inverted', 2 classes, 360 images 1×8×8, train 252 / validation 36 / test 72)
    """
    if is_dataset(source):
        _refuse_options("a data set", options, ("test", "classes", "kind", "name"))
        return read_dataset(source, seed=seed, **options)
    try:
        name = os.fspath(source)
    except TypeError:
        raise TaskError(
            f"a task comes from a name, a path or a map-style data set, not from a "
            f"{type(source).__name__}"
        ) from None
    if name in names():
        _refuse_options(repr(name), options, ())
        if name == BUNDLED:
            return _digits(seed)
        return _named(CATALOGUE[name], data, seed)
    path = _path(name)
    for form in _FORMS:
        if form.fits(path):
            _refuse_options(form.what, options, form.options)
            return form.read(path, seed=seed, **options)
    if path.exists():
        if not path.is_dir():
            open_data(path).close()  # a pipe is refused with what to do instead
        forms = "; ".join(form.what for form in _FORMS)
        raise TaskError(f"{path}: cannot read a task from it; these are known: {forms}")
    base = base_of(name)
    if base is not None and (base in names() or _path(base).exists()):
        changes_of(name)  # refuse a word nobody knows before reading what may be large
        return derived_by_name(load_task(base, data=data, seed=seed, **options), name, seed)
    raise unknown_task(name, base)


def _path(name: str) -> Path:
    try:
        path = Path(name).expanduser()
    except RuntimeError:  # ~somebody, and there is no such user
        path = Path(name)
    try:
        path.exists()
    except OSError as error:  # a name too long, or a folder that is closed
        raise TaskError(f"{path}: {error.strerror}") from None
    return path


def _digits(seed: int) -> Task:
    from sklearn.datasets import load_digits  # slow to import, and only digits needs it

    bundled = load_digits()
    images = (bundled.images / 16).astype(np.float32)
    return Task(images, bundled.target, name="digits", seed=seed)


def _named(known: DataSet, data: str | os.PathLike[str] | None, seed: int) -> Task:
    """A data set of the catalogue, in a sub-folder of its name or in further places."""
    for folder in map(Path, places(known.name, data)):
        if known.layout == "idx" and find_idx(folder):
            return read_idx_folder(folder, name=known.name, classes=known.classes, seed=seed)
        if known.layout == "tensors" and (folder / TENSORS).is_file():
            images, labels = read_tensors(folder / TENSORS)
            split = {"train": range(known.train), "test": range(known.train, len(images))}
            return Task(
                images, labels, name=known.name, classes=known.classes, split=split, seed=seed
            )
    raise not_here(known.name, places(known.name, data), data)


def _refuse_options(what: str, options: dict[str, Any], known: tuple[str, ...]) -> None:
    for option in options:
        if option not in known:
            takes = ", ".join(known) if known else "no options"
            raise TaskError(f"{what} takes {takes}; not {option!r}")


@dataclass(frozen=True)
class _Form:
    """A way to keep a task on disk: how it is told, how it is read, and what can be asked for."""

    what: str
    fits: Callable[[Path], bool]
    read: Callable[..., Task]
    options: tuple[str, ...]


_FORMS = (
    _Form("an .npz file", lambda path: path.suffix == ".npz", read_npz, ("kind", "name")),
    _Form(
        "a .csv, .tsv or .parquet file",
        lambda path: path.suffix.lower() in (".csv", ".tsv", ".parquet", ".pq"),
        read_table,
        ("target", "kind", "drop", "missing", "name"),
    ),
    _Form(
        "a folder of idx files",
        lambda path: bool(find_idx(path)),
        read_idx_folder,
        ("classes", "name"),
    ),
    _Form(
        "a folder of images in class folders",
        has_images,
        read_image_folder,
        ("size", "unreadable", "pairs", "name"),
    ),
)
"""The first form that fits reads the path."""


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
    labels = own if classes is None and isinstance(own, list | tuple) else classes
    known = kind or _kind_of(targets)
    answers: Any = targets
    if known == "classes" and labels is not None:
        answers = _by_name(targets, list(labels))
    elif not isinstance(targets[0], str):
        answers = np.stack([np.asarray(target) for target in targets])
    more: dict[str, Any] = {}
    if test is not None:
        border = counts["train"]
        more["split"] = {"train": range(border), "test": range(border, len(inputs))}
    if known in ("classes", "multilabel") and labels is not None:
        more["classes"] = list(labels)
    named = type(dataset).__name__ if name is None else name
    return Task(inputs, answers, name=named, kind=known, seed=seed, **more)


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
    way_out = "make them smaller in the data set's transform"
    refuse_large(f"{total} items like {where}", needed, way_out)
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
    answers = []
    for i, target in enumerate(targets):
        if isinstance(target, str):
            answers.append(target)
            continue
        index = int(target)
        if not 0 <= index < len(names):
            raise TaskError(f"target {index} of item {i} is no index of the {len(names)} classes")
        answers.append(str(names[index]))
    return answers


def _shape(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
