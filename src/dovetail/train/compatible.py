r"""Training networks whose parts fit each other without fine-tuning.

Three ways, in any combination (see :mod:`dovetail.train.group` for the objective):

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
from itertools import chain
from typing import Unpack

from torch import nn

from dovetail.core.errors import SettingsError, TaskError, argument
from dovetail.core.seeds import derived_seed
from dovetail.core.words import numbered
from dovetail.measure.joined import judged
from dovetail.objectives.pretext import Pretext
from dovetail.objectives.pretexts import pretext_named
from dovetail.parts.contract import Preprocess
from dovetail.parts.facts import Origin
from dovetail.parts.modules import digest_of
from dovetail.parts.part import Part
from dovetail.settings.train import Compatible
from dovetail.tasks.augment import Augment
from dovetail.tasks.derive import only_classes
from dovetail.tasks.task import Task
from dovetail.train.compatible_record import CompatibleFit, CompatibleTraining, Stage
from dovetail.train.filtering import Filter
from dovetail.train.frame import Course, as_parts, try_once
from dovetail.train.group import Auxiliary, Group
from dovetail.train.group_parts import (
    AUXILIARIES,
    At,
    Network,
    asked_for,
    cut_networks,
    identical_starts,
    in_space,
    named_after,
    shared_heads,
    start_alike,
)
from dovetail.train.options import LoopOptions, named
from dovetail.train.self_supervised import refuse_other_images
from dovetail.train.supervision import Loss, loss_for, loss_words

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
    by: Sequence[str] = Compatible.by,
    scheme: str = Compatible.scheme,
    loss: str | Loss | None = None,
    at: At = None,
    pretext: str | Pretext = Compatible.pretext,
    auxiliaries: Mapping[str, Part] | None = None,
    common: Sequence[str] | None = None,
    common_limit: int | None = None,
    channels: int | None = None,
    weights: Mapping[str, float] | None = None,
    project_conflicts: bool = Compatible.project_conflicts,
    unit_weight: float = 0.0,
    augment: str | Augment | None = None,
    filter: str | Filter | None = None,
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
        loss: Of each network's own head, as of :func:`~dovetail.train.end_to_end`; shared heads
            have a cross-entropy.
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
        filter: Which rows to learn from, ``"inputs:10"``; each network's before training.
        preprocess: Default: each part's own, else standardisation by its training split.
        seed: Auxiliary weights, adapters, order of batches, augmentation, views.
        options: See :class:`Options`.

    Returns:
        ``fit.fronts`` and ``fit.heads``, which can be joined crosswise; ``fit.networks``;
        ``fit.auxiliaries``; and the record with the accuracy of each recombination on validation.

    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.load import load_task
    >>> from dovetail.tasks.derive import inverted
    >>> digits = load_task("digits")
    >>> nets = [build("mlp", hidden=(32, 32), seed=seed) for seed in (0, 1)]
    >>> fit = compatible(nets, [digits, inverted(digits)], by=("dcc", "iiw"), epochs=8)
    >>> fit.record.recombination > 0.8
    True
    >>> fit.fronts[0].contract.mismatches(fit.heads[1].contract)
    []
    """
    starts, taught = as_parts(models), [tasks] if isinstance(tasks, Task) else list(tasks)
    course = Course("compatible", taught, options, augment=augment, filter=filter, seed=seed)
    Compatible.check({"scheme": scheme})
    by = _ordered(by, starts, taught)
    own, course.identity["own_loss"] = loss_for(loss, taught[0]), loss and named(loss)
    asked, shares = pretext_named(pretext), _shares(weights, unit_weight)
    names = numbered(task.name for task in taught)
    wholes = [
        course.twin(start, task, preprocess) for start, task in zip(starts, taught, strict=True)
    ]
    for whole, task in zip(wholes, taught, strict=True):
        try_once(whole, task)
        if "rp" in by:
            refuse_other_images(asked, whole)
    if course.filter is not None and course.filter.by != "inputs":
        raise SettingsError(
            f"networks that take turns have epochs of one length; say "
            f"{argument('filter', 'inputs:10')}, which chooses rows before training"
        )
    taught = [course.filtered(task) for task in taught]
    networks = cut_networks(wholes, taught, names, at, channels, seed)
    for network in networks:
        network.front.module.to(course.device), network.head.module.to(course.device)
    if "iiw" in by:
        start_alike(networks)
    fixed, frozen = dict(auxiliaries or {}), scheme == "incremental"
    if common is not None and "dcc" in fixed:
        raise SettingsError(
            f"the 'dcc' head of {argument('auxiliaries', ...)} has its classes; leave "
            f"{argument('common', ...)} out"
        )
    if "dcc" not in by and (common is not None or common_limit is not None):
        raise SettingsError(
            f"{argument('common', ...)} and {argument('common_limit', ...)} are about 'dcc', which "
            f"{argument('by', ...)} does not ask for"
        )
    heads = shared_heads(course, by, networks, fixed, common, asked, shares, frozen)
    told_apart = next((a.classes for a in heads if a.name == "dcc"), ())
    if common_limit is not None:
        if common_limit < len(told_apart):
            raise SettingsError(f"common_limit={common_limit} is not one example of each class")
        heads = [a if a.pretext else replace(a, limit=common_limit) for a in heads]
    course.settings |= {
        "by": list(by),
        "scheme": scheme,
        "loss": loss_words(loss, taught[0]),
        "at": [network.at for network in networks],
        "pretext": asked.described() if "rp" in by else None,
        "common": list(told_apart),
        "common_limit": common_limit,
        "auxiliaries": {name: part.digest for name, part in sorted(fixed.items())},
        "channels": channels,
        "weights": shares,
        "project_conflicts": project_conflicts,
        "unit_weight": unit_weight,
        "norms": "batch",  # what exchanged parts use: each stores statistics of its own partner
        "identical_starts": identical_starts(networks),
        "start_digests": [start.digest for start in starts],
    }
    turns = [[network] for network in networks] if frozen else [networks]
    stages = []
    for number, turn in enumerate(turns):
        group = Group(
            turn,
            # From the second stage on, what the first has trained is frozen.
            [replace(a, frozen=a.frozen or number > 0) for a in heads],
            conflicts=project_conflicts,
            unit_weight=unit_weight,
            loss=own,
        )
        rows = group.train_on(
            course,
            # Every stage draws alike: a later call with the heads gives what this stage does.
            seed=derived_seed(seed, "stage", 0),
            label=" and ".join(network.name for network in turn),
            stage=f"network{number + 1}" if len(turns) > 1 else None,
        )
        stages.append(Stage.of(tuple(n.name for n in turn), rows, course.options.patience))
    held = fixed if frozen else {}
    return _finished(course, networks, starts, heads, held, by, scheme, tuple(stages))


