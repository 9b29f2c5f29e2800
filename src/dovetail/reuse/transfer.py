r"""Faster transfer: one ready head tried behind many extractors.

To reuse an extractor for a task, one usually puts a fresh head behind it and fine-tunes the whole.
With a head for the task that is already trained in the extractors' space, the benefit of each
extractor shows at once, without any step, and a few steps capitalise on it:

.. math:: A_f(t) = \text{accuracy of } (h \circ f) \text{ after } t \text{ steps}, \qquad
    f^* = \arg\max_f A_f(T) \text{ on validation.}
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, repeat
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.core.device import choose_device
from dovetail.core.errors import ContractError, SettingsError, TaskError, nearest
from dovetail.measure.joined import accuracy, joined
from dovetail.measure.preprocess import preprocess_for
from dovetail.parts.heads import head_like
from dovetail.parts.joining import join
from dovetail.parts.norms import Norms
from dovetail.parts.origin import Origin
from dovetail.parts.part import Part
from dovetail.reuse.transfer_record import READY, TransferFit, TransferTrial, Tried
from dovetail.tasks.augment import Augment
from dovetail.tasks.task import Split, Task
from dovetail.train.loop import run_loop
from dovetail.train.options import LoopOptions, Options
from dovetail.train.supervision import augmentation, labelled_batches

__all__ = ["transfer"]

REINITIALISED = "reinitialised"

_LR = 0.01
"""The learning rate of fine-tuning: what is ready should be improved on, not overwritten."""


def transfer(
    fronts: Mapping[str, Part],
    head: Part,
    task: Task,
    *,
    steps: Sequence[int] | None = None,
    against: Sequence[str] = (REINITIALISED,),
    others: Mapping[str, Part] | None = None,
    norms: Norms = "batch",
    augment: str | Augment | None = None,
    seed: int = 0,
    **options: Unpack[LoopOptions],
) -> TransferFit:
    """Try copies of extractors with a ready head: at once, and fine-tuned for a while.

    Every pair is fine-tuned on the same batches in the same order, extractor and head together.

    Args:
        fronts: The candidates by name.  One that is not of the head's space is tried too; the
            record says so.
        head: Trained for the task, in the space that the candidates give.
        task: With classes that the head knows by name.
        steps: After how many steps to measure on validation, beside the beginning and the end; by
            default 1, 3, 10, 30, 100 and so on.  Those beyond the end are left out.
        against: What else to put behind each candidate: ``"reinitialised"``, the same head drawn
            anew.  An empty tuple for nothing.
        others: Further heads by name, such as one that was trained on its own.
        norms: Statistics of the batch norms wherever accuracy is measured.
        augment: Such as ``"flip,shift:2"``.
        seed: The fresh head, order of batches, augmentation, dropout.
        options: See :class:`Options`.  Unless said ``epochs`` is 1 and ``lr`` 0.01; of 0 epochs
            comes what is there at once, and no more.

    Returns:
        ``fit.networks``, each candidate fine-tuned with the ready head; ``fit.part``, the one that
        is best on validation; and the record, with curves, an order and accuracies on test.

    >>> from dovetail.parts.cutting import cut
    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.builtin import load_task
    >>> from dovetail.train.end_to_end import end_to_end
    >>> digits = load_task("digits")
    >>> net = end_to_end(build("mlp", hidden=(64, 64)), digits, epochs=4).part
    >>> front, head = cut(net, at="hidden1")
    >>> stranger, _ = cut(build("mlp", hidden=(64, 64), seed=1), at="hidden1")
    >>> trial = transfer({"own": front, "stranger": stranger}, head, digits).record
    >>> trial.chosen, trial.of("own").direct > 0.9 > 0.3 > trial.of("stranger").direct
    ('own', True)
    """
    candidates, heads = _tried(fronts, head, against, others, seed)
    epochs, chosen = _options(options)
    changes = augmentation(augment)
    device = choose_device(chosen.device)
    _refuse_misfits(candidates, heads, task)
    settings: dict[str, Any] = {
        "how": "transfer",
        "norms": norms,
        "augment": None if changes is None else str(changes),
        "seed": seed,
        "task_fingerprint": task.fingerprint,
        "front_digests": {name: part.digest for name, part in candidates.items()},
        "head_digests": {name: part.digest for name, part in heads.items()},
        "device": str(device),
        **chosen.described(),
        "epochs": epochs,
    }
    how = _How(task, norms, chosen, epochs, steps, changes, device, seed)
    tried, networks = [], {}
    for name, front in candidates.items():
        for other, behind in heads.items():
            row, pair = _trial(name, front, other, behind, how)
            tried.append(row)
            if other == READY:
                networks[name] = _finished(pair, (front, behind), row, how, settings)
    names = head.contract.classes or task.classes
    record = TransferTrial(
        task=task.name, chance=1 / len(names), tried=tuple(tried), settings=settings
    )
    return TransferFit(tuple(networks.values()), record, networks[record.chosen], networks)


@dataclass(frozen=True)
class _How:
    """What is the same for every pair."""

    task: Task
    norms: Norms
    options: Options
    epochs: int
    steps: Sequence[int] | None
    augment: Augment | None
    device: torch.device
    seed: int


class _Curve:
    """Accuracies on validation, measured as the steps go by."""

    def __init__(self, measure: Callable[[], float], steps: Sequence[int]) -> None:
        self._measure, self._wanted = measure, {0, *steps}
        self.done = 0
        self.points: dict[int, float] = {}

    def before_step(self) -> None:
        if self.done in self._wanted:
            self.points[self.done] = self._measure()
        self.done += 1

    def close(self) -> None:
        """The last point: what came of all steps."""
        self.points[self.done] = self._measure()


def _trial(
    name: str, front: Part, other: str, head: Part, how: _How
) -> tuple[Tried, tuple[Part, Part]]:
    """Fine-tune copies of a front and a head, measuring on the way."""
    fits = not front.contract.mismatches(head.contract)
    front, head = _copied(front, how.task, how.device), _copied(head, None, how.device)

    def on(split: Split) -> float:
        return accuracy(front, head, how.task, how.norms, split=split, seed=how.seed)

    def on_test() -> tuple[float, ...]:
        return (on("test"),) if how.task.size("test") else ()

    before = on_test()
    curve = _Curve(lambda: on("validation"), ())
    if how.epochs:
        curve = _tune(front, head, lambda: on("validation"), how)
    curve.close()
    steps = tuple(curve.points)
    test = before + (on_test() if how.epochs else ())
    found = tuple(curve.points.values())
    return Tried(name, other, steps, found, test, fits), (front, head)


def _tune(front: Part, head: Part, measure: Callable[[], float], how: _How) -> _Curve:
    whole = join(front, head, force=True)
    whole.module.requires_grad_(True)
    known = head.contract.classes or how.task.classes
    columns = torch.tensor([known.index(each) for each in how.task.classes], device=how.device)
    size = how.options.batch_size
    batches = labelled_batches(front.contract, how.task, how.augment, size, how.seed)
    curve = _Curve(measure, _half_decades(how, len(batches)) if how.steps is None else how.steps)

    def step(batch: tuple[Tensor, Tensor]) -> Tensor:
        curve.before_step()
        inputs, targets = batch
        return F.cross_entropy(whole(inputs.to(how.device)), columns[targets.to(how.device)])

    run_loop(whole.module, batches, step, how.options, seed=how.seed, label=how.task.name)
    whole.module.zero_grad(set_to_none=True)
    whole.module.eval()
    return curve


def _half_decades(how: _How, batches: int) -> list[int]:
    """1, 3, 10, 30, 100, ... up to the number of steps."""
    tens = accumulate(repeat(10, len(str(how.epochs * batches))), lambda a, b: a * b, initial=1)
    return list(chain.from_iterable((ten, 3 * ten) for ten in tens))


def _tried(
    fronts: Mapping[str, Part],
    head: Part,
    against: Sequence[str],
    others: Mapping[str, Part] | None,
    seed: int,
) -> tuple[dict[str, Part], dict[str, Part]]:
    """The candidates and the heads by name."""
    if not isinstance(fronts, Mapping) or not fronts:
        raise SettingsError("fronts= are the candidates by name, such as {'resnet': front}")
    heads = {READY: head}
    for name in (against,) if isinstance(against, str) else against:
        if name != REINITIALISED:
            raise SettingsError(
                f"unknown comparison {name!r}{nearest(name, (REINITIALISED,))}; give other heads "
                "by name in others="
            )
        width = (head.contract.gives[0].shape or (None,))[0]
        outputs = head.contract.classes or width
        if outputs is None:
            raise ContractError("the head does not say how many numbers it gives; say against=()")
        heads[name] = head_like(head, outputs, seed=seed)
    for name, part in (others or {}).items():
        if name in heads:
            raise SettingsError(f"others= may not be called {name!r}: that head is there already")
        heads[name] = part
    return dict(fronts), heads


def _options(options: LoopOptions) -> tuple[int, Options]:
    """How many epochs, and what the loop is told."""
    epochs = options.get("epochs", 1)
    if not isinstance(epochs, int) or epochs < 0:
        raise SettingsError(f"epochs must be a whole number of at least 0, got {epochs!r}")
    told: LoopOptions = {"lr": _LR, **options, "epochs": max(epochs, 1)}
    chosen = Options(**told)
    if chosen.checkpoint is not None or chosen.patience is not None:
        raise SettingsError(
            "a trial fine-tunes for exactly epochs= and starts anew when interrupted: leave "
            "checkpoint= and patience= out"
        )
    return epochs, chosen


def _refuse_misfits(fronts: Mapping[str, Part], heads: Mapping[str, Part], task: Task) -> None:
    if not isinstance(task, Task) or task.kind != "classes":
        raise TaskError("extractors are tried on a Task of kind 'classes'")
    if task.size("validation") == 0:
        raise TaskError(
            f"{task.name!r} has no validation split, on which the extractors are compared"
        )
    for other, head in heads.items():
        known = head.contract.classes
        if known is not None and (lost := [each for each in task.classes if each not in known]):
            raise TaskError(
                f"the head {other!r} does not know {', '.join(lost[:8])} of {task.name!r}; extend "
                "it first: reuse.extend_classes"
            )
        for name, front in fronts.items():
            if obstacles := front.contract.obstacles(head.contract):
                raise ContractError(
                    f"the head {other!r} cannot follow the extractor {name!r}: "
                    f"{'; '.join(obstacles)}. Cut where the shapes agree, or stitch them first"
                )


def _copied(part: Part, task: Task | None, device: torch.device) -> Part:
    """A copy on the device; a front that says nothing of its inputs gets the task's statistics."""
    contract = part.contract
    if task is not None and contract.preprocess is None:
        contract = replace(contract, preprocess=preprocess_for(task))
    return part.changed(module=copy.deepcopy(part.module).to(device), contract=contract)


def _finished(
    pair: tuple[Part, Part],
    starts: tuple[Part, Part],
    row: Tried,
    how: _How,
    settings: dict[str, Any],
) -> Part:
    whole = joined(*pair, how.task, how.norms, seed=how.seed)
    origin = Origin(
        how="train" if how.epochs else "join",
        parents=tuple(start.digest for start in starts),
        task=how.task.name,
        task_fingerprint=how.task.fingerprint,
        settings=settings,
        measured={"validation accuracy": row.final},
    )
    return whole.changed(origin=origin)
