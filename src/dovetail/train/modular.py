r"""Training in modules: each one towards a proxy of its own, with no gradient between them.

Cut after :math:`F_1`, a network ends in a linear model on the unit-length features
:math:`\Phi(F_1(x))`.  If the kernel :math:`k(u, v) = \langle\Phi(F_1(u)), \Phi(F_1(v))\rangle` is
least for every pair of different classes, some output module reaches the least loss of the whole.
So the body is trained to push such pairs apart (:class:`~dovetail.objectives.pairwise.Pairwise`),
then frozen, and the output module is trained on what it gives.  The body is told of two examples
only whether they are alike: of which class one is, only the output module learns.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from torch import Tensor, nn

from dovetail.core.errors import SettingsError, TaskError, argument
from dovetail.objectives.pairwise import Pairwise
from dovetail.parts.contract import Preprocess
from dovetail.parts.cutting import CutPoint
from dovetail.parts.modules import digest_of
from dovetail.parts.part import Part, as_part
from dovetail.settings.train import Modular
from dovetail.tasks.augment import Augment
from dovetail.tasks.derive import few
from dovetail.tasks.task import Task
from dovetail.train.filtering import Filter
from dovetail.train.fit import WATCHED, Fit, ModuleHistory, Row
from dovetail.train.frame import HEAD, Course, Stages, trainable, try_once
from dovetail.train.options import LoopOptions, named
from dovetail.train.pair_batches import Body, Objective, PairSupervision
from dovetail.train.sifting import Sight
from dovetail.train.supervision import Loss, batches_behind, loss_for, validation_behind

_HEAD_STEPS = 300
"""An output module takes at least so many steps, however few examples it has."""


def modular(
    model: Part | nn.Module,
    task: Task,
    *,
    objective: str | Objective = Modular.objective,
    at: str | CutPoint | Sequence[str | CutPoint] | None = None,
    labels_per_class: int | None = None,
    loss: str | Loss = Modular.loss,
    head_epochs: int | None = None,
    head_task: Task | None = None,
    supervision: str = Modular.supervision,
    pairs: int | None = None,
    unlabelled: Tensor | Task | None = None,
    augment: str | Augment | None = None,
    filter: str | Filter | None = None,
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
        loss: Of the output module: ``"cross-entropy"``, ``"mse"``, ``"hinge"``, one of
            :mod:`~dovetail.objectives.amplified` by name or as it is, or a function of scores and
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
        filter: Which rows to learn from; see :class:`~dovetail.train.filtering.Filter`.
            ``"inputs:10"`` chooses for all modules; others for the output module, which alone is
            told of classes.
        preprocess: Default: the part's own, else standardisation by the training split.
        seed: Order of batches, pairs, labelled examples, augmentation, dropout.
        options: See :class:`Options`; each module is trained with them.  ``clip`` is 1 unless said.

    Returns:
        ``fit.parts``, the modules, which fit each other; ``fit.part``, the whole network; and the
        record.

    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.load import load_task
    >>> digits = load_task("digits")
    >>> fit = modular(build("mlp", hidden=(64,)), digits, epochs=5, labels_per_class=1)
    >>> fit.record.final["validation accuracy"] > 0.8
    True
    """
    options.setdefault("clip", Modular.clip)
    course = Course("modular", task, options, augment=augment, filter=filter, seed=seed)
    chosen, start = course.options, as_part(model)
    told = PairSupervision.of(task, supervision, pairs, unlabelled, course.augment, seed)
    labelled = _labelled(task, head_task, labels_per_class, seed)
    Modular.check({"loss": loss, "head_epochs": head_epochs})
    own = loss_for(loss, labelled)
    whole = course.twin(start, task, preprocess)
    whole = whole.changed(
        contract=replace(whole.contract, classes=labelled.classes, kind="classes")
    )
    if course.filter is not None and course.filter.by == "inputs":
        if told.by == "pairs":
            raise SettingsError(
                f"the body is told of pairs only, and {argument('filter', 'inputs:...')} would "
                f"read all labels; say {argument('supervision', 'labels')}"
            )
        whole_split, task = task, course.filtered(task)
        labelled = task if labelled is whole_split else labelled
    whole.module.eval()
    try_once(whole, labelled)
    stages = Stages(course, whole, at)
    if chosen.batch_size < 2:
        raise SettingsError("batch_size must be at least 2: one example makes no pair")
    # All at once: an objective that is undefined somewhere fails before any epoch.
    *bodies, head = stages.modules
    objectives = [objective_for(objective, body.contract.gives[0].activation) for body in bodies]
    words = objective_words(objective)
    head_words = loss if isinstance(loss, str) else named(loss)
    course.settings |= {
        "objective": words,
        "at": list(stages.points),
        **told.described(),
        "labels_per_class": labels_per_class,
        "loss": head_words,
        "head_epochs": head_epochs,
        "labels_fingerprint": labelled.fingerprint,
        "start_digest": start.digest,
    }
    histories = []
    for number, (module, proxy) in enumerate(zip(bodies, objectives, strict=True)):
        name = f"module{number + 1}"
        if not trainable(module.module):
            histories.append(ModuleHistory(name, "frozen"))
            continue
        before, own_seed = stages.before(number), stages.seed_of(name)
        body = Body(module, before, task, told, proxy, chosen.batch_size, own_seed)
        history = stages.run(
            name, words, module.module, body.batches(), body.step, body.validation()
        )
        histories.append(replace(history, rows=tuple(map(_as_proxy, history.rows))))

    before, own_seed = stages.before(len(bodies)), stages.seed_of(HEAD)
    batches = batches_behind(before, labelled, course.augment, chosen.batch_size, own_seed)
    enough = max(chosen.epochs, math.ceil(_HEAD_STEPS / len(batches)))

    options_of_head = replace(
        chosen,
        epochs=enough if head_epochs is None else head_epochs,
        # The labels of the validation split would be more than the few that were asked for.
        patience=chosen.patience if labels_per_class is None else None,
    )
    targets = labelled.targets.index_select(0, labelled.indices("train"))
    sifted = course.sifted(batches, targets, Sight(head.module, own))
    step = course.descent(head, own)
    validate = validation_behind(before, head, whole, labelled, own)
    histories.append(
        stages.run(HEAD, head_words, head.module, sifted, step, validate, options_of_head)
    )
    return stages.fit(start, histories)


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


