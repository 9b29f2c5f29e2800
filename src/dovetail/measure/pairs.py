"""Pairs of a front and a head: what each of them reaches, and which statistics suit batch norms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import Tensor

from dovetail.core.errors import ContractError, DovetailError, TaskError, first_line
from dovetail.core.seeds import generator
from dovetail.core.words import listed
from dovetail.measure.forward import REFUSED, prepare, refuse_other_inputs
from dovetail.measure.joined import Fan, calibrating_batches, random_batches
from dovetail.measure.recombination import Pair
from dovetail.parts.contract import shown_shape
from dovetail.parts.joining import join
from dovetail.parts.modules import evaluating
from dovetail.parts.norms import GUESSES, Chosen, Norms, Statistics, settle_norms, with_norms
from dovetail.parts.part import Part
from dovetail.settings.join import Recombine as Declared
from dovetail.tasks.splits import Split
from dovetail.tasks.task import Task

ORDER: tuple[Statistics, ...] = ("stored", "recalibrated", "batch")
"""Which to prefer among equals: what needs no data, then what takes one input."""

JUDGING, TOO_FEW = 400, 32
"""Validation images that choose statistics, at most, and how many are too few to do so."""


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


def measured_pairs(row: Row) -> list[Pair]:
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


def choose_norms(
    norms: Norms,
    task: Task | Sequence[Task],
    *chains: Sequence[Part],
    among: Sequence[Statistics] = ORDER,
    data: bool = False,
    seed: int = 0,
) -> Chosen:
    """What "auto" comes to where there are images with labels: what is right most often on them.

    Parts that were trained for certain statistics get those
    (:func:`~dovetail.parts.norms.norms_for`).  For the others no rule is right: behind a stitch
    between two LeNets, what is stored loses 4 points to the batch's own statistics; between two
    released EfficientNets, the batch's lose 45 to what is stored.  So up to :data:`JUDGING`
    validation images go through the parts with each policy.  The first in :data:`ORDER` is chosen
    that is within a standard error of the best; the reason has all the figures.

    Args:
        norms: What was asked for; anything but "auto" is the answer.
        task: One for all chains, or one for each.  Without classes, or with fewer than
            :data:`TOO_FEW` validation images, the rule of
            :func:`~dovetail.parts.norms.settle_norms` is the answer.
        chains: Parts in a row, front first.  Several get one policy, the best on average.
        among: The policies that can be used.
        data: Whether statistics are to be estimated rather than taken from every batch, where the
            parts were trained for the batch's.
        seed: For the images.
    """
    tasks = [task] * len(chains) if isinstance(task, Task) else task
    due = settle_norms(norms, *chains, data=data)
    if due.why not in GUESSES or any(each.kind != "classes" for each in tasks):
        return due
    try:
        reached, images = _on_validation(zip(tasks, chains, strict=True), among, seed)
    except DovetailError:  # what cannot be measured here is told where it is measured in earnest
        return due
    if not reached or images < TOO_FEW:
        return due
    best = max(reached.values())
    enough = best - math.sqrt(best * (1 - best) / images)
    figures = ", ".join(f"{name} {share:.1%}" for name, share in reached.items())
    why = f"on {images} validation images {figures} were right"
    return Chosen(next(name for name, share in reached.items() if share >= enough), why)


def _on_validation(
    chains: Iterable[tuple[Task, Sequence[Part]]], among: Sequence[Statistics], seed: int
) -> tuple[dict[Statistics, float], int]:
    """The mean accuracy over the chains with each policy, and on how many images the least is."""
    tails: dict[tuple[int, int], tuple[Task, Part, dict[str, Part]]] = {}
    for task, (front, *rest) in chains:
        tail = rest[0] if len(rest) == 1 else join(*rest, norms="stored", force=True)
        _, _, heads = tails.setdefault((id(task), id(front)), (task, front, {}))
        heads[str(len(heads))] = tail
    pairs: list[Pair] = []
    for task, front, heads in tails.values():
        can = tuple(norms for norms in among if norms != "recalibrated" or task.size("train") > 1)
        few = _some(task, seed)
        batch = Declared.batch_size
        row = Row("front", front, few, heads, None, can, "validation", batch, JUDGING, seed)
        pairs += measured_pairs(row)
    full = [pair for pair in pairs if pair.accuracy]
    common = [norms for norms in among if all(norms in pair.accuracy for pair in full)]
    means = {norms: fmean(pair.accuracy[norms] for pair in full) for norms in common if full}
    return means, min((pair.n for pair in full), default=0)


def _some(task: Task, seed: int) -> Task:
    """The task with validation images enough to choose by."""
    rows = task.indices("validation")
    drawn = torch.randperm(len(rows), generator=generator(seed, "norms"))[:JUDGING]
    indices: dict[Split, Tensor] = {
        "train": task.indices("train"),
        "validation": rows[drawn].sort().values,
        "test": rows[:0],
    }
    return task.derived(task.name, indices=indices)
