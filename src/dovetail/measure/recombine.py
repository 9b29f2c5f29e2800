r"""Recombining: every front with every head, measured at once and without training.

With a front :math:`f_a`, the head :math:`h_b` of another network and the test images of the front's
own task whose class the head knows, :math:`D_{ab}`, the accuracy of the pair is

.. math::
    A_{ab} = \frac{1}{|D_{ab}|} \sum_{(x, y) \in D_{ab}}
        \Bigl[ \arg\max_{c \in C_{ab}} h_b(f_a(x))_c = y \Bigr]

over the common classes :math:`C_{ab}`.  The mean of :math:`A_{ab}` over :math:`a \neq b` is the
*recombination accuracy*; that of :math:`h_a(f_a(x))` on the same images and classes bounds it from
above, as far as the front allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor, nn

from dovetail.core.errors import ContractError, SettingsError, TaskError, first_line, nearest
from dovetail.core.words import listed
from dovetail.measure.correlation import alike
from dovetail.measure.forward import REFUSED, prepare, refuse_other_inputs
from dovetail.measure.joined import Fan, calibrating_batches, random_batches
from dovetail.measure.recombination import Pair, Recombination
from dovetail.parts.contract import shown_shape
from dovetail.parts.cutting import cut_first
from dovetail.parts.modules import evaluating
from dovetail.parts.norms import Norms, Statistics, settle_norms, with_norms
from dovetail.parts.part import Part, as_part, parts_by_name
from dovetail.settings.join import Recombine as Declared
from dovetail.tasks.task import Split, Task

__all__ = ["Parts", "Tasks", "own_heads", "recombine"]

Parts = Part | nn.Module | Sequence[Part | nn.Module] | Mapping[str, Part | nn.Module]
Tasks = Task | Sequence[Task] | Mapping[str, Task]


def recombine(
    fronts: Parts,
    heads: Parts,
    task: Tasks,
    *,
    norms: Norms | Sequence[Norms] = Declared.norms,
    split: Split = Declared.split,
    batch_size: int = Declared.batch_size,
    calibration: int = Declared.calibration,
    correlation: bool = Declared.correlation,
    seed: int = 0,
) -> Recombination:
    """Measure every front with every head, whether their contracts fit or not.

    A pair is measured on the images of the front's task whose class the head knows **by name**,
    choosing among those common classes (``accuracy``) and among all the head's (``unmasked``).
    Every batch goes through the front once and from there to all heads.  Batches are a fixed random
    order of the images: with ``norms="batch"`` the statistics of class-sorted ones would be wrong.

    A pair whose tensors do not flow, that shares fewer than two classes (a choice of one is always
    right), or that gives NaN is not measured: its record says why.

    Args:
        fronts: Parts by name, several in a row, or one.
        heads: Likewise.  A front's own head is the one of its name, or in its place when both are
            sequences of one length.
        task: One for all fronts, or one for each (by name, or in a row).
        norms: Statistics of the batch norms, as in :func:`dovetail.join`; the first of several
            gives the record's tables.  ``"auto"`` is one choice for all pairs, so that they can be
            compared: each batch's own statistics as soon as one pair was trained for those, or its
            head has stored those of another front.
        split: Which images.
        batch_size: Images a batch at most; all batches are of about one size.
        calibration: Training images, drawn at random and without their labels, on which
            ``"recalibrated"`` norms are estimated for each pair.
        correlation: Also correlate the channels of the fronts, on the images of the first.
        seed: For the order of images and for those of the calibration.

    Raises:
        TaskError: no pair has two classes in common.
        ContractError: no pair can be measured, or a front cannot take its task's inputs.

    >>> import torch
    >>> from dovetail.parts.cutting import cut
    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.task import Task
    >>> task = Task(torch.rand(60, 1, 8, 8), [0, 1, 2] * 20)
    >>> halves = [cut(build("lenet5", size=8, classes=3, seed=i), at="conv2") for i in (0, 1)]
    >>> recombine([front for front, _ in halves], [head for _, head in halves], task)
    Recombination(2 fronts × 2 heads: ...% off the diagonal)
    """
    named_fronts, named_heads = _by_name(fronts, "fronts"), _by_name(heads, "heads")
    tasks = _tasks_by_front(task, list(named_fronts))
    own = own_heads(fronts, heads, list(named_fronts), list(named_heads))
    policies, why = _policies(norms, batch_size, named_fronts.values(), named_heads.values())
    Declared.check({"calibration": calibration, "batch_size": batch_size, "split": split})
    for name, head in named_heads.items():
        if head.contract.kind != "classes":
            raise ContractError(f"the head {name!r} is for {head.contract.kind}, not for classes")
    how = policies, split, batch_size, calibration, seed
    rows = [
        Row(name, front, tasks[name], named_heads, own.get(name), *how)
        for name, front in named_fronts.items()
    ]
    pairs = [pair for row in rows for pair in _measured(row)]
    _refuse_nothing(pairs, cut_first(*named_fronts.values(), *named_heads.values()))
    images = random_batches(rows[0].task.indices(split), seed, batch_size)
    compared = rows if correlation and len(rows) > 1 else []
    return Recombination(
        norms=policies,
        pairs=tuple(pairs),
        own_heads=own,
        alike=alike(
            {row.name: row.front_with(policies[0]) for row in compared}, rows[0].task, images
        ),
        settings={
            "split": split,
            "norms": list(policies),
            "norms_why": why,
            "batch_size": batch_size,
            "order": "random",
            "calibration": calibration if "recalibrated" in policies else None,
            "seed": seed,
            "tasks": {name: each.name for name, each in tasks.items()},
            "task_fingerprints": {name: each.fingerprint for name, each in tasks.items()},
            "front_digests": {name: part.digest for name, part in named_fronts.items()},
            "head_digests": {name: part.digest for name, part in named_heads.items()},
        },
    )


@dataclass(frozen=True)
class Row:
    """A front, the task it is tested on, the heads it meets, which of them is its own, and how."""

    name: str
    front: Part
    task: Task
    heads: dict[str, Part]
    own: str | None
    norms: tuple[Statistics, ...]
    split: Split
    batch_size: int
    calibration: int
    seed: int

    def inputs(self, rows: Tensor) -> Tensor:
        """Rows of the task as the front wants them, where it wants them."""
        return prepare(self.task.inputs[rows], self.front.contract).to(self.front.device)

    def calibrating(self, norms: Statistics) -> list[Tensor]:
        """Batches for statistics, where the policy asks for them."""
        if norms != "recalibrated":
            return []
        return calibrating_batches(self.front, self.task, self.calibration, seed=self.seed)

    def front_with(self, norms: Statistics) -> Part:
        """The front by itself with the statistics of a policy."""
        module = with_norms(self.front.module, norms, self.calibrating(norms))
        return self.front.changed(module=module)

    def rows_of(self, classes: tuple[str, ...]) -> Tensor:
        """The examples of some classes, as rows of the task."""
        rows = self.task.indices(self.split)
        numbers = torch.tensor([self.task.classes.index(c) for c in classes], dtype=torch.int64)
        return rows[torch.isin(self.task.targets[rows], numbers)]


def _measured(row: Row) -> list[Pair]:
    """The pairs of a front with each head, in the order of the heads.

    Heads that share the same classes with the task meet the same batches, which go through the
    front once for all of them.
    """
    vocabularies, obstacles = _probed(row)
    pairs: dict[str, Pair] = {}
    groups: dict[tuple[str, ...], list[str]] = {}
    for head, part in row.heads.items():
        known = vocabularies.get(head, ())
        common = tuple(name for name in row.task.classes if name in known)
        n = len(row.rows_of(common))
        if head in vocabularies and (len(common) < 2 or n == 0):
            obstacles[head] = _too_little(row, head, known, common)
        if head not in obstacles:
            groups.setdefault(common, []).append(head)
        reasons = tuple(row.front.contract.mismatches(part.contract))
        obstacle = obstacles.get(head)
        pairs[head] = Pair(row.name, head, reasons, common, len(known), n, obstacle=obstacle)
    fan = Fan(row.front.module, {head: row.heads[head].module for head in vocabularies})
    for norms in row.norms if groups else ():
        policy = fan.with_norms(norms, row.calibrating(norms))
        for common, heads in groups.items():
            own = row.own if set(common) <= set(vocabularies.get(row.own or "", ())) else None
            wanted = [*heads, *([] if own is None or own in heads else [own])]
            outputs, targets = _outputs(row, policy, common, wanted)
            for head in heads:
                pairs[head] = _scored(pairs[head], norms, outputs, targets, vocabularies, own)
    return list(pairs.values())


def _probed(row: Row) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Send two images through everything: the names of each head's outputs, or why not."""
    rows = row.task.indices(row.split)
    if len(rows) == 0:
        raise TaskError(f"{row.task.name!r} has no examples in its {row.split} split")
    if len(row.front.contract.takes) != 1:
        raise ContractError(
            f"the front {row.name!r} takes {len(row.front.contract.takes)} tensors, not one input"
        )
    refuse_other_inputs(row.task, row.front.contract)
    fan = Fan(row.front.module, {name: head.module for name, head in row.heads.items()})
    vocabularies: dict[str, tuple[str, ...]] = {}
    obstacles: dict[str, str] = {}
    with evaluating(fan):
        try:
            features = fan.features(row.inputs(rows[:2]))
        except REFUSED as error:
            raise ContractError(
                f"the front {row.name!r} does not take the inputs of {row.task.name!r}, "
                f"{shown_shape(row.task.input_shape)}: {first_line(error)}"
            ) from None
        for name, head in row.heads.items():
            if misfits := row.front.contract.obstacles(head.contract):
                obstacles[name] = "; ".join(misfits)
                continue
            try:
                vocabularies[name] = _names_of(head, fan.through(name, features), row.task)
            except REFUSED as error:
                obstacles[name] = first_line(error)
    return vocabularies, obstacles


