"""Partitions that are trained at once: in this process, or this process's of several."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dovetail.core.plain import to_plain
from dovetail.dist.transport import Message
from dovetail.dist.wire import Packing
from dovetail.parts.part import Part
from dovetail.tasks.task import Task
from dovetail.train.crew import Crew
from dovetail.train.frame import Course, Stages
from dovetail.train.layerwise import Work
from dovetail.train.loop import Turns
from dovetail.train.options import Moment
from dovetail.train.partition_record import PartitionHistory
from dovetail.train.pipeline import Inside, Neighbours, Partition, in_line
from dovetail.train.stage_sizes import words_of
from dovetail.train.supervision import Loss, labelled_batches
from dovetail.train.together import Company


def _partition(
    course: Course, each: Work, whole: Part, task: Task, loss: Loss, **links: Any
) -> Partition:
    """A partition at work."""
    between = course.filter
    batches = labelled_batches(
        whole.contract, task, course.augment, course.options.batch_size, course.seed
    )
    return Partition(
        each.network,
        links.pop("called", each.network),
        batches,
        task,
        whole.contract,
        loss,
        each.scale,
        course.device,
        filtering=None if between is None or between.by == "inputs" else between,
        **links,
    )


def _turns(
    course: Course,
    each: Work,
    partition: Partition,
    whole: Part,
    company: Company,
    seed: int,
) -> Turns:
    """The loop of a partition; callbacks hear which one it is, and see the whole network."""

    def told(callback: Callable[[Moment], Any]) -> Callable[[Moment], Any]:
        return lambda m: callback(Moment(m.epoch, whole.module, m.measures, each.stage.name))

    return course.turns(
        each.network,
        partition,
        partition.step,
        validate=partition.validate if partition.task.size("validation") else None,
        seed=seed,
        stage=each.stage.name,
        options=replace(each.options, callbacks=tuple(map(told, each.options.callbacks))),
        together=company,
    )


def in_this_process(
    course: Course,
    stages: Stages,
    work: Sequence[Work],
    whole: Part,
    task: Task,
    loss: Loss,
    packing: str | Packing,
) -> list[PartitionHistory]:
    """All in this process."""
    links = [Inside(packing, lambda: None) for _ in work[1:]]
    at_work, turns = [], []
    for each, below, above in zip(work, [None, *links], [*links, None], strict=True):
        partition = _partition(course, each, whole, task, loss, below=below, above=above)
        at_work.append(partition)
        company = Neighbours(partition)
        seed = stages.seed_of(each.stage.name)
        turns.append(_turns(course, each, partition, whole, company, seed))
    seconds = in_line(turns, links, course.device, task.name)
    return [
        history_of(each, tuple(t.run.rows), taken, partition.seen, sent=sent)
        for each, t, taken, partition, sent in zip(
            work, turns, seconds, at_work, [*(link.sent for link in links), 0], strict=True
        )
    ]


def in_processes(
    course: Course,
    stages: Stages,
    work: Sequence[Work],
    whole: Part,
    task: Task,
    loss: Loss,
    packing: str | Packing,
    queue: int,
    crew: Crew,
) -> list[PartitionHistory]:
    """The one of this process; then all of them, in every process."""
    place = crew.place
    each = work[place.partition]
    below, above = crew.links(queue, packing)
    partition = _partition(
        course,
        each,
        whole,
        task,
        loss,
        called=crew.called(each.network, course.device),
        below=below,
        above=above,
        share=(place.replica, place.replicas),
        beat=crew.council.beat,
    )
    crew.partition = partition
    seed = stages.seed_of(each.stage.name)
    if place.replica > 0:
        seed = stages.seed_of(f"{each.stage.name}/{place.replica}")
    began, before = time.perf_counter(), crew.transport.waited
    turns = _turns(course, each, partition, whole, crew, seed)
    turns.go(label=f"{task.name}, {each.stage.name}")
    each.network.zero_grad(set_to_none=True)
    waited = crew.transport.waited - before
    working = time.perf_counter() - began - waited
    mine = history_of(
        each, tuple(turns.run.rows), working, partition.seen, sent=crew.transport.sent
    )
    return _all_of(crew, work, whole, replace(mine, waiting=waited))


def _all_of(
    crew: Crew, work: Sequence[Work], whole: Part, mine: PartitionHistory
) -> list[PartitionHistory]:
    """Every process ends with the whole network, and every partition's history."""
    own = work[crew.place.partition].stage.layers.state_dict()
    messages = crew.gathered(own, to_plain(mine))
    for each, message in zip(work, messages, strict=False):
        each.stage.layers.load_state_dict(dict(message.tensors))
    state = dict(whole.module.state_dict())
    histories = [message.facts for message in messages]
    found = crew.council.share(Message("whole", state, histories))
    if crew.rank > 0:
        whole.module.load_state_dict(dict(found.tensors))
    return [
        PartitionHistory(**{**each, "layers": (), "rows": tuple(each["rows"])})
        for each in found.facts
    ]


def history_of(
    each: Work, rows: Any, working: float, seen: int, kept: int | None = None, sent: int = 0
) -> PartitionHistory:
    """What became of a partition."""
    return PartitionHistory(
        each.stage.name,
        (),
        words_of(each.stage),
        tuple(rows),
        len(rows) if kept is None else kept,
        sum(p.numel() for p in each.stage.layers.parameters()),
        working,
        0.0,
        sent / 1e6,
        seen,
    )