def _as_proxy(row: Row) -> Row:
    """A body's row: what the loop minimises is the proxy with its sign turned."""
    words = {"loss": "proxy", WATCHED: "validation proxy"}
    return {words.get(k, k): -value if k in words else value for k, value in row.items()}


def objective_for(choice: str | Objective, activation: str) -> Objective:
    """What a module's output is judged by: one of ours by name, or a user's own.

    >>> objective_for("al", "tanh")
    Pairwise('al', activation='tanh')
    >>> objective_for(lambda features, labels: 0, "relu")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.SettingsError: an objective is called as objective(features, same=..., ...
    """
    if isinstance(choice, str):
        return Pairwise(choice, activation)
    called = choice.forward if isinstance(choice, nn.Module) else choice
    try:
        inspect.signature(called).bind(None, same=None, different=None)
    except (TypeError, ValueError):
        raise SettingsError(
            "an objective is called as objective(features, same=..., different=...) with two "
            f"boolean masks [n, n]; {objective_words(choice)} does not take that"
        ) from None
    return copy.deepcopy(choice) if isinstance(choice, nn.Module) else choice


def objective_words(choice: str | Objective) -> str:
    """An objective's name, the same in every process.

    >>> objective_words("al"), objective_words(Pairwise("cts"))
    ('al', "Pairwise('cts', activation='relu')")
    """
    if isinstance(choice, str):
        return choice
    if isinstance(choice, nn.Module):
        weights = f" {digest_of(choice)[:8]}" if choice.state_dict() else ""
        return f"{choice!r}{weights}"
    return named(choice)