def _names_of(head: Part, outputs: object, task: Task) -> tuple[str, ...]:
    """What a head's outputs are called; without names, those of a task with as many classes."""
    known = head.contract.classes or task.classes
    if not isinstance(outputs, Tensor) or outputs.ndim != 2:
        raise ValueError("the head gives no row of numbers for an image")
    if outputs.shape[1] != len(known):
        whose = "names" if head.contract.classes else "no names, the task has"
        raise ValueError(
            f"the head gives {outputs.shape[1]} outputs and {whose} {len(known)} classes"
        )
    return known


def _too_little(row: Row, head: str, known: tuple[str, ...], common: tuple[str, ...]) -> str:
    if len(common) >= 2:
        return f"{row.task.name!r} has no {row.split} images of {listed(common)}"
    shared = f"only the class {common[0]!r} is" if common else "no class is"
    return (
        f"{shared} common to {row.task.name!r} ({listed(row.task.classes)}) "
        f"and the head {head!r} ({listed(known)})"
    )


def _outputs(
    row: Row, fan: Fan, common: tuple[str, ...], wanted: list[str]
) -> tuple[dict[str, Tensor], Tensor]:
    """Each head's outputs ``[n, its classes]`` and the targets ``[n]``, counted in ``common``."""
    pieces_of: dict[str, list[Tensor]] = {head: [] for head in wanted}
    batches = random_batches(row.rows_of(common), row.seed, row.batch_size)
    with evaluating(fan):
        for batch in batches:
            try:
                outputs = fan(row.inputs(batch), wanted)
            except REFUSED as error:
                raise ContractError(
                    f"the front {row.name!r} and its heads do not take a batch of {len(batch)}: "
                    f"{first_line(error)}"
                ) from None
            for head, output in outputs.items():
                pieces_of[head].append(output.cpu())
    place = torch.full((len(row.task.classes),), -1)
    place[[row.task.classes.index(name) for name in common]] = torch.arange(len(common))
    targets = place[row.task.targets[torch.cat(batches)]]
    return {head: torch.cat(pieces) for head, pieces in pieces_of.items()}, targets


