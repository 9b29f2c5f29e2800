r"""Partitions of a network in training at once: what enters one is what the one below hands on.

For each batch :math:`t`, partition :math:`k` hands on what its layers give with the weights before
its step :math:`t`, and then takes the step under its decision block:

.. math::
    z_{k,t} = \psi_k(z_{k-1,t};\, w_{k,t}), \qquad
    w_{k,t+1} = w_{k,t} - \eta_k \nabla_w \ell\bigl(d_k(\psi_k(z_{k-1,t};\, w_{k,t})), y_t\bigr).

Nothing goes back.  So it does not matter how far a partition is ahead of the next: in processes of
their own and in one, where the last partition pulls and each pulls the one below it, the weights
are the same.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dovetail.core.progress import progress
from dovetail.dist.transport import Message, read, written
from dovetail.dist.wire import Packing
from dovetail.measure.forward import prepare
from dovetail.parts.contract import Contract
from dovetail.parts.modules import evaluating
from dovetail.tasks.task import Task
from dovetail.train.filtering import Filter, losses_of
from dovetail.train.fit import Row
from dovetail.train.loop import Turns, between_steps
from dovetail.train.stages import StageNetwork
from dovetail.train.supervision import Batches, Loss, Prepared, TargetScale, judged
from dovetail.train.together import newest_of

VALIDATED = 256
"""Rows of the validation split that go through the partitions at a time."""

Fed = tuple[Tensor, Tensor, Tensor, bool]
"""Inputs, targets, the places of the rows, and whether a filter below chose them."""


class Link(Protocol):
    """Where messages go to the partition above, and come from the one below."""

    def put(self, message: Message) -> None:
        """Hand a message on."""
        ...

    def get(self) -> Message:
        """The next one."""
        ...


class Inside:
    """A link within a process; what is taken out of it is made as it is asked for.

    >>> link = Inside(None, lambda: link.put(Message("end")))
    >>> link.get().kind
    'end'
    """

    def __init__(self, packing: str | Packing, pull: Callable[[], None]) -> None:
        self.packing, self.pull = packing, pull
        self.sent = 0
        self._waiting: deque[Message] = deque()

    def put(self, message: Message) -> None:
        """Keep it until it is asked for, as it would arrive elsewhere."""
        if message.kind == "batch":
            head, data = written(message, self.packing)
            self.sent += sum(map(len, data))
            if self.packing is not None:
                message = read(head, data)
        else:
            self.sent += message.size
        self._waiting.append(message)

    def get(self) -> Message:
        """The oldest, or what the partition below makes now."""
        while not self._waiting:
            self.pull()
        return self._waiting.popleft()


@dataclass(eq=False)
class Partition:
    """A partition at work: its batches, its step, its validation.

    Attributes:
        network: Its layers, and what they are trained under.
        called: ``network``, or what calls it.
        batches: Of the whole network; the lowest partition takes inputs from there, all of them
            the order of the rows.
        contract: How raw inputs are prepared.
        below: Where inputs come from.
        above: Where outputs go.
        filtering: Which rows are handed on.
        share: Which of the rows of each batch are its own: from where, and every so manieth.
        seen: Examples trained on.
    """

    network: StageNetwork
    called: nn.Module
    batches: Batches | Prepared
    task: Task
    contract: Contract
    loss: Loss
    scale: TargetScale
    device: torch.device
    below: Link | None = None
    above: Link | None = None
    filtering: Filter | None = None
    share: tuple[int, int] = (0, 1)
    beat: Callable[[], None] = lambda: None
    seen: int = 0
    _pool: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    _ready: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    _active: bool = False
    _before: int = 0
    _sifting: float = 0.0

    def __post_init__(self) -> None:
        self.targets = self.task.targets.index_select(0, self.task.indices("train"))
        self._size = self.batches.size

    def __len__(self) -> int:
        """Batches an epoch; a filter below leaves fewer."""
        return len(self.batches)

    def epoch(self, number: int, start: int = 0) -> Iterator[Fed]:
        """Inputs, targets and the places of the rows, counted within the training split."""
        self._active = (
            self.above is not None and self.filtering is not None and self.filtering.active(number)
        )
        first, step = self.share
        if self.below is None:
            pairs = zip(self.batches.epoch(number), self.batches.places(number), strict=True)
            for (x, targets), places in pairs:
                own = slice(first, len(places) // step * step, step)
                yield x[own], targets[own], places[own], False
            return
        order = self.batches.places(number)
        while (message := self.below.get()).kind == "batch":
            told = message.tensors.get("places")
            if told is None:
                places = next(order)
                places = places[first : len(places) // step * step : step]
            else:
                places = told.long()
            x = message.tensors["z"]
            yield x, self.targets[places], places, told is not None

    def step(self, batch: Fed) -> Tensor:
        """Hand on what the layers give, and say what the decision loses."""
        x, targets, places, filtered = batch
        self.seen += len(x)
        self.beat()
        made: list[Tensor] = []

        def hand_over(z: Tensor) -> None:
            # a copy: what follows may change it in place
            z = z.clone(memory_format=torch.contiguous_format)
            if self._active:
                made.append(z)
            else:
                self._put(z, places if filtered else None)

        self.network.hand_over = None if self.above is None else hand_over
        outputs = self.called(x.to(self.device))
        self.network.hand_over = None
        wanted = self.scale.standard(targets.to(self.device))
        value = self.loss(outputs, wanted)
        if made:
            losses = self._losses(outputs.detach(), wanted)
            self._pool.append((made[0].cpu(), places, losses))
            self._sift(finish=False)
        return value

    def _losses(self, outputs: Tensor, wanted: Tensor) -> Tensor:
        if self.filtering is None or self.filtering.compares:
            return torch.zeros(len(outputs))
        return losses_of(self.loss, outputs, wanted).cpu()

    def _put(self, z: Tensor, places: Tensor | None) -> None:
        assert self.above is not None
        also = {} if places is None else {"places": places.to(torch.int32)}
        self.above.put(Message("batch", {"z": z, **also}))

    def _sift(self, *, finish: bool) -> None:
        """Hand on what is left of a pool, in batches, once the pool is full."""
        filtering = self.filtering
        assert filtering is not None
        pooled = sum(len(z) for z, _, _ in self._pool)
        if pooled and (finish or not filtering.compares or pooled >= filtering.pool):
            z, places, losses = (torch.cat(each) for each in zip(*self._pool, strict=True))
            self._pool.clear()
            began = time.perf_counter()
            keep = filtering.keep(z, self.targets[places], losses)
            self._sifting += time.perf_counter() - began
            self._ready.append((z[keep], places[keep]))
        ready = sum(len(z) for z, _ in self._ready)
        if not ready or (ready < self._size and not finish):
            return
        z, places = (torch.cat(each) for each in zip(*self._ready, strict=True))
        self._ready.clear()
        for some, their in zip(
            torch.split(z, self._size), torch.split(places, self._size), strict=True
        ):
            if len(some) == self._size or (finish and len(some) > 1):
                self._put(some.contiguous(), their)
            elif not finish:
                self._ready.append((some, their))

    def closed(self) -> dict[str, float]:
        """After the last step of an epoch: hand on what is left, and say that it was all.

        With a filter, how many examples the epoch had, and what choosing took.
        """
        if self._active:
            self._sift(finish=True)
        if self.above is not None:
            self.above.put(Message("end"))
        told = {"samples": self.seen - self._before, "filter seconds": self._sifting}
        self._before, self._sifting = self.seen, 0.0
        return {} if self.filtering is None else told

    def validate(self) -> Row:
        """Hand on what the layers give in evaluation mode, and measure the decision."""
        rows = self.task.indices("validation")
        outputs = []
        with evaluating(self.network):
            for some in torch.split(rows, VALIDATED):
                if self.below is None:
                    x = prepare(self.task.inputs.index_select(0, some), self.contract)
                else:
                    x = self.below.get().tensors["z"]
                z = self.network.features(x.to(self.device))
                if self.above is not None:
                    kept = z.clone(memory_format=torch.contiguous_format)
                    self.above.put(Message("validation", {"z": kept}))
                outputs.append(self.network.decided(z).cpu())
                self.beat()
        targets = self.task.targets.index_select(0, rows)
        return judged(torch.cat(outputs), targets, self.task, self.loss, self.scale, self.device)


# All in one process -------------------------------------------------------------------------------


class Neighbours:
    """A partition's company where all are in one process: nothing to wait for.

    Agreement is the driver's, :func:`in_line`.
    """

    rank, alone = 0, False

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def stepped(self) -> None:
        """Nobody waits."""

    def closed(self, loss: float) -> dict[str, float]:
        """Tell the partition above."""
        return {"loss": loss, **self._partition.closed()}

    def agreed(self, measures: dict[str, float]) -> dict[str, float]:
        """As they are."""
        return measures

    def either(self, *flags: bool) -> list[bool]:
        """As they are."""
        return list(flags)

    def newest(self, epochs: Sequence[int]) -> int | None:
        """As they are."""
        return newest_of([epochs])

    def file(self, path: Path) -> Path:
        """The stage's own."""
        return path

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Nothing beside the loop's."""
        return {}, {}

    def restore(self, facts: dict[str, Any], residuals: dict[str, Tensor]) -> None:
        """Nothing beside the loop's."""


