"""One front with all heads: what flows, which classes are common, how often the pair is right."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from torch import Tensor, nn

from dovetail.core.errors import ContractError, TaskError, first_line
from dovetail.core.seeds import generator
from dovetail.measure.correlation import CrossMoments
from dovetail.measure.preprocess import prepare, refuse_other_inputs
from dovetail.measure.recombination import Alike, Pair
from dovetail.parts.contract import shown_shape
from dovetail.parts.modes import evaluating
from dovetail.parts.norms import Norms, recalibrate, with_batch_statistics
from dovetail.parts.part import Part
from dovetail.tasks.task import Split, Task

__all__ = ["Fan", "How", "REFUSED", "Row", "correlated", "measured", "mixed_batches"]

REFUSED = (RuntimeError, ValueError, TypeError)
"""How modules refuse tensors that do not suit them; our own ContractError is a ValueError."""


@dataclass(frozen=True)
class How:
    """The settings that all pairs share."""

    norms: tuple[Norms, ...]
    split: Split
    batch_size: int
    calibration: int
    seed: int


@dataclass(frozen=True)
class Row:
    """A front, the task it is tested on, the heads it meets, and which of them is its own."""

    name: str
    front: Part
    task: Task
    heads: dict[str, Part]
    own: str | None
    how: How

    def inputs(self, rows: Tensor) -> Tensor:
        """Rows of the task as the front wants them, where it wants them."""
        return prepare(self.task.inputs[rows], self.front.contract).to(self.front.device)

    def calibration(self) -> Iterator[Tensor]:
        """Batches of training images, for statistics; nobody looks at their labels."""
        rows = self.task.indices("train")
        if len(rows) < 2:
            raise TaskError(f"{self.task.name!r} has no two training images to recalibrate on")
        draw = generator(self.how.seed, "calibration")
        rows = rows[torch.randperm(len(rows), generator=draw)[: self.how.calibration]]
        for batch in mixed_batches(rows, self.how.batch_size, self.how.seed):
            yield self.inputs(batch)

    def rows_of(self, classes: tuple[str, ...]) -> Tensor:
        """The examples of some classes, as rows of the task."""
        rows = self.task.indices(self.how.split)
        numbers = torch.tensor([self.task.classes.index(c) for c in classes], dtype=torch.int64)
        return rows[torch.isin(self.task.targets[rows], numbers)]


def measured(row: Row) -> list[Pair]:
    """The pairs of a front with each head, in the order of the heads.

    Heads that share the same classes with the task meet the same batches, which go through the
    front once for all of them.
    """
    vocabularies, obstacles = _probed(row)
    pairs: dict[str, Pair] = {}
    for head, part in row.heads.items():
        known = vocabularies.get(head, ())
        common = tuple(name for name in row.task.classes if name in known)
        n = len(row.rows_of(common))
        if head in vocabularies and (len(common) < 2 or n == 0):
            obstacles[head] = _too_little(row, head, known, common)
        reasons = tuple(row.front.contract.mismatches(part.contract))
        barred = obstacles.get(head)
        pairs[head] = Pair(row.name, head, reasons, common, len(known), n, obstacle=barred)
    groups: dict[tuple[str, ...], list[str]] = {}
    for head in vocabularies:
        if head not in obstacles:
            groups.setdefault(pairs[head].classes, []).append(head)
    fan = Fan(row.front.module, {head: row.heads[head].module for head in vocabularies})
    for norms in row.how.norms if groups else ():
        policy = fan.with_norms(norms, row.calibration() if norms == "recalibrated" else ())
        for common, heads in groups.items():
            own = row.own if set(common) <= set(vocabularies.get(row.own or "", ())) else None
            wanted = [*heads, *([] if own is None or own in heads else [own])]
            outputs, targets = _outputs(row, policy, common, wanted)
            for head in heads:
                pairs[head] = _scored(pairs[head], norms, outputs, targets, vocabularies, own)
    return list(pairs.values())


def _probed(row: Row) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Send two images through everything: the names of each head's outputs, or why not."""
    rows = row.task.indices(row.how.split)
    if len(rows) == 0:
        raise TaskError(f"{row.task.name!r} has no examples in its {row.how.split} split")
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
            barred = row.front.contract.obstacles(head.contract)
            try:
                if barred:
                    raise ValueError("; ".join(barred))
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
        return f"{row.task.name!r} has no {row.how.split} images of {_listed(common)}"
    shared = f"only the class {common[0]!r} is" if common else "no class is"
    return (
        f"{shared} common to {row.task.name!r} ({_listed(row.task.classes)}) "
        f"and the head {head!r} ({_listed(known)})"
    )


