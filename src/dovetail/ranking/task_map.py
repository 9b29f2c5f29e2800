r"""The space of tasks: how well a part made for one task serves another, estimated and true.

Each task has a direction; its distance from the centre is the lack of transferability with respect
to one task, which stands at the centre as source or as target.  With values :math:`v_i` (a score or
an accuracy, higher is better) of the tasks in one figure,

.. math:: r_i = \frac{\max_j v_j - v_i}{\max_j v_j - \min_j v_j} \in [0, 1] ,

zero for the best.  Estimate and truth are scaled apart, so that only their orders and relative gaps
are compared: a score has no unit that an accuracy shares.

A task as *target* compares sources on the same examples.  A task as *source* compares one part on
the examples of several targets, which is sound only for scores that mean the same on each of them;
with unlike numbers of classes most do not.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Literal

from scipy import stats

from dovetail.core.declared import Shown, heatmap, text, when
from dovetail.core.errors import SettingsError, TaskError, nearest
from dovetail.core.records import Record
from dovetail.core.views import Block, Cell, Figure, Series, Table, View

Role = Literal["source", "target"]
Cells = tuple[tuple[float | None, ...], ...]
_Pair = tuple[float | None, float | None]
Transfers = Mapping[str, Mapping[str, float]]

_NOISE = 1e-12  # relative to the largest; values closer than this are one value


def _matrix(title: str, cells: str) -> Shown:
    return heatmap(title, "sources", "targets", cells, "source", "target", ".3g")


@dataclass(frozen=True)
class Agreement:
    """Whether estimate and truth put the tasks in one order, around one task in one role.

    ``spearman`` and ``weighted_kendall`` are 1 for one order and -1 for the opposite, and None when
    fewer than two tasks have both values or all values are the same.  ``regret`` is how much truth
    is lost by taking the source that the estimate prefers (of equals, the first).
    """

    task: str
    role: Role
    count: int
    spearman: float | None
    weighted_kendall: float | None
    regret: float | None


_UNKNOWN = Agreement("", "target", 0, None, None, None)


@dataclass(frozen=True, kw_only=True)
class TaskMap(
    Record,
    kind="task-map",
    title="A map of {tasks!n} tasks by {by}",
    brief="{sources!n} sources, {targets!n} targets, by {by}",
):
    """Estimated and true transfer from sources (rows) to targets (columns); higher is better.

    ``None`` marks what was not measured; ``true`` is empty when nothing is known of the truth.
    ``focus`` are the tasks to draw in detail; empty draws every task, without tables.

    >>> TaskMap(sources=("a",), targets=("a", "b"), estimated=((0.9, 0.4),))
    TaskMap(1 sources, 2 targets, by score)
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    estimated: Cells
    true: Cells = ()
    focus: tuple[str, ...] = ()
    by: str = "score"
    measure: str = "accuracy"

    def __post_init__(self) -> None:
        shape = [len(self.targets)] * len(self.sources)
        shapes = [[len(row) for row in cells] for cells in (self.estimated, self.true)]
        if shapes[0] != shape or (self.true and shapes[1] != shape):
            raise ValueError("a task map needs a row for each source, a cell for each target")

    @property
    def tasks(self) -> tuple[str, ...]:
        """Every task once, in the order of the targets, then sources that are no target."""
        return tuple(dict.fromkeys((*self.targets, *self.sources)))

    def roles(self, task: str) -> tuple[Role, ...]:
        """What a task is in this map: a source, a target or both.

        >>> task_map({"a": {"b": 1.0}}).roles("b")
        ('target',)
        """
        return tuple(role for role, known in self._order.items() if task in known)

    @cached_property
    def _order(self) -> dict[Role, dict[str, int]]:
        """Where each name comes first, as a source and as a target."""
        both: dict[Role, tuple[str, ...]] = {"source": self.sources, "target": self.targets}
        return {
            role: {name: i for i, name in reversed(list(enumerate(names)))}
            for role, names in both.items()
        }

    def around(self, task: str, role: Role, *, own: bool = True) -> dict[str, _Pair]:
        """The estimated and the true value of every other task, and of itself if ``own``.

        >>> both = task_map({"a": {"a": 3, "b": 1}, "b": {"a": 2}}, {"a": {"a": 0.9}})
        >>> both.around("a", "target")
        {'a': (3.0, 0.9), 'b': (2.0, None)}
        """
        names = self.sources if role == "source" else self.targets
        at = self._order[role].get(task)
        if at is None:
            raise SettingsError(f"{task!r} is no {role} of this map{nearest(task, names)}")
        others = self.targets if role == "source" else self.sources
        nearest_pairs: dict[str, _Pair] = {}
        for i, other in enumerate(others):
            row, column = (at, i) if role == "source" else (i, at)
            estimate = self.estimated[row][column]
            truth = self.true[row][column] if self.true else None
            if (own or other != task) and (estimate, truth) != (None, None):
                nearest_pairs[other] = (estimate, truth)
        return nearest_pairs

    def agreement(self, task: str, role: Role = "target", *, own: bool = False) -> Agreement:
        """How well the estimate's order of the others is the true one.

        A task's own part is left out by default: that it serves best is no discovery.

        >>> estimated = {"a": {"c": 1}, "b": {"c": 2}, "c": {"c": 9}}
        >>> true = {"a": {"c": 0.7}, "b": {"c": 0.6}, "c": {"c": 0.9}}
        >>> agreement = task_map(estimated, true).agreement("c")
        >>> round(agreement.spearman, 3), round(agreement.regret, 3)
        (-1.0, 0.1)
        """
        pairs = self.around(task, role, own=own).values()
        both = [(e, t) for e, t in pairs if e is not None and t is not None]
        estimates, truths = [e for e, _ in both], [t for _, t in both]
        regret = None
        if both and role == "target":
            regret = max(truths) - truths[estimates.index(max(estimates))]
        ordered = _spread(estimates) > 0 and _spread(truths) > 0
        return Agreement(
            task,
            role,
            len(both),
            float(stats.spearmanr(estimates, truths).statistic) if ordered else None,
            float(stats.weightedtau(estimates, truths).statistic) if ordered else None,
            regret,
        )

    @property
    def summary(self) -> str:
        """The finding in a few sentences."""
        words = [
            f"Transfer from {len(self.sources)} sources to {len(self.targets)} targets, "
            f"estimated by {self.by}."
        ]
        agreements = [self.agreement(task) for task in self.targets] if self.true else []
        orders = [a.spearman for a in agreements if a.spearman is not None]
        regrets = [a.regret for a in agreements if a.regret is not None]
        if orders:
            words.append(
                "Its order of the sources is the true one with a rank correlation of "
                f"{fmean(orders):.2f}, the mean over targets, their own source left out; "
                f"taking the source it prefers costs {fmean(regrets):.2g} of {self.measure}."
            )
        return " ".join(words)

    def _agreements(self) -> Table:
        rows: list[tuple[Cell, ...]] = []
        for task in self.tasks:
            by_role = {role: self.agreement(task, role) for role in self.roles(task)}
            source, target = (by_role.get(role, _UNKNOWN) for role in ("source", "target"))
            as_target = (target.spearman, target.weighted_kendall, target.regret)
            rows.append((task, *as_target, source.spearman, source.weighted_kendall))
        titles = ("as target: Spearman", "weighted τ", "regret")
        columns = ("task", *titles, "as source: Spearman", "weighted τ as source")
        caption = "Estimate against truth, a task's own source left out"
        return Table(columns, tuple(rows), ("", ".2f", ".2f", ".3f", ".2f", ".2f"), caption)

    def _detail(self, task: str, role: Role) -> list[Block]:
        pairs = self.around(task, role)
        names, other = tuple(pairs), "target" if role == "source" else "source"
        values = [tuple(v) for v in zip(*pairs.values(), strict=True)] or [(), ()]
        words = [f"estimated ({self.by})", f"true ({self.measure})"]
        drawn = [
            Series(name, names, _distances(column))
            for name, column in zip(words, values, strict=True)
            if any(value is not None for value in column)
        ]
        if not drawn:
            return []
        title = f"{task} as {role}: the nearer a {other}, the better the transfer"
        label = "distance: 0 the best, 1 the worst of these"
        blocks: list[Block] = [Figure("polar", title, tuple(drawn), other, label, ".2f")]
        if self.focus:
            ranks = [_ranks(column) for column in values]
            rows = zip(names, values[0], ranks[0], values[1], ranks[1], strict=True)
            columns = (other, words[0], "estimated place", words[1], "true place")
            keep = 5 if len(drawn) == 2 else 3
            table = tuple(tuple(row[:keep]) for row in rows)
            formats = ("", ".4g", "", ".4g", "")[:keep]
            blocks.append(Table(columns[:keep], table, formats, f"{task} as {role}"))
        return blocks

    def _details(self) -> View:
        """A map around each task, in each of its roles."""
        tasks = dict.fromkeys(self.focus) or self.tasks
        around = (self._detail(task, role) for task in tasks for role in self.roles(task))
        return tuple(block for detail in around for block in detail)

    shows = (
        text("{summary}"),
        _matrix("Estimated: {by}", "estimated"),
        when("true", _matrix("True: {measure}", "true"), _agreements),
        _details,
    )