class _Stream:
    """Random numbers of one's own: those that a process of one's own would draw."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._state = device, _drawn(device)

    @contextmanager
    def taken(self) -> Iterator[None]:
        others = _drawn(self._device)
        _set(self._device, self._state)
        try:
            yield
        finally:
            self._state = _drawn(self._device)
            _set(self._device, others)


def _unseen(words: str, steps: int = 1, /) -> None:
    """Only the last partition's steps are shown."""


def _drawn(device: torch.device) -> tuple[Tensor, ...]:
    more = (torch.cuda.get_rng_state(device),) if device.type == "cuda" else ()
    return (torch.get_rng_state(), *more)


def _set(device: torch.device, state: tuple[Tensor, ...]) -> None:
    torch.set_rng_state(state[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)


def in_line(
    turns: Sequence[Turns], links: Sequence[Inside], device: torch.device, label: str
) -> list[float]:
    """Train partitions in one process, the last pulling; the seconds that each took.

    Args:
        turns: Of each partition, the lowest first.
        links: Between them; link ``k`` is from partition ``k`` to ``k + 1``.
        device: Where they are.
        label: Words beside the progress bar.
    """
    runs = [each.run for each in turns]
    top, streams = runs[-1], [_Stream(device) for _ in runs]
    seconds = [0.0] * len(runs)  # in a partition and those below it
    devices = [device] if device.type == "cuda" else []
    chosen = newest_of([list(run.kept()) for run in runs])
    going: list[Iterator[None]] = []

    def advance(number: int) -> None:
        began = time.perf_counter()
        with streams[number].taken():
            next(going[number], None)
        seconds[number] += time.perf_counter() - began

    for number, link in enumerate(links):
        link.pull = partial(advance, number)
    with torch.random.fork_rng(devices=devices):
        for run in runs:
            run.go_back(None if chosen is None else run.kept()[chosen])
        total = top.options.epochs * len(top.batches)
        with (
            progress(label, total, start=top.epoch * len(top.batches), show=top.options.show) as t,
            between_steps() as interrupted,
        ):
            for run in runs:
                run.interrupted = interrupted
            while top.epoch < top.options.epochs and not top.stopped:
                going[:] = [run.steps(t if run is top else _unseen) for run in runs]
                began = time.perf_counter()
                for number in reversed(range(len(runs))):
                    for _ in going[number]:
                        pass
                seconds[-1] += time.perf_counter() - began
                stopped, due = any(r.stopped for r in runs), any(r.due for r in runs)
                for run in runs:
                    run.settle(stopped, due)
    return [own - lower for own, lower in zip(seconds, [0.0, *seconds], strict=False)]
