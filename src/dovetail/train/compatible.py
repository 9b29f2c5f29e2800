r"""Training networks whose parts fit each other without fine-tuning.

Three ways, in any combination (see :mod:`dovetail.train.fitting.group` for the objective):

- ``"dcc"``: a shared auxiliary head that *discriminates the common classes*;
- ``"rp"``: a shared auxiliary head for a pretext, by default *rotation prediction*: no labels;
- ``"iiw"``: *identical initial weights*.

``scheme="joint"`` trains all networks at once, a batch of each in turn.  ``scheme="incremental"``
trains the first with the auxiliary heads, freezes them, and trains each other network against the
frozen heads alone: it never sees the first one's data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Literal, Unpack

from torch import nn

from dovetail.core.device import choose_device
from dovetail.core.errors import SettingsError, TaskError, nearest
from dovetail.core.seeds import derived_seed
from dovetail.objectives.pretext import Pretext
from dovetail.objectives.pretexts import pretext_named
from dovetail.parts.contract import Preprocess
from dovetail.parts.part import Part, as_part
from dovetail.tasks.augment import Augment
from dovetail.tasks.task import Task
from dovetail.train.fitting.auxiliaries import AUXILIARIES, shared_heads
from dovetail.train.fitting.cuts import At, cut_networks, identical_starts, start_alike
from dovetail.train.fitting.finishing import finished_group
from dovetail.train.fitting.group import Group, Member
from dovetail.train.fitting.record import CompatibleFit, Stage
from dovetail.train.options import LoopOptions, Options
from dovetail.train.stages import stage_file
from dovetail.train.supervision import augmentation, starting_facts, try_once, twin

__all__ = ["WAYS", "compatible"]

WAYS = {
    "dcc": "a shared head that tells the common classes apart",
    "rp": "a shared head for a self-supervised task, by default the rotation",
    "iiw": "identical initial weights",
}
"""What makes networks compatible, by name."""


def compatible(
    models: Sequence[Part | nn.Module] | Part | nn.Module,
    tasks: Sequence[Task] | Task,
    *,
    by: Sequence[str] = ("dcc", "rp", "iiw"),
    scheme: Literal["joint", "incremental"] = "joint",
    at: At = None,
    pretext: str | Pretext = "rotation",
    auxiliaries: Mapping[str, Part] | None = None,
    common: Sequence[str] | None = None,
    common_limit: int | None = None,
    channels: int | None = None,
    weights: Mapping[str, float] | None = None,
    project_conflicts: bool = False,
    unit_weight: float = 0.0,
    augment: str | Augment | None = None,
    preprocess: Preprocess | None = None,
    seed: int = 0,
    **options: Unpack[LoopOptions],
) -> CompatibleFit:
    """Train copies of networks, one on each task, so that fronts and heads can be exchanged.

    Args:
        models: One or more, of any architectures; their weights are the starting points.
        tasks: As many, with classes.
        by: Any of ``"dcc"``, ``"rp"``, ``"iiw"``; none trains the networks independently.
        scheme: ``"joint"`` or ``"incremental"``.
        at: Where to cut: one point for all, or one for each; by default before the output layer.
            Earlier cuts fit better.
        pretext: For ``"rp"``: ``"rotation"``, ``"jigsaw"``, ``"views"``, or one's own.
        auxiliaries: Heads from an earlier training, ``fit.auxiliaries``.  Jointly they are trained
            on; in the incremental scheme they are frozen, and what is trained fits all that was
            trained with them.
        common: The classes that ``"dcc"`` is about; by default all that the tasks share.
        common_limit: How many training examples of a task teach ``"dcc"``, as many of each class;
            by default all of the common classes.
        channels: Map every front's channels to so many with 1×1 adapters; by default the smallest
            count, and no adapters where all have the same.
        weights: Of the auxiliary losses; 1 unless said.
        project_conflicts: Take what is opposed out of the gradients before they are added.
        unit_weight: Weight of a loss that draws the features to unit length.
        augment: Such as ``"flip,shift:2"``.
        preprocess: Default: each part's own, else standardisation by its training split.
        seed: Auxiliary weights, adapters, order of batches, augmentation, views.
        options: See :class:`Options`.

    Returns:
        ``fit.fronts`` and ``fit.heads``, which can be joined crosswise; ``fit.networks``;
        ``fit.auxiliaries``; and the record with the accuracy of each recombination on validation.

    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.builtin import load_task
    >>> from dovetail.tasks.derive import inverted
    >>> digits = load_task("digits")
    >>> nets = [build("mlp", hidden=(32, 32), seed=seed) for seed in (0, 1)]
    >>> fit = compatible(nets, [digits, inverted(digits)], by=("dcc", "iiw"), epochs=8)
    >>> fit.record.recombination > 0.8
    True
    >>> fit.fronts[0].contract.mismatches(fit.heads[1].contract)
    []
    """
    starts = [as_part(model) for model in _listed(models)]
    taught = [tasks] if isinstance(tasks, Task) else list(tasks)
    chosen, changes = Options(**options), augmentation(augment)
    by = _checked(by, scheme, starts, taught)
    asked = pretext_named(pretext)
    shares = _shares(weights, unit_weight)
    device = choose_device(chosen.device)
    names = _names(taught)
    wholes = [
        twin(start, task, preprocess, device) for start, task in zip(starts, taught, strict=True)
    ]
    for whole, task in zip(wholes, taught, strict=True):
        try_once(whole, task)
        if "rp" in by:
            asked.check(tuple(side or 1 for side in whole.contract.takes[0].shape or ()))
    networks = cut_networks(wholes, taught, names, at, channels, seed)
    for network in networks:
        network.front.module.to(device), network.head.module.to(device)
    if "iiw" in by:
        start_alike(networks)
    given = dict(auxiliaries or {})
    if common is not None and "dcc" in given:
        raise SettingsError("the 'dcc' head of auxiliaries= has its classes; leave common= out")
    if "dcc" not in by and (common is not None or common_limit is not None):
        raise SettingsError("common= and common_limit= are about 'dcc', which by= does not ask for")
    heads = shared_heads(by, networks, given, common, asked, shares, scheme, device, seed)
    if common_limit is not None:
        if common_limit < len(next((a.classes for a in heads if a.name == "dcc"), ())):
            raise SettingsError(f"common_limit={common_limit} is not one example of each class")
        heads = [a if a.pretext else replace(a, limit=common_limit) for a in heads]
    settings = {
        "how": "compatible",
        "by": list(by),
        "scheme": scheme,
        "at": [network.at for network in networks],
        "pretext": asked.described() if "rp" in by else None,
        "common": list(next((a.classes for a in heads if a.name == "dcc"), ())),
        "common_limit": common_limit,
        "auxiliaries": {name: part.digest for name, part in sorted(given.items())},
        "channels": channels,
        "weights": shares,
        "project_conflicts": project_conflicts,
        "unit_weight": unit_weight,
        "augment": None if changes is None else str(changes),
        "identical_starts": identical_starts(networks),
        "seed": seed,
        "task_fingerprints": [task.fingerprint for task in taught],
        "start_digests": [start.digest for start in starts],
        "device": str(device),
        **chosen.described(),
    }
    identity = {
        "preprocess": [whole.contract.preprocess for whole in wholes],
        "starts": [starting_facts(start) for start in starts],
        "given": {name: starting_facts(part) for name, part in given.items()},
        **settings,
    }
    turns = [networks] if scheme == "joint" else [[network] for network in networks]
    stages = []
    for number, turn in enumerate(turns):
        frozen = [a for a in heads if a.name not in given] if number else []
        group = Group(
            [Member(network.name, network.front, network.head, network.task) for network in turn],
            [replace(a, frozen=True) if a in frozen else a for a in heads],
            conflicts=project_conflicts,
            unit_weight=unit_weight,
        )
        label = " and ".join(network.name for network in turn)
        rows = group.train_on(
            chosen
            if len(turns) == 1
            else replace(chosen, checkpoint=stage_file(chosen.checkpoint, f"network{number + 1}")),
            # Every stage draws alike: a later call with the heads gives what this stage does.
            seed=derived_seed(seed, "stage", 0),
            augment=changes,
            identity={**identity, "stage": number},
            label=label,
        )
        stages.append(Stage.of(tuple(n.name for n in turn), rows, chosen.patience))
    return finished_group(networks, starts, heads, given, by, scheme, tuple(stages), settings)


def _listed(
    models: Sequence[Part | nn.Module] | Part | nn.Module,
) -> Sequence[Part | nn.Module]:
    if isinstance(models, nn.ModuleList):
        return list(models)
    return [models] if isinstance(models, Part | nn.Module) else models


def _checked(
    by: Sequence[str], scheme: str, starts: Sequence[Part], tasks: Sequence[Task]
) -> tuple[str, ...]:
    """The ways in their usual order; an error for what cannot be."""
    wanted = (by,) if isinstance(by, str) else tuple(by or ())
    for name in wanted:
        if name not in WAYS:
            raise SettingsError(f"unknown way to compatibility {name!r}{nearest(str(name), WAYS)}")
    if scheme not in ("joint", "incremental"):
        raise SettingsError(f"scheme must be 'joint' or 'incremental', got {scheme!r}")
    if not starts or len(starts) != len(tasks):
        raise SettingsError(
            f"each network needs its own task: there are {len(starts)} networks and "
            f"{len(tasks)} tasks"
        )
    for task in tasks:
        if not isinstance(task, Task):
            raise SettingsError(f"a task must be a Task, got {type(task).__name__}")
        if task.kind != "classes":
            raise TaskError(
                f"{task.name!r} is of kind {task.kind!r}; networks are made compatible on classes"
            )
    return tuple(name for name in WAYS if name in wanted)


def _shares(weights: Mapping[str, float] | None, unit_weight: float) -> dict[str, float]:
    given = dict(weights or {})
    for name, value in {**given, "unit_weight": unit_weight}.items():
        if name not in (*AUXILIARIES, "unit_weight"):
            raise SettingsError(f"weights= is about {', '.join(AUXILIARIES)}, not {name!r}")
        if not (isinstance(value, float | int) and 0 <= value < float("inf")):
            raise SettingsError(f"the weight of {name!r} must be a number of at least 0")
    return {name: float(given.get(name, 1.0)) for name in AUXILIARIES}


def _names(tasks: Sequence[Task]) -> list[str]:
    """The tasks' names, made different where they are not."""
    names: list[str] = []
    for task in tasks:
        tries = (f"{task.name}-{number}" for number in count(2))
        names.append(next(name for name in chain([task.name], tries) if name not in names))
    return names