def task_map(
    estimated: Transfers,
    true: Transfers | None = None,
    *,
    focus: str | Sequence[str] | None = None,
    by: str = "score",
    measure: str = "accuracy",
) -> TaskMap:
    """Map tasks by estimated transfer, beside the true one where it is known.

    Args:
        estimated: ``estimated[source][target]`` is a score, higher is better, such as
            :func:`dovetail.ranking.score` of the source's features on the target's examples.
        true: The same for what a head on the source's part truly reaches, such as test accuracy.
        focus: One task or several to draw in detail, with tables; default: every task, drawn only.
        by: What the estimate is called.
        measure: What the truth is called.

    >>> estimated = {"cats": {"cats": 0.9, "dogs": 0.7}, "cars": {"cats": 0.2, "dogs": 0.3}}
    >>> task_map(estimated, focus="dogs", by="al")
    TaskMap(2 sources, 2 targets, by al)
    """
    sources = tuple(estimated)
    targets = tuple(dict.fromkeys(name for row in estimated.values() for name in row))
    if not sources or not targets:
        raise SettingsError(
            "a task map needs at least one source and one target: "
            "pass {source: {target: score}}, such as {'cats': {'dogs': 0.7}}"
        )
    truth: Cells = ()
    if true:
        for source, row in true.items():
            _known(source, sources, "source")
            for target in row:
                _known(target, targets, "target")
        truth = _cells(true, sources, targets, measure)
    record = TaskMap(
        sources=sources,
        targets=targets,
        estimated=_cells(estimated, sources, targets, by),
        true=truth,
        focus=(focus,) if isinstance(focus, str) else tuple(focus or ()),
        by=by,
        measure=measure,
    )
    for name in record.focus:
        if name not in record.tasks:
            raise SettingsError(f"{name!r} is no task of this map{nearest(name, record.tasks)}")
    return record


