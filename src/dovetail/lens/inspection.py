"""One look into a part: what fits in a minute, the answer first, and what more there is to see.

Without a task there are the weights alone; with what the part was ``before``, how far they moved.
With a task there are the features at every point (:func:`~dovetail.lens.profile`), the curvature
of the last layer and the gradients of all.  The examples run through the network once: profile and
head share the features, curvature needs no more than these, and gradients take few examples.  What
takes longer is timed on a few examples and offered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from torch import nn

from dovetail.core.errors import ContractError, SettingsError, TaskError, argument, nearest
from dovetail.core.progress import progress
from dovetail.core.records import Record
from dovetail.core.views import Text
from dovetail.core.words import listed
from dovetail.lens.curvature import HessianSpectrum, hessian_spectrum
from dovetail.lens.gradients import gradient_flow
from dovetail.lens.inspection_head import Headed, headed, weights_of_the_head
from dovetail.lens.inspection_plan import (
    GRADIENTS,
    GRID,
    SEEDS,
    Pace,
    examples_for,
    expected_seconds,
    pace_of,
)
from dovetail.lens.inspection_record import Inspection, Look, Offer
from dovetail.lens.landscape import landscape
from dovetail.lens.profile import Along, along_points, layer_weights, profile_of, refuse_few
from dovetail.lens.profile_record import LayerWeights
from dovetail.lens.subject import inside
from dovetail.lens.theory import gram_theory
from dovetail.lens.transfer_study import transfer_study
from dovetail.lens.weights import deviation
from dovetail.measure.forward import prepare, refuse_other_inputs
from dovetail.parts.cutting import cut_points
from dovetail.parts.heads import before_the_head
from dovetail.parts.part import Part, as_part
from dovetail.ranking.candidates import fewer, points_of, sampled
from dovetail.settings.inspect import LOOKS, NEEDS, OF_CLASSES, USUAL, Inspect
from dovetail.tasks.splits import Split
from dovetail.tasks.task import Task

EIGENVALUES = 20


def inspect(
    part: Part | nn.Module,
    task: Task | None = None,
    before: Part | nn.Module | None = None,
    *,
    what: Sequence[str] | None = Inspect.what,
    all: bool = Inspect.all,
    plan: bool = Inspect.plan,
    samples: int = Inspect.samples,
    split: Split = Inspect.split,
    module: str | None = Inspect.module,
    k: int = Inspect.k,
    source: Task | None = None,
    seed: int = 0,
    show: bool | None = None,
) -> Inspection:
    """Look into a part, as far as a minute goes, and say what more there is to see.

    A part that does not know the task's classes gets a linear head, fitted to the examples, for
    what needs outputs.  Nothing that is handed in is changed.

    Args:
        part: A network, or a front without a head.
        task: Examples to look at it with; without one there are only weights.
        before: What it was before it was trained or tuned: a part of the same architecture.
        what: Which looks, some of ``deviation, profile, curvature, gradients, landscape, hessian,
            study`` and ``theory``; by default the first four, as far as there is data for them.
        all: All of them, likewise.
        plan: Only say what each would take.
        samples: Examples to look at.
        split: Where they come from.
        module: Whose curvature, by name in the network; by default the last layer's.
        k: Neighbours that make an example redundant, for the profile.
        source: The task that the part learnt, for the theory.
        seed: Of everything drawn.
        show: Progress bar: ``None`` on a terminal only.

    An interrupt (Ctrl-C) ends the look that it meets; those before it are the inspection.

    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.load import load_task
    >>> net = build("lenet5", size=8, classes=10)
    >>> seen = inspect(net, load_task("digits"), samples=100, what=["profile"], show=False)
    >>> [look.name for look in seen.looks], seen.offers[0].how
    (['profile'], 'before=')
    """
    given = {"task": task, "before": before, "source": source}
    Inspect.check({"what": what, "samples": samples, "split": split, "k": k})
    part = as_part(part)
    _refuse_features(part)
    looks = _chosen(what, all, {name for name, value in given.items() if value is not None})
    if task is not None and task.kind == "regression" and (what is None or all):
        looks = [name for name in looks if name not in OF_CLASSES]
    if module is not None:
        inside(part.module, module)
    began = time.perf_counter()
    room = _Room(part, task, before, samples, split, module, k, source, seed)
    if "profile" in looks:
        refuse_few(room.n, k)
    taken: list[Look] = []
    stopped = ""
    with progress(f"looking into {part.described}", len(looks), show=show) as step:
        for name in () if plan else looks:
            start = time.perf_counter()
            try:
                record = _TAKES[name](room)
            except KeyboardInterrupt:
                if not taken:
                    raise
                stopped = name
                break
            seconds = time.perf_counter() - start
            taken.append(Look(name, seconds, _answer_of(record), record))
            step(name)
    left = [name for name in LOOKS if name not in {look.name for look in taken}]
    shared = plan and "profile" in looks
    offers = tuple(room.offer(name, shared) for name in left)
    return room.seen(tuple(taken), offers, plan, stopped, began)


def _chosen(what: Sequence[str] | None, all: bool, there: set[str]) -> list[str]:
    """The looks to take, in order; one that was asked for and lacks something is refused."""
    asked = LOOKS if all else USUAL if what is None else tuple(what)
    for name in asked:
        if name not in LOOKS:
            raise SettingsError(f"unknown look {name!r}{nearest(str(name), LOOKS)}")
        missing = [need for need in NEEDS[name] if need not in there]
        if missing and what is not None and not all:
            raise SettingsError(f"{name} needs {argument(missing[0])}")
    return [name for name in LOOKS if name in asked and set(NEEDS[name]) <= there]


class _Room:
    """What all looks share: the part, the examples, and the head, which is made once if at all."""

    def __init__(
        self,
        part: Part,
        task: Task | None,
        before: Part | nn.Module | None,
        samples: int,
        split: Split,
        module: str | None,
        k: int,
        source: Task | None,
        seed: int,
    ) -> None:
        self.part, self.module, self.k, self.seed = part, module, k, seed
        self.split = split
        self.before = None if before is None else as_part(before)
        self.source, self.task = source, task
        self._headed: Headed | None = None
        self._along: Along | None = None
        self._pace: Pace | None = None
        if task is not None:
            _refuse_task(task)
            refuse_other_inputs(task, part.contract)
            self.sample = sampled(task, samples, split, seed)
        self.n = 0 if task is None else self.sample.size("train")
        self.samples = samples

    @property
    def head(self) -> Headed:
        """The network with a head for the task."""
        if self._headed is None:
            rows = None if self._along is None else self._along.rows
            self._headed = headed(self.part, self.sample, seed=self.seed, rows=rows)
        return self._headed

    @property
    def along(self) -> Along:
        """The features at every point, and before the head, from one pass."""
        if self._along is None:
            points = set(points_of(self.part)) | {before_the_head(self.part)}
            names = [point.name for point in cut_points(self.part) if point.name in points]
            self._along = along_points(self.part, names, self.sample)
        return self._along

    @property
    def many(self) -> int:
        """How many examples a look takes that runs the network many times."""
        rows = self.sample.indices("train")[:1]
        one = prepare(self.sample.inputs[rows], self.part.contract)
        return examples_for(one.expand(self.n, *one.shape[1:]))

    @property
    def pace(self) -> Pace:
        """What a few examples take."""
        if self._pace is None:
            rows = self.sample.indices("train")[: self.many]
            x = prepare(self.sample.inputs[rows], self.part.contract)
            self._pace = pace_of(
                self.part.module, x.to(self.part.device), len(points_of(self.part))
            )
        return self._pace

    def offer(self, name: str, shared: bool) -> Offer:
        """A look that was not taken: how long it would be, and how to ask for it."""
        missing = [need for need in NEEDS[name] if getattr(self, need) is None]
        how = " ".join(argument(need, ...) for need in missing) or argument("what", name)
        if "task" in missing:
            return Offer(name, None, _plainly(how))
        seconds = 0.1
        if self.task is not None:
            last = weights_of_the_head(self.part, self.sample) if name == "curvature" else 0
            whole = self.module is not None
            seconds = expected_seconds(
                name, self.pace, self.n, self.many, module=whole, shared=shared, last=last
            )
        return Offer(name, seconds, _plainly(how))

    def seen(
        self,
        looks: tuple[Look, ...],
        offers: tuple[Offer, ...],
        plan: bool,
        stopped: str,
        began: float,
    ) -> Inspection:
        """The record of it all."""
        made = self._headed
        weights = () if self.task is not None else tuple(layer_weights({"": self.part.module}))
        return Inspection(
            part=self.part.described,
            task="" if self.task is None else self.task.name,
            before="" if self.before is None else self.before.described,
            n=self.n,
            answer=_planned(offers) if plan else self._answer(looks, weights),
            looks=looks,
            offers=offers,
            weights=weights,
            head="" if made is None else _whose(made),
            accuracy=None if made is None else made.accuracy,
            left_out=None if made is None else made.left_out,
            planned=plan,
            stopped=stopped,
            seconds=time.perf_counter() - began,
            settings={"seed": self.seed, "k": self.k, "module": self.module},
        )

    @property
    def _trained_on(self) -> bool:
        task, origin = self.task, self.part.origin
        own = task is not None and origin.task_fingerprint == task.fingerprint
        return own and self.split == "train"

    def _answer(self, looks: tuple[Look, ...], weights: tuple[LayerWeights, ...]) -> str:
        said = []
        made = self._headed
        if made is not None and made.accuracy is not None and self.task is not None:
            seen = " (it was trained on them)" if self._trained_on else ""
            right = f"{made.accuracy:.0%} of the examples{seen}"
            said.append(f"{self.part.described} is right in {right}.")
        if made is not None and made.left_out is not None:
            said.append(
                f"A linear head on its features is right in {made.left_out:.0%} of those left out "
                "of its fit."
            )
        by_name = {look.name: look.answer for look in looks}
        said += [by_name[name] for name in ("profile", "deviation") if name in by_name]
        said += [look.answer for look in looks if not said]
        if not said and weights:
            low = min(weights, key=lambda w: w.stable_rank / min(w.shape))
            said.append(
                f"{len(weights)} weight matrices; {low.name} uses the smallest share of its "
                f"directions, a stable rank of {low.stable_rank:.1f} of {min(low.shape)}. Name a "
                "task to see what the features say."
            )
        return " ".join(said) or "There are no weights to look at."


def _refuse_features(part: Part) -> None:
    takes = part.contract.takes
    if len(takes) != 1 or takes[0].space is not None:
        raise ContractError(
            f"{part.described!r} takes features of another part, not a task's inputs; join it to "
            "its front first"
        )


def _refuse_task(task: Task) -> None:
    if task.kind not in ("classes", "regression"):
        raise TaskError(f"{task.name!r} is of kind {task.kind!r}; inspect with classes or numbers")
    if task.kind == "classes" and len(task.classes) < 2:
        raise TaskError(f"{task.name!r} has one class: there is nothing to tell apart")


def _deviation(room: _Room) -> Record:
    assert room.before is not None
    n = 1 if room.task is None else room.task.size("train")
    return deviation(room.part, room.before, examples=n)


def _profile(room: _Room) -> Record:
    return profile_of(room.along, room.part, room.sample, k=room.k, seed=room.seed, show=False)


def _curvature(room: _Room) -> Record:
    if room.module is None:
        return room.head.curvature(EIGENVALUES, room.seed)
    return hessian_spectrum(
        room.head.whole,
        room.sample,
        EIGENVALUES,
        room.module,
        limit=room.many,
        seed=room.seed,
    )


def _gradients(room: _Room) -> Record:
    few = min(GRADIENTS, room.many)
    return gradient_flow(room.head.whole, room.sample, limit=few, seed=room.seed)


def _hessian(room: _Room) -> Record:
    return hessian_spectrum(
        room.head.whole, room.sample, EIGENVALUES, limit=room.many, seed=room.seed
    )


def _landscape(room: _Room) -> Record:
    return landscape(room.head.whole, room.sample, points=GRID, limit=room.many, seed=room.seed)


def _study(room: _Room) -> Record:
    assert room.task is not None
    target = fewer(room.task, room.samples, room.seed)
    return transfer_study({"this part": room.part}, target, seeds=SEEDS)


def _theory(room: _Room) -> Record:
    assert room.source is not None
    return gram_theory(room.source, room.sample, limit=room.n, seed=room.seed)


_TAKES: dict[str, Callable[[_Room], Record]] = {
    "deviation": _deviation,
    "profile": _profile,
    "curvature": _curvature,
    "gradients": _gradients,
    "landscape": _landscape,
    "hessian": _hessian,
    "study": _study,
    "theory": _theory,
}


def _answer_of(record: Record) -> str:
    """What a record says in a sentence or two: its answer, or the first words that it shows."""
    if isinstance(record, HessianSpectrum):
        whose = record.of
        sharp = f"The loss curves at most by {record.first:.3g} in the weights of {whose}"
        if record.trace is None or not record.weights:
            return f"{sharp}."
        return f"{sharp}, on average by {record.trace / record.weights:.2g}."
    for name in ("answer", "summary"):
        said = getattr(record, name, None)
        if isinstance(said, str):
            return said
    return next((block.text for block in record.view() if isinstance(block, Text)), "")


def _whose(made: Headed) -> str:
    return "its own head" if made.own else "a linear head that was fitted to the examples"


def _planned(offers: Sequence[Offer]) -> str:
    usual = [offer for offer in offers if offer.name in USUAL and offer.seconds is not None]
    total = sum(offer.seconds or 0.0 for offer in usual)
    names = listed([offer.name for offer in usual])
    return (
        f"The usual looks ({names}) would take about {total:.0f} s."
        if usual
        else ("Name a task to look with, or the part it was before.")
    )


def _plainly(words: str) -> str:
    """Words with arguments in them, as Python has them."""
    return str(SettingsError(words))
