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

from collections.abc import Mapping, Sequence

from torch import nn

from dovetail.core.errors import (
    ContractError,
    SettingsError,
    TaskError,
    nearest,
)
from dovetail.measure.correlation import alike
from dovetail.measure.joined import random_batches
from dovetail.measure.pairs import Row, choose_norms, measured_pairs
from dovetail.measure.recombination import Pair, Recombination
from dovetail.parts.cutting import cut_first
from dovetail.parts.norms import Norms, Statistics
from dovetail.parts.part import Part, as_part, parts_by_name
from dovetail.settings.join import Recombine as Declared
from dovetail.tasks.splits import Split
from dovetail.tasks.task import Task

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
            compared: each batch's own statistics as soon as one pair was trained for those; what
            :func:`~dovetail.measure.pairs.choose_norms` finds best for all pairs where some are
            strangers.
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
    policies, why = _policies(norms, batch_size, named_fronts, named_heads, tasks, seed)
    Declared.check({"calibration": calibration, "batch_size": batch_size, "split": split})
    for name, head in named_heads.items():
        if head.contract.kind != "classes":
            raise ContractError(f"the head {name!r} is for {head.contract.kind}, not for classes")
    how = policies, split, batch_size, calibration, seed
    rows = [
        Row(name, front, tasks[name], named_heads, own.get(name), *how)
        for name, front in named_fronts.items()
    ]
    pairs = [pair for row in rows for pair in measured_pairs(row)]
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
    norms: Norms | Sequence[Norms],
    batch_size: int,
    fronts: Mapping[str, Part],
    heads: Mapping[str, Part],
    tasks: Mapping[str, Task],
    seed: int,
) -> tuple[tuple[Statistics, ...], str | None]:
    """The statistics to measure with, each of them once, and why "auto" has chosen what it has.

    >>> _policies("batch", 512, {}, {}, {}, 0), _policies(["stored", "batch"], 512, {}, {}, {}, 0)
    ((('batch',), None), (('stored', 'batch'), None))
    """
    choices: tuple[Norms, ...] = (norms,) if isinstance(norms, str) else tuple(norms)
    if not choices or len(set(choices)) < len(choices):
        raise SettingsError(f"name at least one policy for norms, and each once; got {choices}")
    pairs = [(name, (front, head)) for name, front in fronts.items() for head in heads.values()]
    flowing = [pair for pair in pairs if not pair[1][0].contract.obstacles(pair[1][1].contract)]
    on = [tasks[name] for name, _ in flowing or pairs]
    chains = [chain for _, chain in flowing or pairs]
    settled = [choose_norms(policy, on, *chains, seed=seed) for policy in choices]
    policies = tuple(dict.fromkeys(chosen.norms for chosen in settled))
    least = 1 if policies == ("stored",) else 2
    if batch_size < least:
        why = "; a batch of one has no variance" if least == 2 else ""
        raise SettingsError(f"batch_size must be at least {least}, got {batch_size}{why}")
    return policies, next((chosen.why for chosen in settled if chosen.why), None)