def _scored(
    pair: Pair,
    norms: Statistics,
    outputs: dict[str, Tensor],
    targets: Tensor,
    vocabularies: dict[str, tuple[str, ...]],
    own: str | None,
) -> Pair:
    """The pair with its shares of right answers under one policy of norms."""
    if empty := int(outputs[pair.head].isnan().any(1).sum()):
        said = f"gives NaN for {empty} of {pair.n} images with {norms} norms"
        return replace(pair, obstacle=f"{pair.obstacle}; {said}" if pair.obstacle else said)

    def columns(head: str) -> Tensor:
        return torch.tensor([vocabularies[head].index(name) for name in pair.classes])

    def masked(head: str) -> float:
        return float((outputs[head][:, columns(head)].argmax(1) == targets).double().mean())

    among_all = outputs[pair.head].argmax(1) == columns(pair.head)[targets]
    return replace(
        pair,
        accuracy=pair.accuracy | {norms: masked(pair.head)},
        unmasked=pair.unmasked | {norms: float(among_all.double().mean())},
        own=pair.own | ({norms: masked(own)} if own in outputs else {}),
    )


def _refuse_nothing(pairs: list[Pair], cut_first: str | None) -> None:
    """A record without any number would only hide that nothing could be measured."""
    if any(pair.accuracy for pair in pairs):
        return
    lines = [f"\n  - {pair.front} + {pair.head}: {pair.obstacle}" for pair in pairs]
    shown = "".join(lines[:10]) + (f"\n  and {len(lines) - 10} more" if len(lines) > 10 else "")
    if any(pair.head_classes and (len(pair.classes) < 2 or pair.n == 0) for pair in pairs):
        raise TaskError(
            f"no front's task has images of two classes that a head knows:{shown}\n"
            "Classes are matched by name; give the parts and the task the same names."
        )
    otherwise = "Cut them elsewhere, or put an adapter between different channel counts: dt.adapter"
    raise ContractError(
        f"no front can be followed by any of the heads:{shown}\n{cut_first or otherwise}."
    )


