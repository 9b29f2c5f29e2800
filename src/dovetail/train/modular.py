r"""Training in modules: each one towards a proxy of its own, with no gradient between them.

Cut after :math:`F_1`, a network ends in a linear model on the unit-length features
:math:`\Phi(F_1(x))`.  If the kernel :math:`k(u, v) = \langle\Phi(F_1(u)), \Phi(F_1(v))\rangle` is
least for every pair of different classes, some output module reaches the least loss of the whole.
So the body is trained to push such pairs apart (:class:`~dovetail.objectives.pairwise.Pairwise`),
then frozen, and the output module is trained on what it gives.  The body is told of two examples
only whether they are alike: of which class one is, only the output module learns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, Unpack

from torch import Tensor, nn

from dovetail.core.device import choose_device
from dovetail.core.errors import CutError, SettingsError, TaskError, TrainingError
from dovetail.parts.contract import Preprocess
from dovetail.parts.cutting import CutPoint, cut_all, output_point
from dovetail.parts.part import Part, as_part
from dovetail.tasks.augment import Augment
from dovetail.tasks.batches import Batches
from dovetail.tasks.derive import few
from dovetail.tasks.task import Task
from dovetail.train.body import Body, Supervision, objective_for, objective_words
from dovetail.train.fit import Fit
from dovetail.train.modular_record import ModularTraining
from dovetail.train.module_inputs import Supply, below
from dovetail.train.options import LoopOptions, Options, named
from dovetail.train.stages import HEAD, Stages
from dovetail.train.supervision import (
    Loss,
    Prepared,
    augmentation,
    finished,
    starting_facts,
    try_once,
    twin,
    validation,
)
from dovetail.train.supervision import head_loss as loss_named

__all__ = ["chosen_points", "modular", "refuse_unfit", "trainable"]

_CLIP = 1.0
"""The default length of gradients.  An objective that does not see how long features are has a
gradient that grows as they shrink, like 1/length, and fresh networks have short features."""

_HEAD_STEPS = 300
"""An output module takes at least so many steps, however few examples it has."""


def modular(
    model: Part | nn.Module,
    task: Task,
    *,
    objective: str | Callable[..., Tensor] = "al",
    at: str | CutPoint | Sequence[str | CutPoint] | None = None,
    labels_per_class: int | None = None,
    head_loss: str | Loss = "cross-entropy",
    head_epochs: int | None = None,
    head_task: Task | None = None,
    supervision: Literal["labels", "pairs"] = "labels",
    pairs: int | None = None,
    unlabelled: Tensor | Task | None = None,
    augment: str | Augment | None = None,
    preprocess: Preprocess | None = None,
    seed: int = 0,
    **options: Unpack[LoopOptions],
) -> Fit:
    """Train a copy of ``model`` module by module, from the input up.

    Args:
        model: Its weights are the starting point; it is left as it is.  A module whose weights are
            all frozen is not trained again.
        task: Of kind classes or pairs.  The body is told no more of it than which examples are
            alike and which differ.
        objective: A kind of :class:`~dovetail.objectives.pairwise.Pairwise`; or a module or
            function of ``(features, same=, different=)``, higher is better.
        at: Where to cut; by default before the last layer that has weights.
        labels_per_class: How many labelled examples the output module sees of each class.
        head_loss: ``"cross-entropy"``, ``"mse"`` or ``"hinge"``, or a function of scores and
            targets, lower is better.
        head_epochs: For the output module; by default as many as for the body, and 300 steps at
            least.
        head_task: Where the output module's labels come from, if not from ``task``.
        supervision: What the body is told: ``"labels"``, of every two examples of a batch whether
            they are alike; ``"pairs"``, only of drawn pairs (of a task of pairs, the given ones).
        pairs: How many pairs to draw; by default as many as there are examples.
        unlabelled: Further inputs, or a task that has some: each batch gets some of them in two
            augmented views that are alike.  Needs ``augment``.
        augment: Such as ``"flip,shift:2"``.
        preprocess: Default: the part's own, else standardisation by the training split.
        seed: Order of batches, pairs, labelled examples, augmentation, dropout.
        options: See :class:`Options`; each module is trained with them.  ``clip`` is 1 unless said.

    Returns:
        ``fit.parts``, the modules, which fit each other; ``fit.part``, the whole network; and the
        record.

    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.builtin import load_task
    >>> digits = load_task("digits")
    >>> fit = modular(build("mlp", hidden=(64,)), digits, epochs=5, labels_per_class=1)
    >>> fit.record.final["validation accuracy"] > 0.8
    True
    """
    options.setdefault("clip", _CLIP)
    if not isinstance(task, Task):
        raise SettingsError(f"task must be a Task, got {type(task).__name__}; see dt.load_task")
    start, chosen = as_part(model), Options(**options)
    told = Supervision.of(task, supervision, pairs, unlabelled, augmentation(augment), seed)
    labelled = _labelled(task, head_task, labels_per_class, seed)
    loss = loss_named(head_loss)
    if head_epochs is not None and head_epochs < 1:
        raise SettingsError(f"head_epochs must be at least 1, got {head_epochs}")
    device = choose_device(chosen.device)
    whole = twin(start, task, preprocess, device)
    whole = whole.changed(
        contract=replace(whole.contract, classes=labelled.classes, kind="classes")
    )
    whole.module.eval()
    try_once(whole, labelled)
    points = chosen_points(whole, at)
    modules = cut_all(whole, at=points)
    refuse_unfit(modules, points)
    if chosen.batch_size < 2:
        raise SettingsError("batch_size must be at least 2: one example makes no pair")
    for module in modules[:-1]:  # an objective that is undefined somewhere fails before any epoch
        objective_for(objective, module.contract.gives[0].activation)
    settings = {
        "how": "modular",
        "objective": objective_words(objective),
        "at": list(points),
        **told.described(),
        "labels_per_class": labels_per_class,
        "head_loss": head_loss if isinstance(head_loss, str) else named(head_loss),
        "head_epochs": head_epochs,
        "seed": seed,
        "task_fingerprint": task.fingerprint,
        "labels_fingerprint": labelled.fingerprint,
        "start_digest": start.digest,
        "device": str(device),
        **chosen.described(),
    }
    identity = {"preprocess": whole.contract.preprocess, **starting_facts(start), **settings}
    stages = Stages(whole.module, chosen, seed, identity, task.name)
    for number, module in enumerate(modules[:-1]):
        name = f"module{number + 1}"
        if not trainable(module.module):
            stages.skip(name)
            continue
        body = Body(
            module,
            task,
            told,
            objective,
            batch_size=chosen.batch_size,
            seed=stages.seed_of(name),
            device=device,
        )
        before = below(whole, points[number - 1] if number else None)
        stages.run(
            name,
            settings["objective"],
            module.module,
            body.batches(before),
            body.step,
            body.validation(before),
            epochs=chosen.epochs,
            patience=chosen.patience,
        )

    head, before = modules[-1], below(whole, points[-1])
    batches = _batches(before, labelled, told.augment, chosen.batch_size, stages.seed_of(HEAD))
    enough = max(chosen.epochs, math.ceil(_HEAD_STEPS / len(batches)))

    def step(batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        return loss(head(inputs.to(device)), targets.to(device))

    stages.run(
        HEAD,
        settings["head_loss"],
        head.module,
        batches,
        step,
        _validation(before, whole, head, labelled, loss),
        epochs=enough if head_epochs is None else head_epochs,
        # The labels of the validation split would be more than the few that were asked for.
        patience=chosen.patience if labels_per_class is None else None,
    )
    record = ModularTraining(
        part=whole.described, task=task.name, modules=tuple(stages.done), settings=settings
    )
    trained = finished(whole, start, task, record.final, settings)
    return Fit(cut_all(trained, at=points), record, trained)


def _labelled(task: Task, head_task: Task | None, per_class: int | None, seed: int) -> Task:
    """The examples that the output module learns the classes from."""
    labelled = task if head_task is None else head_task
    if labelled.kind != "classes":
        raise TaskError(
            f"{labelled.name!r} is of kind {labelled.kind!r}, and the output module needs classes: "
            "give it a task with a few labelled examples, as head_task="
        )
    if labelled.input_shape != task.input_shape:
        raise TaskError(
            f"the inputs of {labelled.name!r} are {list(labelled.input_shape)}, "
            f"those of {task.name!r} {list(task.input_shape)}"
        )
    return labelled if per_class is None else few(labelled, per_class, seed)


def _batches(
    before: Part, task: Task, augment: Augment | None, batch_size: int, seed: int
) -> Batches | Prepared:
    """Labelled batches for the output module, through the frozen body."""
    rows = task.indices("train")
    supply = Supply(before, task.inputs, rows, augment=augment)
    if supply.kept is not None:
        return Batches(supply.kept, task.targets.index_select(0, rows), batch_size, seed=seed)
    raw = Batches(task.inputs, task.targets, batch_size, seed=seed, augment=augment, rows=rows)
    return Prepared(raw, supply.ready)


def _validation(
    before: Part, whole: Part, head: Part, task: Task, loss: Loss
) -> Callable[[], dict[str, float]] | None:
    """As for the whole network, but what the frozen body gives is computed once if it fits."""
    rows = task.indices("validation")
    kept = Supply(before, task.inputs, rows).kept if len(rows) else None
    return validation(whole if kept is None else head, task, loss, inputs=kept)


# Where to cut a network that is to be trained in modules ------------------------------------------


At = str | CutPoint | Sequence[str | CutPoint]


def chosen_points(whole: Part, at: At | None) -> tuple[str, ...]:
    """The names of the points to cut at; without any said, the one before the output layer.

    >>> from dovetail.parts.part import build
    >>> chosen_points(build("lenet5"), None), chosen_points(build("lenet5"), ["conv2", "fc2"])
    (('fc2',), ('conv2', 'fc2'))
    """
    if at is None:
        return (output_point(whole.module),)
    named = (at,) if isinstance(at, str | CutPoint) else tuple(at)
    if not named:
        raise CutError("at= names no point; leave it out to cut before the output layer")
    return tuple(str(place) for place in named)


def trainable(module: nn.Module) -> bool:
    """Whether there is a weight to train.

    >>> trainable(nn.Linear(1, 1)), trainable(nn.ReLU())
    (True, False)
    """
    return any(p.requires_grad for p in module.parameters())


def refuse_unfit(modules: Sequence[Part], at: Sequence[str]) -> None:
    """Refuse modules that hand over several tensors, or that leave nothing to train."""
    for module, place in zip(modules, at, strict=False):
        if len(module.contract.gives) > 1:
            raise CutError(
                f"{len(module.contract.gives)} tensors cross at {place!r}, and a kernel is of one; "
                "take a point that dt.cut_points lists"
            )
    if not trainable(modules[-1].module):
        raise TrainingError(
            f"behind {at[-1]!r} there is no weight to train; the output module needs one"
        )
