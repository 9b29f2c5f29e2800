"""A task: named data, what its targets mean, and which examples train, validate and test."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from dovetail.core.errors import TaskError, nearest
from dovetail.core.notebook import html_of
from dovetail.core.seeds import generator
from dovetail.core.views import Table, Text
from dovetail.core.words import listed
from dovetail.tasks.arrays import (
    blocks,
    class_targets,
    clean_inputs,
    multilabel_targets,
    number_targets,
    refuse_lone_classes,
    take_rows,
)
from dovetail.tasks.pairs import Pairs, draw_pairs, refuse_pairs
from dovetail.tasks.splits import SPLITS, Split, given_split, stratified_split

Kind = Literal["classes", "multilabel", "regression", "pairs"]


@dataclass(frozen=True, init=False, eq=False, repr=False)
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

    name: str
    """What reports call it."""

    kind: Kind
    """What the targets mean."""

    classes: tuple[str, ...]
    """The names of the classes or labels; empty for regression and pairs."""

    inputs: Tensor
    """Every input in memory; a derived task may use only some rows, see :meth:`indices`."""

    targets: Tensor
    """A target for every row of ``inputs``: int64 indices into ``classes`` (−1 in rows that a
    derived task left out), float32 zeros and ones ``[n, k]`` for multilabel, float32 for
    regression, and ``[n, 0]`` for pairs."""

    given_pairs: Pairs | None
    """All the pairs of a task of kind pairs, across splits; of other kinds nothing."""

    input_names: tuple[str, ...]
    """What each number of a vector is; empty where nobody said."""

    notes: tuple[str, ...]
    """What reading the data met with: files that were skipped, images that were resized."""

    _indices: Mapping[Split, Tensor]

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
        values = clean_inputs(inputs)
        names: tuple[str, ...] = ()
        count = len(values)
        if kind == "pairs":
            answers = torch.empty(count, 0)
        elif kind == "regression":
            answers = number_targets(targets)
        elif kind == "classes":
            answers, names = class_targets(targets, classes)
        else:
            answers, names = multilabel_targets(targets, classes)
        if len(answers) != count:
            raise TaskError(f"{count} inputs but {len(answers)} targets")
        if kind == "classes":
            counts = torch.bincount(answers, minlength=len(names)).tolist()
            refuse_lone_classes(dict(zip(names, counts, strict=True)))
        strata = answers if kind == "classes" else torch.zeros(count)
        if isinstance(split, Mapping):
            indices = given_split(split, count, strata, seed)
        else:
            indices = stratified_split(strata, split, seed)
        if pairs is not None:
            refuse_pairs(pairs, count, indices["train"])
        self.__dict__.update(  # past the dataclass, which lets nobody change a task
            name=name,
            kind=kind,
            classes=names,
            inputs=values,
            targets=answers,
            given_pairs=pairs,
            input_names=tuple(input_names),
            notes=tuple(notes),
            _indices=indices,
        )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input, without the batch axis.

        >>> Task(torch.rand(8, 5), [0, 1] * 4).input_shape
        (5,)
        """
        return tuple(self.inputs.shape[1:])

    @property
    def outputs(self) -> int:
        """How many numbers a head gives for one input: classes, labels or target columns.

        >>> Task(torch.rand(8, 5), torch.rand(8), kind="regression").outputs
        1
        """
        if self.kind in ("classes", "multilabel"):
            return len(self.classes)
        return self.targets.shape[1] if self.targets.ndim == 2 else 1

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
        return take_rows(self.inputs, index), take_rows(self.targets, index)

    def pairs(self, split: Split, *, count: int | None = None, seed: int = 0) -> Pairs:
        """Pairs of rows of ``inputs`` with both ends in the split.

        For kind pairs those that were given (``count`` of them at random, if asked); for kind
        classes ``count`` random ones, half of one class, by default as many as examples.

        >>> Task(torch.rand(20, 5), [0, 1] * 10).pairs("train", count=10)
        Pairs(10 pairs, 5 of one class)
        """
        index = self.indices(split)
        if self.given_pairs is not None:
            pairs = self.given_pairs.among(index)
            if count is None or count >= len(pairs):
                return pairs
            chosen = torch.randperm(len(pairs), generator=generator(seed, "pairs"))[:count]
            return pairs.take(chosen.sort().values)
        if self.kind != "classes":
            raise TaskError(f"{self.name!r} is of kind {self.kind!r}, which has no pairs")
        drawn = draw_pairs(self.targets[index], len(index) if count is None else count, seed)
        return Pairs(index[drawn.first], index[drawn.second], drawn.same)

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of what the task is: kind, classes, and each split's inputs and targets.

        The name does not count, nor do rows in no split, nor where the data came from: it is taken
        of a header, then of each split's inputs, targets and pairs, block by block, so a derived
        task that shares a large storage has that of the same task made from its own rows only.

        >>> x, y = torch.rand(20, 5), [0, 1] * 10
        >>> Task(x, y, name="a").fingerprint == Task(x.numpy(), y, name="b").fingerprint
        True
        """
        header = {
            "kind": self.kind,
            "classes": self.classes,
            "inputs": [str(self.inputs.dtype), *self.inputs.shape[1:]],
            "targets": [str(self.targets.dtype), *self.targets.shape[1:]],
            "sizes": [len(self._indices[split]) for split in SPLITS],
        }
        digest = hashlib.sha256(json.dumps(header).encode())
        for split in SPLITS:
            index = self._indices[split]
            for values in (self.inputs, self.targets):
                for part in blocks(values, len(index)):
                    digest.update(take_rows(values, index[part]).contiguous().numpy().data)
            if self.given_pairs is not None:
                pairs = self.given_pairs.within(index)
                for values in (pairs.first, pairs.second, pairs.same):
                    digest.update(values.contiguous().numpy().data)
        return digest.hexdigest()

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
        changes = {
            "name": name,
            "kind": kind,
            "inputs": inputs,
            "targets": targets,
            "classes": classes,
            "given_pairs": pairs,
            "_indices": indices,
        }
        task = object.__new__(Task)
        for each in fields(self):  # what is replaced is not even looked at: labels may be sealed
            change = changes.get(each.name)
            value = getattr(self, each.name) if change is None else change
            task.__dict__[each.name] = value
        if inputs is not None and inputs.ndim != 2:
            task.__dict__["input_names"] = ()
        if task.kind != "pairs":
            task.__dict__["given_pairs"] = None
        return task

    def _repr_html_(self) -> str:
        splits = ", ".join(f"{split} {self.size(split)}" for split in SPLITS)
        facts = {
            "kind": self.kind,
            "classes": listed(self.classes),
            "inputs": f"{self.size()} of {'×'.join(map(str, self.input_shape))}",
            "their names": listed(self.input_names),
            "splits": splits,
        }
        rows = tuple((name, value) for name, value in facts.items() if value)
        notes = (Text(f"{note}.", style="note") for note in self.notes)
        return html_of(f"Task: {self.name}", (Table(("", "what it is"), rows), *notes))

    def __repr__(self) -> str:
        what = {
            "classes": f"{len(self.classes)} classes",
            "multilabel": f"{len(self.classes)} labels",
            "regression": f"regression to {self.outputs}",
            "pairs": f"{len(self.given_pairs or ())} pairs",
        }[self.kind]
        noun = "images" if len(self.input_shape) == 3 else "inputs"
        shape = "×".join(str(length) for length in self.input_shape)
        sizes = " / ".join(f"{split} {self.size(split)}" for split in SPLITS)
        return f"Task({self.name!r}, {what}, {self.size()} {noun} {shape}, {sizes})"
