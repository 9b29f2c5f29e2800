"""A task: named data, what its targets mean, and which examples train, validate and test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from dovetail.core.errors import TaskError, nearest
from dovetail.core.seeds import generator
from dovetail.tasks.arrays import (
    as_float,
    class_targets,
    clean_inputs,
    multilabel_targets,
    number_targets,
    refuse_lone_classes,
    take_rows,
)
from dovetail.tasks.fingerprint import digest_of
from dovetail.tasks.pairs import Pairs, draw_pairs, refuse_pairs
from dovetail.tasks.splits import SPLITS, Split, given_split, stratified_split

__all__ = ["Kind", "Pairs", "SPLITS", "Split", "Task", "as_float"]

Kind = Literal["classes", "multilabel", "regression", "pairs"]


class Task:
    """Data with a name, a meaning and a split.  Nothing changes a task; verbs make new ones.

    Args:
        inputs: Tensor or array ``[n, c, h, w]`` (images; also ``[n, h, w]``, and channels last when
            that is unambiguous) or ``[n, d]``.  uint8 stays uint8 and means value/255; floats
            become float32 and are taken as they are, images in [0, 1].  Memory is shared with what
            is given where the types allow, so do not write to it afterwards.
        targets: One a sample: integers or names (classes), zeros and ones ``[n, k]`` (multilabel),
            numbers (regression), nothing (pairs).
        name: What reports call it.
        kind: ``"classes"``, ``"multilabel"``, ``"regression"`` or ``"pairs"``.
        classes: Names in the order of the indices; by default the sorted targets.
        split: Fractions for train, validation and test (of each class alike), or a dict of index
            arrays; without ``"validation"`` a tenth of train is set aside.
        seed: For the split.
        pairs: For kind pairs: which samples are of one class.  Samples are split, so a pair whose
            ends fall into different splits is in none.
        input_names: Of vectors, what each number is, such as ``"age"`` or ``"town=Bonn"``.
        notes: What whoever read the data wants people to know, a sentence each.

    >>> task = Task(torch.rand(30, 8, 8), ["cat", "dog", "emu"] * 10, name="pets")
    >>> task
    Task('pets', 3 classes, 30 images 1×8×8, train 21 / validation 3 / test 6)
    >>> inputs, targets = task.subset("test")
    >>> inputs.shape, [task.classes[i] for i in targets.sort().values]
    (torch.Size([6, 1, 8, 8]), ['cat', 'cat', 'dog', 'dog', 'emu', 'emu'])
    """

    __slots__ = (
        "_classes",
        "_fingerprint",
        "_indices",
        "_input_names",
        "_inputs",
        "_kind",
        "_name",
        "_notes",
        "_pairs",
        "_targets",
    )
    _classes: tuple[str, ...]
    _fingerprint: str | None
    _indices: dict[Split, Tensor]
    _inputs: Tensor
    _kind: Kind
    _name: str
    _input_names: tuple[str, ...]
    _notes: tuple[str, ...]
    _pairs: Pairs | None
    _targets: Tensor

    def __init__(
        self,
        inputs: Any,
        targets: Any = None,
        *,
        name: str = "task",
        kind: Kind = "classes",
        classes: Sequence[Any] | None = None,
        split: Sequence[float] | Mapping[str, Any] = (0.7, 0.1, 0.2),
        seed: int = 0,
        pairs: Pairs | None = None,
        input_names: Sequence[str] = (),
        notes: Sequence[str] = (),
    ) -> None:
        if kind not in get_args(Kind):
            raise TaskError(f"unknown kind of task {kind!r}{nearest(str(kind), get_args(Kind))}")
        if (kind == "pairs") != (pairs is not None) or (kind == "pairs") != (targets is None):
            wants = "pairs= and no targets" if kind == "pairs" else "targets and no pairs="
            raise TaskError(f"a task of kind {kind!r} takes {wants}")
        if classes is not None and kind not in ("classes", "multilabel"):
            raise TaskError(f"a task of kind {kind!r} has no classes")
        self._name, self._kind, self._pairs, self._classes = name, kind, pairs, ()
        self._fingerprint, self._notes = None, tuple(notes)
        self._input_names = tuple(input_names)
        self._inputs = clean_inputs(inputs)
        count = len(self._inputs)
        if kind == "pairs":
            self._targets = torch.empty(count, 0)
        elif kind == "regression":
            self._targets = number_targets(targets)
        else:
            clean = class_targets if kind == "classes" else multilabel_targets
            self._targets, self._classes = clean(targets, classes)
        if len(self._targets) != count:
            raise TaskError(f"{count} inputs but {len(self._targets)} targets")
        if kind == "classes":
            refuse_lone_classes(self._targets, self._classes)
        strata = self._targets if kind == "classes" else torch.zeros(count)
        if isinstance(split, Mapping):
            self._indices = given_split(split, count, strata, seed)
        else:
            self._indices = stratified_split(strata, split, seed)
        if pairs is not None:
            refuse_pairs(pairs, count, self._indices["train"])

    @property
    def name(self) -> str:
        """What reports call it."""
        return self._name

    @property
    def kind(self) -> Kind:
        """What the targets mean."""
        return self._kind

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes or labels; empty for regression and pairs."""
        return self._classes

    @property
    def input_names(self) -> tuple[str, ...]:
        """What each number of a vector is; empty where nobody said."""
        return self._input_names

    @property
    def notes(self) -> tuple[str, ...]:
        """What reading the data met with: files that were skipped, images that were resized."""
        return self._notes

    @property
    def inputs(self) -> Tensor:
        """Every input in memory; a derived task may use only some rows, see :meth:`indices`."""
        return self._inputs

    @property
    def targets(self) -> Tensor:
        """A target for every row of ``inputs``.

        int64 indices into ``classes`` (−1 in rows that a derived task left out), float32 zeros and
        ones ``[n, k]`` for multilabel, float32 for regression, and ``[n, 0]`` for pairs.
        """
        return self._targets

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input, without the batch axis.

        >>> Task(torch.rand(8, 5), [0, 1] * 4).input_shape
        (5,)
        """
        return tuple(self._inputs.shape[1:])

    @property
    def outputs(self) -> int:
        """How many numbers a head gives for one input: classes, labels or target columns.

        >>> Task(torch.rand(8, 5), torch.rand(8), kind="regression").outputs
        1
        """
        if self._kind in ("classes", "multilabel"):
            return len(self._classes)
        return self._targets.shape[1] if self._targets.ndim == 2 else 1

    def indices(self, split: Split) -> Tensor:
        """The rows of a split, sorted.

        >>> Task(torch.rand(20, 5), [0, 1] * 10).indices("test").shape
        torch.Size([4])
        """
        if split not in SPLITS:
            raise TaskError(f"unknown split {split!r}{nearest(str(split), SPLITS)}")
        return self._indices[split]

    def size(self, split: Split | None = None) -> int:
        """The number of examples in a split, or in all of them.

        >>> task = Task(torch.rand(20, 5), [0, 1] * 10)
        >>> task.size("train"), task.size()
        (14, 20)
        """
        if split is None:
            return sum(len(index) for index in self._indices.values())
        return len(self.indices(split))

    def subset(self, split: Split) -> tuple[Tensor, Tensor]:
        """The inputs and targets of a split, as stored; see :func:`as_float` for natural units.

        >>> inputs, targets = Task(torch.rand(20, 5), [0, 1] * 10).subset("train")
        >>> inputs.shape, targets.shape
        (torch.Size([14, 5]), torch.Size([14]))
        """
        index = self.indices(split)
        return take_rows(self._inputs, index), take_rows(self._targets, index)

    @property
    def given_pairs(self) -> Pairs | None:
        """All the pairs of a task of kind pairs, across splits; of other kinds nothing."""
        return self._pairs

    def pairs(self, split: Split, *, count: int | None = None, seed: int = 0) -> Pairs:
        """Pairs of rows of ``inputs`` with both ends in the split.

        For kind pairs those that were given (``count`` of them at random, if asked); for kind
        classes ``count`` random ones, half of one class, by default as many as examples.

        >>> Task(torch.rand(20, 5), [0, 1] * 10).pairs("train", count=10)
        Pairs(10 pairs, 5 of one class)
        """
        index = self.indices(split)
        if self._pairs is not None:
            found = self._pairs.among(index)
            if count is None or count >= len(found):
                return found
            chosen = torch.randperm(len(found), generator=generator(seed, "pairs"))[:count]
            return found.take(chosen.sort().values)
        if self._kind != "classes":
            raise TaskError(f"{self._name!r} is of kind {self._kind!r}, which has no pairs")
        drawn = draw_pairs(self._targets[index], len(index) if count is None else count, seed)
        return Pairs(index[drawn.first], index[drawn.second], drawn.same)

    @property
    def fingerprint(self) -> str:
        """The sha256 of what the task is: kind, classes, and each split's inputs and targets.

        The name does not count, nor do rows in no split, nor where the data came from.

        >>> x, y = torch.rand(20, 5), [0, 1] * 10
        >>> Task(x, y, name="a").fingerprint == Task(x.numpy(), y, name="b").fingerprint
        True
        """
        if self._fingerprint is None:
            self._fingerprint = digest_of(
                self._kind, self._classes, self._inputs, self._targets, self._indices, self._pairs
            )
        return self._fingerprint

    def derived(
        self,
        name: str,
        *,
        kind: Kind | None = None,
        inputs: Tensor | None = None,
        targets: Tensor | None = None,
        classes: tuple[str, ...] | None = None,
        indices: Mapping[Split, Tensor] | None = None,
        pairs: Pairs | None = None,
    ) -> Task:
        """A task that differs in what is given and shares the rest; nothing is checked again.

        For the authors of derivations: tensors must be as the constructor would have stored them.

        >>> Task(torch.rand(20, 5), [0, 1] * 10).derived("renamed").name
        'renamed'
        """
        task = object.__new__(Task)
        task._name, task._fingerprint, task._notes = name, None, self._notes
        task._input_names = self._input_names if inputs is None or inputs.ndim == 2 else ()
        task._kind = self._kind if kind is None else kind
        task._inputs = self._inputs if inputs is None else inputs
        task._targets = self._targets if targets is None else targets
        task._classes = self._classes if classes is None else classes
        task._indices = self._indices if indices is None else dict(indices)
        kept = self._pairs if pairs is None else pairs
        task._pairs = kept if task._kind == "pairs" else None
        return task

    def __repr__(self) -> str:
        what = {
            "classes": f"{len(self._classes)} classes",
            "multilabel": f"{len(self._classes)} labels",
            "regression": f"regression to {self.outputs}",
            "pairs": f"{len(self._pairs or ())} pairs",
        }[self._kind]
        noun = "images" if len(self.input_shape) == 3 else "inputs"
        shape = "×".join(str(length) for length in self.input_shape)
        sizes = " / ".join(f"{split} {self.size(split)}" for split in SPLITS)
        return f"Task({self._name!r}, {what}, {self.size()} {noun} {shape}, {sizes})"