def _by_name(parts: Parts, noun: str) -> dict[str, Part]:
    """The parts under the names given, or those of the tasks they learnt; else under what they are.

    >>> from dovetail.parts.part import build
    >>> list(_by_name([build("mlp"), build("mlp", seed=1)], "fronts"))
    ['mlp', 'mlp #2']
    """
    if isinstance(parts, Mapping):
        by_name = {str(name): as_part(part) for name, part in parts.items()}
    else:
        several = [parts] if isinstance(parts, Part | nn.Module) else parts
        by_name = parts_by_name(several, by_task=True)
    if not by_name:
        raise SettingsError(f"there are no {noun} to recombine")
    return by_name


def own_heads(
    fronts: Parts, heads: Parts, front_names: Sequence[str], head_names: Sequence[str]
) -> dict[str, str]:
    """Each front's own head: of the same name, or in two sequences of one length, in its place.

    A lone part belongs to nobody: a single front with a single head is mostly asked about because
    they are strangers.

    >>> own_heads({}, {}, ["low", "high"], ["high"])
    {'high': 'high'}
    >>> own_heads([], [], ["front", "front #2"], ["back", "back #2"])
    {'front': 'back', 'front #2': 'back #2'}
    """
    placed = isinstance(fronts, Sequence) and isinstance(heads, Sequence)
    if placed and len(front_names) == len(head_names):
        return dict(zip(front_names, head_names, strict=True))
    if isinstance(fronts, Mapping) and isinstance(heads, Mapping):
        return {name: name for name in front_names if name in head_names}
    return {}


def _tasks_by_front(tasks: Tasks, fronts: Sequence[str]) -> dict[str, Task]:
    """The task each front is tested on."""
    if isinstance(tasks, Task):
        by_front = dict.fromkeys(fronts, tasks)
    elif isinstance(tasks, Mapping):
        for name in fronts:
            if name not in tasks:
                near = nearest(name, map(str, tasks))
                raise SettingsError(f"there is no task for the front {name!r}{near}")
        by_front = {name: tasks[name] for name in fronts}
    else:
        tasks = list(tasks)
        if len(tasks) != len(fronts):
            raise SettingsError(
                f"{len(tasks)} tasks for {len(fronts)} fronts; give one for all, or one for each"
            )
        by_front = dict(zip(fronts, tasks, strict=True))
    for task in by_front.values():
        if not isinstance(task, Task):
            raise SettingsError(f"expected a Task, got {type(task).__name__}; see dt.load_task")
        if task.kind != "classes":
            raise TaskError(f"{task.name!r} is of kind {task.kind!r}; recombining needs classes")
    return by_front


def _policies(
    norms: Norms | Sequence[Norms], batch_size: int, fronts: Iterable[Part], heads: Iterable[Part]
) -> tuple[tuple[Statistics, ...], str | None]:
    """The statistics to measure with, each of them once, and why "auto" has chosen what it has.

    >>> _policies("batch", 512, [], []), _policies(["stored", "batch"], 512, [], [])
    ((('batch',), None), (('stored', 'batch'), None))
    """
    asked: tuple[Norms, ...] = (norms,) if isinstance(norms, str) else tuple(norms)
    if not asked or len(set(asked)) < len(asked):
        raise SettingsError(f"name at least one policy for norms, and each once; got {asked}")
    pairs = list(product(fronts, heads))
    flowing = [(a, b) for a, b in pairs if not a.contract.obstacles(b.contract)]
    settled = [settle_norms(policy, *(flowing or pairs)) for policy in asked]
    policies = tuple(dict.fromkeys(chosen.norms for chosen in settled))
    least = 1 if policies == ("stored",) else 2
    if batch_size < least:
        why = "; a batch of one has no variance" if least == 2 else ""
        raise SettingsError(f"batch_size must be at least {least}, got {batch_size}{why}")
    return policies, next((chosen.why for chosen in settled if chosen.why), None)
