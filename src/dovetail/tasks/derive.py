"""Tasks made of tasks.

Every function leaves its task as it is and gives a new one whose name says what was done.  What
only chooses examples or classes shares the inputs; what changes pixels makes new ones of the same
type, for the rows in use only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import torch
from torch import Tensor

from dovetail.core.errors import TaskError, nearest
from dovetail.core.seeds import generator
from dovetail.tasks.arrays import as_float, blocks, take_rows
from dovetail.tasks.augment import blur, resize, turn
from dovetail.tasks.splits import SPLITS
from dovetail.tasks.task import Task


def only_classes(task: Task, classes: Sequence[str]) -> Task:
    """The examples of some classes, by name; the order given is the order of the new indices.

    >>> pets = Task(torch.rand(30, 5), ["cat", "dog", "emu"] * 10, name="pets")
    >>> only_classes(pets, ["emu", "cat"])
    Task('pets[emu,cat]', 2 classes, 20 inputs 5, train 14 / validation 2 / test 4)
    """
    _need_classes(task)
    names = tuple(str(name) for name in classes)
    place = {name: i for i, name in enumerate(task.classes)}
    chosen: dict[str, int] = {}
    for name in names:
        if name not in place:
            raise TaskError(f"{task.name!r} has no class {name!r}{nearest(name, task.classes)}")
        if name in chosen:
            raise TaskError(f"class {name!r} is named twice")
        chosen[name] = place[name]
    if len(names) < 2:
        remaining = f"only {names[0]!r} was" if names else "none was"
        raise TaskError(f"a task of classes needs two, and of {task.name!r} {remaining} kept")
    # one place more than classes: rows left out earlier are -1, which reads and keeps the last
    table = torch.full((len(task.classes) + 1,), -1)
    table[list(chosen.values())] = torch.arange(len(names))
    targets = table[task.targets]
    rows = {split: task.indices(split) for split in SPLITS}
    rows = {split: index[targets[index] >= 0] for split, index in rows.items()}
    name = f"{task.name}[{','.join(names)}]"
    return task.derived(name, targets=targets, classes=names, indices=rows)


def binary_pairs(task: Task, limit: int | None = None, *, seed: int = 0) -> list[Task]:
    r"""A task for every pair of classes: :math:`k(k-1)/2` of them, or ``limit`` drawn at random.

    >>> pets = Task(torch.rand(30, 5), ["cat", "dog", "emu"] * 10, name="pets")
    >>> [pair.name for pair in binary_pairs(pets)]
    ['pets[cat,dog]', 'pets[cat,emu]', 'pets[dog,emu]']
    """
    _need_classes(task)
    pairs = list(combinations(task.classes, 2))
    if limit is not None:
        if limit < 1:
            raise TaskError(f"the limit of pairs must be at least 1, got {limit}")
        drawn = torch.randperm(len(pairs), generator=generator(seed, "binary pairs"))
        pairs = [pairs[i] for i in sorted(drawn[:limit].tolist())]
    return [only_classes(task, pair) for pair in pairs]


def few(task: Task, per_class: int, seed: int = 0) -> Task:
    """Train on a few examples of each class; validation and test stay whole.

    >>> few(Task(torch.rand(30, 5), ["cat", "dog", "emu"] * 10, name="pets"), 2)
    Task('pets~2shot', 3 classes, 15 inputs 5, train 6 / validation 3 / test 6)
    """
    _need_classes(task)
    if per_class < 1:
        raise TaskError(f"per_class must be at least 1, got {per_class}")
    train = task.indices("train")
    mixed = train[torch.randperm(len(train), generator=generator(seed, "few"))]
    counts = torch.bincount(task.targets[train], minlength=len(task.classes))
    lacking = (counts < per_class).nonzero()[:, 0]
    if len(lacking):
        name, has = task.classes[int(lacking[0])], int(counts[lacking[0]])
        raise TaskError(f"{task.name!r} has {has} of class {name!r} in train, not {per_class}")
    by_class = mixed[torch.argsort(task.targets[mixed], stable=True)]
    turn_in_class = torch.arange(len(mixed)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    rows = {split: task.indices(split) for split in SPLITS}
    rows["train"] = by_class[turn_in_class < per_class].sort().values
    return task.derived(f"{task.name}~{per_class}shot", indices=rows)


def rotated(task: Task, degrees: float) -> Task:
    """Every image turned counter-clockwise: exactly by multiples of 90°, otherwise bilinearly.

    >>> rotated(Task(torch.rand(8, 1, 6, 4), [0, 1] * 4, name="bars"), 90)
    Task('bars~rot90', 2 classes, 8 images 1×4×6, train 4 / validation 2 / test 2)
    """
    _need_images(task)

    def turned(images: Tensor) -> Tensor:
        return turn(images, degrees)

    # quarter turns only move pixels, so bytes need not become floats and back
    change = turned if degrees % 90 == 0 else _in_floats(turned)
    return _changed(task, f"{task.name}~rot{degrees:g}", change)


def rotations(task: Task) -> Task:
    """Tell by how much an image was turned: each image four times, classes 0°, 90°, 180°, 270°.

    Needs no labels.  The four copies of an image stay in its split.

    >>> rotations(Task(torch.rand(8, 1, 6, 6), [0, 1] * 4, name="bars"))
    Task('bars~rotations', 4 classes, 32 images 1×6×6, train 16 / validation 8 / test 8)
    """
    _need_images(task)
    channels, height, width = task.input_shape
    if height != width:
        raise TaskError(f"{task.name!r} has images {height}×{width}; turning needs square ones")
    flat = _compact(task)
    count = len(flat.inputs)
    inputs = torch.empty(4, count, channels, height, width, dtype=task.inputs.dtype)
    for quarter in range(4):
        inputs[quarter] = torch.rot90(flat.inputs, quarter, (2, 3))
    copies = torch.arange(4)[:, None] * count
    indices = {split: (copies + flat.indices(split)).flatten() for split in SPLITS}
    return task.derived(
        f"{task.name}~rotations",
        kind="classes",
        inputs=inputs.flatten(0, 1),
        targets=torch.arange(4).repeat_interleave(count),
        classes=("0°", "90°", "180°", "270°"),
        indices=indices,
    )


def noisy(task: Task, std: float, seed: int = 0) -> Task:
    r"""Inputs plus Gaussian noise, :math:`x + \sigma\epsilon`, in natural units.

    uint8 images are clipped to what they can hold; floats are not.

    >>> noisy(Task(torch.rand(8, 5), [0, 1] * 4, name="rows"), 0.1).name
    'rows~noise0.1'
    """
    if not 0 < std < float("inf"):
        raise TaskError(f"std must be positive, got {std}")
    draw = generator(seed, "noise")

    def add(values: Tensor) -> Tensor:
        return values + std * torch.randn(values.shape, generator=draw)

    return _changed(task, f"{task.name}~noise{std:g}", _in_floats(add))


def inverted(task: Task) -> Task:
    r"""The negative of every image, :math:`1 - x`.

    >>> task = inverted(Task(torch.ones(8, 1, 2, 2), [0, 1] * 4, name="white"))
    >>> task.name, float(task.inputs.max())
    ('white~inverted', 0.0)
    """
    _need_images(task)
    most = 255 if task.inputs.dtype == torch.uint8 else 1
    return _changed(task, f"{task.name}~inverted", lambda x: most - x)


def blurred(task: Task, sigma: float) -> Task:
    r"""Every image through a Gaussian of ``sigma`` pixels; the border is repeated outwards.

    >>> blurred(Task(torch.rand(8, 1, 6, 6), [0, 1] * 4, name="bars"), 1.0).name
    'bars~blur1'
    """
    _need_images(task)
    if not 0 < sigma < float("inf"):
        raise TaskError(f"sigma must be a positive number of pixels, got {sigma}")
    return _changed(task, f"{task.name}~blur{sigma:g}", _in_floats(lambda x: blur(x, sigma)))


def grey(task: Task) -> Task:
    """Every colour image without its colours: the mean of the channels, in each of them.

    The number of channels stays, so that a network for the one task takes the other.

    >>> colours = Task(torch.rand(8, 3, 6, 6), [0, 1] * 4, name="flags")
    >>> bool((grey(colours).inputs.std(1) < 1e-6).all())
    True
    """
    _need_images(task)
    change = _in_floats(lambda x: x.mean(1, keepdim=True).expand_as(x).contiguous())
    return _changed(task, f"{task.name}~grey", change)


def resized(task: Task, size: int | tuple[int, int]) -> Task:
    """Every image at another size, a side or (height, width); bilinear, averaging when smaller.

    >>> resized(Task(torch.rand(8, 1, 6, 4), [0, 1] * 4, name="bars"), (3, 2)).input_shape
    (1, 3, 2)
    """
    _need_images(task)
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise TaskError(f"size must be at least 1, got {size}")
    name = f"{task.name}~{height}x{width}"
    return _changed(task, name, _in_floats(lambda x: resize(x, height, width)))


def common_classes(a: Task, b: Task) -> tuple[Task, Task]:
    """Both tasks, restricted to the classes that both have by name, in the order of the first.

    >>> x = torch.rand(30, 5)
    >>> a = Task(x, ["cat", "dog", "emu"] * 10, name="a")
    >>> b = Task(x, ["emu", "fox", "cat"] * 10, name="b")
    >>> [task.name for task in common_classes(a, b)]
    ['a[cat,emu]', 'b[cat,emu]']
    """
    _need_classes(a)
    _need_classes(b)
    others = set(b.classes)
    common = [name for name in a.classes if name in others]
    if len(common) < 2:
        have = f"only class {common[0]!r}" if common else "no class"
        raise TaskError(f"{a.name!r} and {b.name!r} have {have} in common; two are needed")
    return only_classes(a, common), only_classes(b, common)


def _need_classes(task: Task) -> None:
    if task.kind != "classes":
        raise TaskError(f"{task.name!r} is of kind {task.kind!r}; this needs classes")


def _need_images(task: Task) -> None:
    if len(task.input_shape) != 3:
        raise TaskError(f"{task.name!r} has inputs {list(task.input_shape)}; this needs images")


def _compact(task: Task) -> Task:
    """The task on the rows it uses, and no others."""
    used = torch.cat([task.indices(split) for split in SPLITS]).sort().values
    if len(used) == len(task.inputs):
        return task
    return task.derived(
        task.name,
        inputs=take_rows(task.inputs, used),
        targets=take_rows(task.targets, used),
        indices={split: torch.searchsorted(used, task.indices(split)) for split in SPLITS},
        pairs=task.given_pairs.within(used) if task.given_pairs is not None else None,
    )


def _changed(task: Task, name: str, change: Callable[[Tensor], Tensor]) -> Task:
    flat = _compact(task)
    pieces = blocks(flat.inputs)
    first = change(flat.inputs[next(pieces)])
    inputs = first.new_empty(len(flat.inputs), *first.shape[1:])
    inputs[: len(first)] = first
    for part in pieces:
        inputs[part] = change(flat.inputs[part])
    return flat.derived(name, inputs=inputs)


def _in_floats(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A change of natural units, for stored inputs: bytes become floats and bytes again."""

    def changed(stored: Tensor) -> Tensor:
        values = change(as_float(stored))
        if stored.dtype == torch.uint8:
            return values.mul(255).round_().clamp_(0, 255).to(torch.uint8)
        return values

    return changed
