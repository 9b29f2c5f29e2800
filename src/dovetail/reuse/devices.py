r"""One head for many devices: extractors of different architectures that one head follows.

Each extractor :math:`f_d` ends in a 1×1 map :math:`A_d` to a common number of channels.  All of
them and the head :math:`h` are trained together, a batch of each in turn:

.. math:: \min_{f, A, h} \sum_d \frac1n \sum_i \ell\big(h(A_d f_d(x_i)), y_i\big)

The head solves the task and is what makes the extractors compatible.  Where they give maps of
different sizes, a head that pools takes them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Unpack

import torch
from torch import nn

from dovetail.core.declared import Column, figure, table, text
from dovetail.core.errors import ContractError, SettingsError, TaskError, argument
from dovetail.core.seeds import derived_seed
from dovetail.core.views import Cell
from dovetail.core.words import numbered
from dovetail.measure.forward import outputs_of
from dovetail.measure.joined import accuracy
from dovetail.objectives.pretext import Pretext
from dovetail.objectives.pretexts import pretext_named
from dovetail.parts.contract import Preprocess, Shape, shown_shape
from dovetail.parts.heads import head_like
from dovetail.parts.joining import join
from dovetail.parts.modules import evaluating
from dovetail.parts.part import Part
from dovetail.reuse.judging import StageTraining
from dovetail.settings.reuse import Devices
from dovetail.tasks.augment import Augment
from dovetail.tasks.task import Task
from dovetail.train.compatible_record import OWN, CompatibleFit, Stage
from dovetail.train.frame import Course, as_parts
from dovetail.train.group import Auxiliary, Group, Member
from dovetail.train.group_parts import (
    AUXILIARIES,
    At,
    Network,
    asked_for,
    cut_networks,
    cut_places,
    in_space,
    named_after,
    why_stuck,
)
from dovetail.train.options import LoopOptions
from dovetail.train.self_supervised import refuse_other_images


@dataclass(frozen=True, kw_only=True)
class DeviceTraining(
    StageTraining, kind="device-training", title="One head on {task} for {stage.together}"
):
    """Extractors of different architectures that one head was trained with.

    ``accuracy`` is that of each with the head on the validation split, with batch statistics;
    ``sizes`` counts the weights of each extractor.

    >>> DeviceTraining(
    ...     task="digits",
    ...     by=("dcc",),
    ...     stage=Stage(("phone",), ({"epoch": 1, "loss": 0.5},)),
    ...     accuracy={"phone": 0.9},
    ...     sizes={"phone": 900},
    ...     space="shared/1f",
    ... )
    DeviceTraining(one head for phone on digits: validation accuracy 0.900)
    """

    by: tuple[str, ...]
    accuracy: dict[str, float]
    sizes: dict[str, int]
    space: str

    @property
    def reached(self) -> tuple[tuple[Cell, ...], ...]:
        """For each extractor its size, and its accuracy with the head and with the pretext's."""
        return tuple(
            (name, self.sizes[name], self.accuracy.get(name), self.final.get(f"{name} rp {OWN}"))
            for name in self.stage.networks
        )

    shows = (
        text(
            "{stage.networks!n} extractors and one head, {rows!n} epochs in {stage.seconds:.1f} s. "
            "All of them give the space {space}."
        ),
        table(
            "reached",
            Column("extractor", 0),
            Column("weights", 1, ","),
            Column("with the head", 2, ".1%"),
            Column("pretext", 3, ".1%", when=lambda training: "rp" in training.by),
            caption="Accuracy on the validation split, with batch statistics",
        ),
        figure(
            "line",
            "Accuracy on validation, with stored statistics",
            "rows",
            "epoch",
            lambda training: {name: f"{name} dcc {OWN}" for name in training.stage.networks},
            "epoch",
        ),
    )

    def __repr__(self) -> str:
        accuracies = self.accuracy.values()
        reached = f"validation accuracy {fmean(accuracies):.3f}" if accuracies else "trained"
        return f"DeviceTraining(one head for {self.stage.together} on {self.task}: {reached})"