def _known(name: str, names: Sequence[str], role: Role) -> None:
    if name not in names:
        raise SettingsError(
            f"the truth has a {role} {name!r} that was not estimated{nearest(name, names)}"
        )


def _cells(values: Transfers, sources: Sequence[str], targets: Sequence[str], what: str) -> Cells:
    def cell(source: str, target: str) -> float | None:
        value = values.get(source, {}).get(target)
        if value is None:
            return None
        if not math.isfinite(value):
            raise TaskError(
                f"{what} of {source!r} on {target!r} is {value}; leave the pair out of the map"
            )
        return float(value)

    return tuple(tuple(cell(source, target) for target in targets) for source in sources)


def _spread(values: Sequence[float]) -> float:
    """The distance from the least to the greatest, 0 if it is rounding."""
    if not values:
        return 0.0
    spread = max(values) - min(values)
    return spread if spread > _NOISE * max(abs(v) for v in values) else 0.0


def _distances(values: Sequence[float | None]) -> tuple[float | None, ...]:
    """Zero for the best, one for the worst; all zero when there is no difference."""
    known = [value for value in values if value is not None]
    best, spread = max(known, default=0.0), _spread(known) or math.inf
    return tuple(None if value is None else (best - value) / spread for value in values)


def _ranks(values: Sequence[float | None]) -> tuple[int | None, ...]:
    """One for the best; equals share the better place."""
    known = sorted(-value for value in values if value is not None)
    return tuple(None if value is None else 1 + bisect_left(known, -value) for value in values)