def _outputs(
    row: Row, fan: Fan, common: tuple[str, ...], wanted: list[str]
) -> tuple[dict[str, Tensor], Tensor]:
    """Each head's outputs ``[n, its classes]`` and the targets ``[n]``, counted in ``common``."""
    kept: dict[str, list[Tensor]] = {head: [] for head in wanted}
    batches = mixed_batches(row.rows_of(common), row.how.batch_size, row.how.seed)
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
                kept[head].append(output.cpu())
    place = torch.full((len(row.task.classes),), -1)
    place[[row.task.classes.index(name) for name in common]] = torch.arange(len(common))
    targets = place[row.task.targets[torch.cat(batches)]]
    return {head: torch.cat(pieces) for head, pieces in kept.items()}, targets


def _scored(
    pair: Pair,
    norms: Norms,
    outputs: dict[str, Tensor],
    targets: Tensor,
    vocabularies: dict[str, tuple[str, ...]],
    own: str | None,
) -> Pair:
    """The pair with its shares of right answers under one policy of norms."""
    empty = int(outputs[pair.head].isnan().any(1).sum())
    if empty:
        said = f"gives NaN for {empty} of {pair.n} images with {norms} norms"
        return replace(pair, obstacle=f"{pair.obstacle}; {said}" if pair.obstacle else said)

    def masked(head: str) -> float:
        return _share(outputs[head][:, columns(head)].argmax(1) == targets)

    def columns(head: str) -> Tensor:
        return torch.tensor([vocabularies[head].index(name) for name in pair.classes])

    all_of_them = _share(outputs[pair.head].argmax(1) == columns(pair.head)[targets])
    return replace(
        pair,
        accuracy=pair.accuracy | {norms: masked(pair.head)},
        unmasked=pair.unmasked | {norms: all_of_them},
        own=pair.own | ({norms: masked(own)} if own in outputs else {}),
    )


def _share(right: Tensor) -> float:
    return float(right.double().mean())


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


_WIDEST = 4096
"""More channels are left out: every one is correlated with every other, and then matched."""


def correlated(rows: list[Row]) -> tuple[Alike, ...]:
    """Correlate every two fronts that give one tensor of the same shape for the same images.

    The images are those of the first front's task, each front prepares them in its own way, and
    batch norms follow the first policy (recalibrated ones on the front's own task).  A front that
    cannot take these images, or gives no finite numbers for them, is left out.
    """
    if len(rows) < 2:
        return ()
    first, fronts = rows[0], {row.name: _with_norms(row) for row in rows}
    moments: dict[tuple[str, str], CrossMoments] = {}
    images = first.task.indices(first.how.split)
    for batch in mixed_batches(images, first.how.batch_size, first.how.seed):
        features: dict[str, Tensor] = {}
        for row in rows:
            if row.name in fronts and (found := _features(row, fronts[row.name], first, batch)):
                features[row.name] = found[0]
        fronts = {name: fronts[name] for name in features}
        for one, other in combinations(features, 2):
            if features[one].shape == features[other].shape and features[one].shape[1] <= _WIDEST:
                piece = CrossMoments.of(features[one], features[other])
                known = moments.get((one, other))
                moments[one, other] = piece if known is None else known.merge(piece)
    return tuple(
        Alike(one, other, _mean(found.correlations().diagonal()), _mean(found.matched()[1]))
        for (one, other), found in moments.items()
        if one in fronts and other in fronts
    )