def shared_head(
    models: Sequence[Part | nn.Module],
    task: Task,
    *,
    at: At,
    channels: int = Devices.channels,
    head: Part | None = None,
    by: Sequence[str] = Devices.by,
    names: Sequence[str] | None = None,
    pretext: str | Pretext = Devices.pretext,
    augment: str | Augment | None = None,
    preprocess: Preprocess | None = None,
    seed: int = 0,
    **options: Unpack[LoopOptions],
) -> CompatibleFit:
    """Train copies of several extractors, of any architectures, with one head for all.

    Args:
        models: Networks whose fronts become the extractors; their weights are the starting points.
        task: With classes.
        at: Where each extractor ends: a point for each model, or one for all.
        channels: What an adapter behind each extractor maps its channels to.
        head: What follows them, to be trained on from its weights: it takes ``channels`` channels
            and tells the task's classes apart (see :func:`~dovetail.parts.heads.fresh_head`).  By
            default the rest of the first model, behind an adapter of its own.
        by: ``("dcc",)``, the head alone; with ``"rp"`` also a shared head for a pretext, which
            later lets an extractor move without leaving the others.
        names: Of the devices; by default what the models are.
        pretext: For ``"rp"``: ``"rotation"``, ``"jigsaw"``, ``"views"``, or one's own.
        augment: Such as ``"flip,shift:2"``.
        preprocess: Default: each part's own, else standardisation by the training split.
        seed: Adapters, the pretext's head, order of batches, augmentation, views.
        options: See :class:`Options`.

    Returns:
        ``fit.fronts`` in one space; ``fit.heads``, the one head; ``fit.networks``, each extractor
        with the head and batch statistics; ``fit.auxiliaries``; and the record.

    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.load import load_task
    >>> nets = [build("mlp", hidden=(48,)), build("mlp", hidden=(24,), seed=1)]
    >>> digits = load_task("digits")
    >>> fit = shared_head(nets, digits, at="hidden1", channels=16, lr=0.05, epochs=4)
    >>> min(fit.record.accuracy.values()) > 0.85
    True
    >>> [front.contract.mismatches(fit.heads[0].contract) for front in fit.fronts]
    [[], []]
    """
    starts = as_parts(models)
    course = Course("shared-head", task, options, augment=augment, seed=seed)
    by = _ordered(by, starts, task, channels)
    called = _device_names(starts, names)
    networks = _extractors(course, starts, task, called, at, channels, preprocess)
    shared = _one_head(course, head, networks, task)
    auxiliaries, question = [Auxiliary("dcc", shared)], pretext_named(pretext)
    if "rp" in by:
        for network in networks:
            refuse_other_images(question, network.front)
        drawn = derived_seed(seed, "auxiliary", "rp")
        asking = head_like(shared, question.answers or question.outputs, seed=drawn)
        asking.module.to(course.device)
        auxiliaries.append(Auxiliary("rp", asking, question))
    course.settings |= {
        "by": list(by),
        "at": [network.at for network in networks],
        "channels": channels,
        "norms": "batch",  # the head stores a mixture of all extractors' statistics
        "head": None if head is None else head.digest,
        "pretext": question.described() if "rp" in by else None,
        "start_digests": [start.digest for start in starts],
    }
    group = Group([Member(n.name, n.front, None, task) for n in networks], auxiliaries)
    rows = group.train_on(course, seed=seed, label=f"one head for {len(networks)}")
    stage = Stage.of(tuple(called), rows, course.options.patience)
    return _finished(course, networks, starts, auxiliaries, task, by, stage)


def _ordered(
    by: Sequence[str], starts: Sequence[Part], task: Task, channels: int
) -> tuple[str, ...]:
    """The ways in their usual order; an error for what cannot be."""
    wanted = asked_for(by, AUXILIARIES, "way to share a head")
    if "dcc" not in wanted:
        raise SettingsError(
            f"the shared head tells the classes apart: {argument('by', ...)} must have 'dcc'"
        )
    if not starts:
        raise SettingsError("there are no models to share a head")
    if task.kind != "classes":
        raise TaskError(f"{task.name!r} is of kind {task.kind!r}; a head is shared for classes")
    Devices.check({"channels": channels})
    return wanted


def _device_names(starts: Sequence[Part], names: Sequence[str] | None) -> list[str]:
    if names is None:
        return numbered(start.described for start in starts)
    own = [names] if isinstance(names, str) else [str(name) for name in names]
    if len(own) != len(starts) or len(set(own)) < len(own):
        raise SettingsError(
            f"{argument('names', ...)} must give each of {len(starts)} models a name of its own, "
            f"got {', '.join(own)}"
        )
    return own


def _extractors(
    course: Course,
    starts: Sequence[Part],
    task: Task,
    names: Sequence[str],
    at: At,
    channels: int,
    preprocess: Preprocess | None,
) -> list[Network]:
    """Copies of the models, each cut, with an adapter behind the front."""
    few = task.inputs[task.indices("train")[:2]]
    wholes = [course.twin(start, task, preprocess) for start in starts]
    networks = []
    for number, (network_of, name, place) in enumerate(
        zip(wholes, names, cut_places(wholes, at), strict=True)
    ):
        drawn = derived_seed(course.seed, "device", number)
        (network,) = cut_networks([network_of], [task], [name], place, channels, drawn)
        network.front.module.to(course.device), network.head.module.to(course.device)
        outputs_of(network.front, few)  # fail before the first epoch
        networks.append(network)
    return networks