def _ordered(by: Sequence[str], starts: Sequence[Part], tasks: Sequence[Task]) -> tuple[str, ...]:
    """The ways in their usual order; an error for what cannot be."""
    wanted = asked_for(by, WAYS, "way to compatibility")
    if not starts or len(starts) != len(tasks):
        raise SettingsError(
            f"each network needs its own task: there are {len(starts)} networks and "
            f"{len(tasks)} tasks"
        )
    for task in tasks:
        if task.kind != "classes":
            raise TaskError(
                f"{task.name!r} is of kind {task.kind!r}; networks are made compatible on classes"
            )
    return wanted


def _shares(weights: Mapping[str, float] | None, unit_weight: float) -> dict[str, float]:
    """The weight of each auxiliary loss."""
    for name, value in {**(weights or {}), "unit_weight": unit_weight}.items():
        if name not in (*AUXILIARIES, "unit_weight"):
            raise SettingsError(f"weights= is about {', '.join(AUXILIARIES)}, not {name!r}")
        if not (isinstance(value, float | int) and 0 <= value < float("inf")):
            raise SettingsError(f"the weight of {name!r} must be a number of at least 0")
    return {name: float((weights or {}).get(name, 1.0)) for name in AUXILIARIES}


# Parts in their space, with origins and measures --------------------------------------------------


def _finished(
    course: Course,
    networks: Sequence[Network],
    starts: Sequence[Part],
    heads: Sequence[Auxiliary],
    held: Mapping[str, Part],
    by: tuple[str, ...],
    scheme: str,
    stages: tuple[Stage, ...],
) -> CompatibleFit:
    """Everything in its space, with where it came from; ``held`` are the heads given as frozen."""
    space = _space(networks[0].at, heads, held)
    record = CompatibleTraining(
        networks=tuple(network.name for network in networks),
        by=by,
        scheme=scheme,
        stages=stages,
        recombined=tuple(tuple(_together(one, other) for other in networks) for one in networks),
        space=space,
        settings=course.settings,
    )
    wholes, fronts, backs = [], [], []
    for number, (network, start) in enumerate(zip(networks, starts, strict=True)):
        measured = record.measured(number)
        origin = course.origin((start, *held.values()), measured, network.task)
        # where nothing was shared, each network has a space of its own
        own = space or f"{network.at}/{digest_of(network.front.module, network.at)[:12]}"
        network.whole.module.eval()  # its layers are, but the modules around them are its own
        wholes.append(network.whole.changed(origin=origin))
        fronts.append(in_space(network.front, own).changed(origin=origin))
        backs.append(in_space(network.head, own, takes=True).changed(origin=origin))
    shared = {}
    for a in heads:
        theirs = space if a.weight else None
        if a.name in held:  # frozen, and so the very part that was given
            head = held[a.name]
            shared[a.name] = head if theirs is None else in_space(head, theirs, takes=True)
        else:
            a.head.module.requires_grad_(True)
            shared[a.name] = in_space(a.head, theirs, takes=True).changed(
                origin=Origin(
                    how="train",
                    task=" and ".join(record.networks),
                    settings=course.settings,
                    measured=record.solved(a.name),
                )
            )
    parts = (*chain.from_iterable(zip(fronts, backs, strict=True)), *shared.values())
    return CompatibleFit(
        parts,
        record,
        wholes[0] if len(wholes) == 1 else None,
        tuple(wholes),
        tuple(fronts),
        tuple(backs),
        shared,
    )


def _space(at: str, heads: Sequence[Auxiliary], held: Mapping[str, Part]) -> str | None:
    """The group's space: that of the frozen heads, or named after the heads that it shares."""
    heads = [a for a in heads if a.weight]  # a loss without weight makes nothing agree
    spaces = [held[a.name].contract.takes[0].space for a in heads if a.name in held]
    known = [space for space in spaces if space is not None]
    return (known[0] if known else named_after(at, heads)) if heads else None


def _together(one: Network, other: Network) -> float | None:
    """A front with a head on the validation images of the front's task, on their common classes."""
    shared = [name for name in one.task.classes if name in other.task.classes]
    if len(shared) < 2 or one.task.size("validation") < 2:
        return None
    task = only_classes(one.task, shared)
    if task.size("validation") < 2:
        return None
    measures = judged(one.front, other.head, task, "batch", split="validation").measures
    return measures.get("masked accuracy", measures["accuracy"])