def _with_norms(row: Row) -> nn.Module:
    norms = row.how.norms[0]
    batches = row.calibration() if norms == "recalibrated" else ()
    return Fan(row.front.module, {}).with_norms(norms, batches).front


def _features(row: Row, front: nn.Module, first: Row, batch: Tensor) -> tuple[Tensor, ...]:
    """What the front gives for images of the first front's task; nothing if it cannot."""
    try:
        refuse_other_inputs(first.task, row.front.contract)
        x = prepare(first.task.inputs[batch], row.front.contract).to(row.front.device)
        with evaluating(front):
            given = front(x)
    except REFUSED:
        return ()
    usable = isinstance(given, Tensor) and given.ndim >= 2 and bool(given.isfinite().all())
    return (given.cpu(),) if usable else ()


def _mean(values: Tensor) -> float:
    return float(values.mean())


def mixed_batches(rows: Tensor, batch_size: int, seed: int) -> list[Tensor]:
    """The rows ``[n]`` in a fixed random order, in batches.

    Data sets often lie on disk class by class, and the statistics of a batch of one class are
    not those of the data: an unshuffled order would measure that instead of the parts.  A last
    batch of less than half the size joins the one before it, because few values have a poor
    variance, and one value has none.

    >>> [len(batch) for batch in mixed_batches(torch.arange(9), 4, seed=0)]
    [4, 5]
    >>> [len(batch) for batch in mixed_batches(torch.arange(10), 4, seed=0)]
    [4, 4, 2]
    """
    order = rows[torch.randperm(len(rows), generator=generator(seed, "recombination"))]
    batches = list(torch.split(order, batch_size))
    if len(batches) > 1 and 2 * len(batches[-1]) < batch_size:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


class Fan(nn.Module):
    """A front whose features every head receives; the tensors are the parts' own.

    >>> import torch
    >>> fan = Fan(nn.Flatten(), {"three": nn.Linear(4, 3), "two": nn.Linear(4, 2)})
    >>> {name: tuple(found.shape) for name, found in fan(torch.rand(5, 2, 2)).items()}
    {'three': (5, 3), 'two': (5, 2)}
    """

    def __init__(self, front: nn.Module, heads: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.front = front
        self.names = list(heads)
        self.heads = nn.ModuleList(heads.values())  # no dictionary: names of parts hold dots

    def features(self, x: Tensor) -> tuple[Tensor, ...]:
        """What crosses from the front to a head."""
        given = self.front(x)
        return given if isinstance(given, tuple) else (given,)

    def through(self, name: str, features: tuple[Tensor, ...]) -> Tensor:
        """What one head makes of the features, where its weights are."""
        head = self.heads[self.names.index(name)]
        weight = next(iter(head.state_dict().values()), None)
        if weight is not None:
            features = tuple(tensor.to(weight.device) for tensor in features)
        output: Tensor = head(*features)
        return output

    def forward(self, x: Tensor, wanted: Iterable[str] | None = None) -> dict[str, Tensor]:
        """The outputs of all heads, or of those wanted."""
        features = self.features(x)
        names = self.names if wanted is None else wanted
        return {name: self.through(name, features) for name in names}

    def with_norms(self, norms: Norms, batches: Iterable[Tensor] = ()) -> Fan:
        """The fan with other statistics, as ``join`` of the front to each head would have them.

        ``"recalibrated"`` needs batches of prepared inputs.  The front's new statistics are the
        same behind every head, so one pass over the batches serves all; heads that share a batch
        norm still get statistics of their own.
        """
        if norms == "stored":
            return self
        if norms == "batch":
            return with_batch_statistics(self)
        heads = (copy.deepcopy(head) for head in self.heads)
        apart = Fan(self.front, dict(zip(self.names, heads, strict=True)))
        return recalibrate(apart, batches)