def _one_head(course: Course, shared: Part | None, networks: Sequence[Network], task: Task) -> Part:
    """The head that all share: it takes what every extractor gives and knows the classes."""
    head = networks[0].head
    if shared is not None:
        head = course.copied(shared)
        head.module.requires_grad_(True)
    ports = [network.front.contract.gives[0] for network in networks]
    shapes = [port.shape or () for port in ports]
    _refuse_other_channels(head, shapes[0])
    known = head.contract.classes or task.classes
    for network, shape in zip(networks, shapes, strict=True):
        _try(head, network.name, shape, known)
    if set(known) != set(task.classes):
        raise ContractError(
            f"the head tells {', '.join(known[:8])} apart, {task.name!r} has "
            f"{', '.join(task.classes[:8])}; make one with dovetail.parts.heads.fresh_head"
        )
    alike = len({shape[1:] for shape in shapes}) == 1
    sides = shapes[0][1:] if alike else tuple(None for _ in shapes[0][1:])
    port = replace(ports[0], shape=(shapes[0][0], *sides), space=None)
    return head.changed(
        contract=replace(head.contract, takes=(port,), classes=known, kind="classes")
    )


def _refuse_other_channels(head: Part, shape: Shape) -> None:
    takes = head.contract.takes
    if len(takes) != 1:
        raise ContractError(f"a head that takes {len(takes)} tensors cannot be shared")
    wanted = takes[0].shape
    if wanted is not None and (len(wanted) != len(shape) or wanted[0] not in (None, shape[0])):
        raise ContractError(
            f"the head takes {shown_shape(wanted)}, the extractors give {shown_shape(shape)}; say "
            f"{argument('channels', wanted[0] if wanted else 1)}, and cut where the tensors are of "
            "one kind"
        )


def _try(head: Part, name: str, shape: Shape, classes: Sequence[str]) -> None:
    """Refuse a head that does not give a number a class for what an extractor gives."""
    if reason := why_stuck(head, shape):
        raise ContractError(
            f"the extractor of {name!r} gives {shown_shape(shape)}, which the head cannot take "
            f"({reason}); cut where the maps have one size, or take a head that pools"
        )
    with evaluating(head.module):
        output = head(torch.zeros(2, *(side or 1 for side in shape), device=head.device))
    if output.shape != (2, len(classes)):
        raise ContractError(
            f"the head gives {shown_shape(tuple(output.shape[1:]))} numbers an example for "
            f"{len(classes)} classes; build it with {argument('set.classes', len(classes))}"
        )


def _finished(
    course: Course,
    networks: Sequence[Network],
    starts: Sequence[Part],
    auxiliaries: Sequence[Auxiliary],
    task: Task,
    by: tuple[str, ...],
    stage: Stage,
) -> CompatibleFit:
    """Everything in one space, with where it came from and what it reached."""
    space = named_after("shared", auxiliaries)
    fronts = [in_space(network.front, space) for network in networks]
    heads = {a.name: in_space(a.head, space, takes=True) for a in auxiliaries}
    head = heads.pop("dcc")
    reached = {}
    if task.size("validation") > 1:  # one has no statistics of a batch
        reached = {
            network.name: accuracy(front, head, task, "batch", split="validation")
            for network, front in zip(networks, fronts, strict=True)
        }
    record = DeviceTraining(
        task=task.name,
        by=by,
        stage=stage,
        accuracy=reached,
        sizes={n.name: sum(p.numel() for p in n.front.module.parameters()) for n in networks},
        space=space,
        settings=course.settings,
    )

    def traced(part: Part, parents: Sequence[Part], values: Sequence[float]) -> Part:
        return part.changed(origin=course.origin(parents, {OWN: fmean(values)} if values else {}))

    fronts = [
        traced(front, [start], [reached[network.name]] if reached else [])
        for front, start, network in zip(fronts, starts, networks, strict=True)
    ]
    head = traced(head, [], list(reached.values()))
    rest = {
        name: traced(part, [], [stage.final[f"{each} {name} {OWN}"] for each in reached])
        for name, part in heads.items()
    }
    wholes = [join(front, head, norms="batch").changed(origin=front.origin) for front in fronts]
    return CompatibleFit(
        (*fronts, head, *rest.values()),
        record,
        wholes[0] if len(wholes) == 1 else None,
        tuple(wholes),
        tuple(fronts),
        (head,),
        rest,
    )
