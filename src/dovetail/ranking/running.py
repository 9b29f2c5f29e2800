"""Networks that run a task's examples a stretch at a time, and what looks at them have said."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.parts.cutting import CutPoint
from dovetail.parts.part import Part
from dovetail.ranking.candidates import Candidate, candidate, fronts_of, only, rows_at
from dovetail.ranking.measuring import Measured, Yardstick
from dovetail.ranking.placing import placed
from dovetail.ranking.records import Ranked
from dovetail.tasks.task import Task


@dataclass(frozen=True, eq=False)
class Seen:
    """What one look said of a candidate; ``verdicts [n]`` are in the order of sight."""

    ranked: Ranked
    measured: Measured
    verdicts: Tensor
    worth: float


@dataclass(eq=False)
class Standing:
    """A network at one of its points: its rows so far, and what the looks said, by their sizes."""

    rows: Tensor
    weights: int
    threshold: float = 0.0
    said: dict[int, Seen] = field(default_factory=dict)


@dataclass(eq=False)
class Runner:
    """A network under way, with the points of it that are left."""

    name: str
    epoch: int | None
    trained_here: bool
    at: tuple[str, ...] | None
    points: dict[str | None, Standing]
    passes: int = 0
    seconds: float = 0.0
    scoring: float = 0.0  # at the last look

    def ahead(self, upto: int) -> float:
        """About how many seconds it will take to so many examples, and a look at them.

        Heads take between twice and eight times as long from one look to the next.
        """
        return self.seconds / self.passes * (upto - self.passes) + 4 * self.scoring


class Sample:
    """The examples in the order of sight, and networks that run them a stretch at a time."""

    def __init__(
        self,
        parts: Mapping[str, Part | nn.Module],
        at: str | CutPoint | Sequence[str | CutPoint] | None,
        task: Task,
        order: Tensor,
        stretches: tuple[int, ...],
        **how: Any,
    ) -> None:
        self.parts, self.at, self.task, self.how = parts, at, task, how
        ends = zip((0, *stretches), stretches, strict=False)
        self.sight = torch.cat([order[start:end].sort().values for start, end in ends])
        self._opened: dict[str, tuple[Candidate, dict[str | None, Part]]] = {}

    def begin(self, name: str, upto: int) -> Runner:
        """A network with its first examples, whose time is taken."""
        chosen, fronts = self._open(name)
        points = {
            at: Standing(torch.empty(0), sum(p.numel() for p in front.module.parameters()))
            for at, front in fronts.items()
        }
        trained_here = chosen.part.origin.task_fingerprint == self.task.fingerprint
        runner = Runner(name, chosen.epoch, trained_here, chosen.at, points)
        self.go_on(runner, upto)
        return runner

    def go_on(self, runner: Runner, upto: int) -> None:
        """Run the examples that a network has not seen, as far as the last of its points."""
        if upto <= runner.passes:
            return
        chosen, fronts = self._open(runner.name)
        stretch = only(self.task, self.sight[runner.passes : upto])
        running = {at: fronts[at] for at in runner.points}
        began = time.perf_counter()
        rows_of = rows_at(chosen.part, running, stretch, **self.how)
        for at, standing in runner.points.items():
            own = rows_of[at]
            standing.rows = torch.cat([standing.rows, own]) if runner.passes else own
        runner.seconds += time.perf_counter() - began
        runner.passes = upto

    def look(self, runner: Runner, stick: Yardstick) -> None:
        """Measure a network at its points by all the examples that it has seen."""
        began = time.perf_counter()
        order = self.sight[: stick.n].argsort()
        for at, standing in runner.points.items():
            started = time.perf_counter()
            measured = stick.measure(standing.rows[order], "identity")
            expected = measured.expected
            assert expected is not None  # it is the score
            verdicts = torch.empty(stick.n, dtype=torch.float64)
            verdicts[order] = expected.per_example.double()
            ranked = placed(
                runner.name,
                at,
                runner.epoch,
                measured,
                stick,
                width=standing.rows.shape[1],
                weights=standing.weights,
                seconds=runner.seconds,
                scoring_seconds=time.perf_counter() - started,
            )
            standing.said[stick.n] = Seen(ranked, measured, verdicts, expected.effective_n)
        runner.scoring = time.perf_counter() - began

    def _open(self, name: str) -> tuple[Candidate, dict[str | None, Part]]:
        """A candidate and its fronts; parts that are read when asked for are read again."""
        if name in self._opened:
            return self._opened[name]
        chosen = candidate(name, self.parts[name], self.at)
        opened = chosen, fronts_of(chosen)
        if isinstance(self.parts, dict):
            self._opened[name] = opened
        return opened
