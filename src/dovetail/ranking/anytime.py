"""Ranking on a sample that grows: candidates that can no longer be the best are run no further.

Every network runs a few examples first, which says how long the whole will take at most.  Then
candidates are looked at with about fifty examples, twice as many, and so on: what has been run is
kept, and only new examples go through the networks.  :mod:`dovetail.ranking.elimination` says who
falls out; a network runs on as long as one of its points is left.  Those left at the last look have
seen all examples and have the very numbers that a ranking of all candidates gives them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from dovetail.core.errors import DovetailError, SettingsError, argument
from dovetail.core.progress import progress
from dovetail.core.words import counted
from dovetail.dist.group import is_distributed, rank_and_size
from dovetail.measure.features import Pooling
from dovetail.parts.cutting import CutPoint
from dovetail.parts.part import Part
from dovetail.ranking.candidates import nested, only, without_repeats
from dovetail.ranking.course import Course, Look, lasting
from dovetail.ranking.elimination import Fall, falls, look_sizes, still_to_come, thresholds
from dovetail.ranking.measuring import BY_EXAMPLE, Yardstick, yardstick
from dovetail.ranking.placing import best_first, ranking_of
from dovetail.ranking.records import LeftOut, Ranked, Ranking
from dovetail.ranking.running import Runner, Sample, Seen
from dovetail.ranking.scores import By, as_score
from dovetail.tasks.splits import Split
from dovetail.tasks.task import Task

_TIMED = 16
"""Examples that every network runs first, to know its pace."""


def rank_anytime(
    parts: Mapping[str, Part | nn.Module],
    task: Task,
    *,
    by: By | None,
    at: str | CutPoint | Sequence[str | CutPoint] | None,
    samples: int | None,
    split: Split,
    pooling: Pooling,
    groups: int,
    permutations: int,
    confidence: float,
    seed: int,
    batch_size: int,
    cache: Any,
    seconds: float | None,
    show: bool | None,
) -> Ranking:
    """:func:`dovetail.ranking.ranker.rank` with ``anytime=True``, whose arguments these are."""
    _refuse(task, by, seconds)
    order = nested(task, samples, split, seed)
    classes = int((task.targets[order].bincount() > 0).sum()) if task.kind == "classes" else 0
    looks = look_sizes(len(order), classes)
    timed = min(max(_TIMED, rank_and_size()[1]), looks[0])  # one for each process at least
    how = {"pooling": pooling, "batch_size": batch_size, "cache": cache}
    sample = Sample(parts, at, task, order, (timed, *looks), **how)
    options: dict[str, Any] = {"groups": groups, "permutations": permutations, "seed": seed}
    options["confidence"] = confidence
    race = _Race(sample, looks, 1 - confidence, seed, seconds)
    with progress(f"timing {counted(len(parts), 'part')}", len(parts), show=show) as tick:
        for name in parts:
            race.enter(name, timed)
            tick(name)
    race.estimate(show)
    total = len(race.running) * looks[-1]
    with progress(f"ranking for {task.name}", total, show=show) as tick:
        for n in looks:
            stick = yardstick(only(task, sample.sight[:n].sort().values), by, **options)
            for done, words in race.look(stick):
                tick(words, done)
            if race.stopped or not race.running:
                break
    return race.ranking(by, options, split, pooling)


def _refuse(task: Task, by: By | None, seconds: float | None) -> None:
    if by is not None and getattr(as_score(by), "name", "") != BY_EXAMPLE:
        raise SettingsError(
            f"{argument('anytime', True)} compares candidates example by example, which only "
            f"{BY_EXAMPLE} allows; leave {argument('by', ...)} away, or rank all examples at once"
        )
    if task.kind == "pairs":
        raise SettingsError(
            f"{task.name!r} knows pairs only, of which no head can be expected anything; rank it "
            f"without {argument('anytime', True)}"
        )
    if seconds is not None and is_distributed():
        raise SettingsError(
            f"every process has its own clock; rank without {argument('seconds', ...)} under "
            "torchrun"
        )


class _Race:
    """Networks from look to look: who is left, who fell out and why, and what it took."""

    def __init__(
        self,
        sample: Sample,
        looks: tuple[int, ...],
        alpha: float,
        seed: int,
        seconds: float | None,
    ) -> None:
        self.sample, self.sizes, self.seed, self.seconds = sample, looks, seed, seconds
        self.began = time.perf_counter()
        self.level = alpha / max(len(looks) - 2, 1)  # nobody falls at the first or the last look
        self.running: list[Runner] = []
        self.fallen: list[Ranked] = []
        self.left_out: list[LeftOut] = []
        self.looks: list[Look] = []
        self.every: list[Runner] = []
        self.expected_seconds = (0.0, 0.0)
        self.stopped = False

    def enter(self, name: str, upto: int) -> None:
        """Run the first examples of a network, or say why it cannot run."""
        if self.running and self._late(0.0):
            self._not_reached(name)
            return
        try:
            self.running.append(self.sample.begin(name, upto))
        except DovetailError as error:
            self.left_out.append(LeftOut(name, str(error)))

    def estimate(self, show: bool | None) -> None:
        """Say how long it will take: if all but one fall as soon as they can, and if none does."""
        self.every = list(self.running)
        soon = self.sizes[min(1, len(self.sizes) - 1)]
        least = [runner.ahead(soon) for runner in self.running]
        most = [runner.ahead(self.sizes[-1]) for runner in self.running]
        spared = max((b - a for a, b in zip(least, most, strict=True)), default=0.0)
        self.expected_seconds = (min(sum(least) + spared, sum(most)), sum(most))
        if sys.stderr.isatty() if show is None else show:
            low, high = map(lasting, self.expected_seconds)
            words = f"{counted(len(self.running), 'network')}, at most {self.sizes[-1]} examples"
            print(f"{words}: about {low} to {high} to run them", file=sys.stderr)

    def look(self, stick: Yardstick) -> Iterator[tuple[int, str]]:
        """Look at all that are left, and let those fall that cannot be the best any more.

        Gives, after each network, the passes that it made or was spared, and words.
        """
        began, n = time.perf_counter(), stick.n
        first = n == self.sizes[0]
        for runner in list(self.running):
            known = not first or any(self.standing(n))
            if known and self._late(runner.ahead(n)):
                self.stopped = True
                if not first:
                    return
                self.running.remove(runner)
                self._not_reached(runner.name)
                continue
            before = 0 if first else runner.passes
            try:
                self.sample.go_on(runner, n)
                if first:
                    distinct = without_repeats({k: v.rows for k, v in runner.points.items()})
                    runner.points = {at: runner.points[at] for at in distinct}
                self.sample.look(runner, stick)
            except DovetailError as error:
                self.running.remove(runner)
                self.left_out.append(LeftOut(runner.name, str(error)))
            yield n - before, f"{n} examples, at most {lasting(self._left())} left"
        here = self.standing(n)
        fell = self._falls(here, n)
        under_way = len(self.running)
        for fall in fell:
            self._drop(here[fall.candidate], here[fall.rival], fall, n)
        yield (under_way - len(self.running)) * (self.sizes[-1] - n), f"{len(fell)} fell out"
        took = time.perf_counter() - began
        passes = sum(runner.passes for runner in self.every)
        self.looks.append(Look(n, len(here), len(fell), passes, took))

    def standing(self, n: int) -> list[tuple[Runner, str | None, Seen]]:
        """Everything left that has been looked at with so many examples."""
        return [
            (runner, at, standing.said[n])
            for runner in self.running
            for at, standing in runner.points.items()
            if n in standing.said
        ]

    def ranking(
        self, by: By | None, options: dict[str, Any], split: Split, pooling: Pooling
    ) -> Ranking:
        """What is known at the end, or when the time was up."""
        reached = self.looks[-1].n if self.looks else self.sizes[0]
        rows = self.sample.sight[:reached].sort().values
        stick = yardstick(only(self.sample.task, rows), by, **options)
        last = [(seen.ranked, seen.measured) for _, _, seen in self.standing(reached)]
        survivors = best_first(last, stick) if last else ()
        notes = []
        if self.stopped:
            notes.append(
                f"Stopped after {lasting(self.seconds or 0.0)}: those that are left were seen with "
                f"{reached} of {self.sizes[-1]} examples."
            )
        full = self.sizes[-1] * len(self.every)
        passes = sum(runner.passes for runner in self.every)
        course = Course(
            looks=tuple(self.looks),
            survivors=len(survivors),
            passes=passes,
            passes_in_full=full,
            seconds=time.perf_counter() - self.began,
            least_seconds=self.expected_seconds[0],
            most_seconds=self.expected_seconds[1],
            stopped=self.stopped,
        )
        return ranking_of(
            self.sample.task,
            stick,
            (*survivors, *sorted(self.fallen, key=lambda p: (-(p.seen or 0), -p.score))),
            left_out=self.left_out,
            notes=notes,
            trained_here=[runner.name for runner in self.every if runner.trained_here],
            points={runner.name: list(runner.at or ()) for runner in self.every},
            split=split,
            pooling=pooling,
            permutations=options["permutations"],
            course=course,
        )

    def _falls(self, here: list[tuple[Runner, str | None, Seen]], n: int) -> list[Fall]:
        place = self.sizes.index(n)
        if place == 0 or n == self.sizes[-1] or len(here) < 2:
            return []
        before = self.sizes[place - 1]
        points = [runner.points[at] for runner, at, _ in here]
        verdicts = torch.stack([one.said[n].verdicts for one in points])
        levels = thresholds(verdicts, level=self.level, seed=self.seed)
        for one, own in zip(points, levels.tolist(), strict=True):
            one.threshold = max(one.threshold, own)
        return falls(
            verdicts,
            torch.stack([one.said[before].verdicts for one in points]),
            torch.tensor([one.threshold for one in points], dtype=torch.float64),
            ahead=still_to_come(before, n, self.sizes[-1]),
            worth=torch.tensor([one.said[n].worth for one in points]),
        )

    def _drop(
        self,
        loser: tuple[Runner, str | None, Seen],
        rival: tuple[Runner, str | None, Seen],
        fall: Fall,
        n: int,
    ) -> None:
        runner, at, seen = loser
        why = (
            f"fell out at {n} examples: {100 * fall.behind:.1f} points behind "
            f"{rival[2].ranked.name}, at least {100 * fall.at_least:.1f}"
        )
        self.fallen.append(replace(seen.ranked, seen=n, fell=why))
        del runner.points[at]
        if not runner.points:
            self.running.remove(runner)

    def _not_reached(self, name: str) -> None:
        self.stopped = True
        limit = lasting(self.seconds or 0.0)
        self.left_out.append(LeftOut(name, f"not reached within {limit}"))

    def _late(self, ahead: float) -> bool:
        spent = time.perf_counter() - self.began
        return self.seconds is not None and spent + ahead > self.seconds

    def _left(self) -> float:
        """Seconds until the end if nobody falls any more; a limit, if there is one, ends sooner."""
        most = sum(runner.ahead(self.sizes[-1]) for runner in self.running)
        if self.seconds is None:
            return most
        return max(0.0, min(most, self.seconds - (time.perf_counter() - self.began)))
