"""Train, and put what was trained on the shelf."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.records import Record, slug
from dovetail.core.views import Text
from dovetail.dist.group import rank_and_size, under_torchrun
from dovetail.jobs.locate import find_part
from dovetail.jobs.nets import net_for
from dovetail.jobs.outcome import Outcome
from dovetail.jobs.runs import Run
from dovetail.jobs.shelving import also, notes_of, shelve
from dovetail.jobs.train_closed_form import network_asked, solve
from dovetail.jobs.train_many import train_compatible
from dovetail.jobs.train_self import train_self_supervised
from dovetail.jobs.train_ways import (
    CLOSED,
    COMPATIBLE,
    MODULAR,
    OPTIONS,
    SELF,
    SWITCHES,
    WAYS,
    WHOLE,
    check_asked,
)
from dovetail.measure.evaluate import Evaluation, evaluate, need_test, with_measures
from dovetail.parts.part import Part
from dovetail.shelf.names import check_name
from dovetail.shelf.places import name_of
from dovetail.shelf.store import Shelf
from dovetail.tasks.builtin import load_task
from dovetail.tasks.task import Task
from dovetail.train.end_to_end import end_to_end
from dovetail.train.fit import Fit
from dovetail.train.modular import modular
from dovetail.train.snapshots import Snapshots

__all__ = ["OPTIONS", "SWITCHES", "WAYS", "train"]

HOW: dict[str, Callable[..., Fit]] = {WHOLE: end_to_end, MODULAR: modular}
"""Ways to train one network for the labels of one task, by name."""


def train(
    source: str | Sequence[str],
    *,
    net: str | None = None,
    args: dict[str, Any] | None = None,
    start: str | Sequence[str] | None = None,
    name: str | None = None,
    shelf: str | Path = "shelf",
    how: str = "end-to-end",
    data: str | Path | None = None,
    task_options: dict[str, Any] | None = None,
    **options: Any,
) -> Outcome:
    """Train, measure, shelve; in the words of the command line.

    An unfinished run keeps a checkpoint beside the shelf under what it depends on: the same call
    goes on where it stopped, another call never finds it.  Under ``torchrun``, with
    ``average_every``, the processes train one network together; one of them shelves it.

    Several tasks, and several parts to start from, are for ``how="compatible"``
    (:mod:`dovetail.jobs.train_many`); without labels trains :mod:`dovetail.jobs.train_self`,
    without steps :mod:`dovetail.jobs.train_closed_form`.
    """
    sources = [source] if isinstance(source, str) else list(source)
    starts = [start] if isinstance(start, str) else list(start or ())
    options = check_asked(
        how,
        options,
        tasks=len(sources),
        starts=len(starts),
        new_net=net is not None or bool(args),
    )
    about: dict[str, Any] = {
        **{"net": net or "lenet5", "args": args, "name": name, "shelf": shelf},
        **{"data": data, "task_options": task_options},
    }
    if how == CLOSED:
        return _solve_one(sources[0], **{**about, "net": net}, **options)
    if how == COMPATIBLE:
        return train_compatible(sources, starts=starts, **about, **options)
    begin = starts[0] if starts else None
    if how == SELF:
        return train_self_supervised(sources[0], start=begin, **about, **options)
    with under_torchrun() if "average_every" in options else nullcontext():
        return _train_one(sources[0], how=how, start=begin, **about, **_packing(options))


def _train_one(
    source: str,
    *,
    how: str,
    net: str,
    args: dict[str, Any] | None,
    start: str | None,
    name: str | None,
    shelf: str | Path,
    data: str | Path | None,
    task_options: dict[str, Any] | None,
    seed: int = 0,
    resume: bool = True,
    checkpoint_seconds: float = 10.0,
    modules: bool = False,
    keep_epochs: int | None = None,
    **options: Any,
) -> Outcome:
    """Train one network for the labels of one task, measure on the test split, shelve.

    ``modules`` also shelves the pieces of a training in modules, as ``name.module1`` and
    ``name.head``; ``keep_epochs=n`` the network of every nth epoch, as ``name.epoch03``.
    """
    task = load_task(source, data=data, **(task_options or {}))
    if task.kind == "pairs":
        raise TaskError(
            f"{task.name!r} has pair labels only, and the classes must come from somewhere; "
            "in Python, dt.train.modular takes them from a second task, as head_task="
        )
    need_test(task)
    part = find_part(start, shelf) if start else net_for(task, net, args, seed=seed)
    name = check_name(name or f"{name_of(start) if start else net}-{slug(task.name)}")
    for suffix in [".module1"] * modules + [".epoch0000"] * (keep_epochs is not None):
        check_name(name + suffix)
    store = Shelf(shelf)
    run = Run.of(
        store,
        {
            "task": task.fingerprint,
            "start": part.digest,
            "recipe": part.recipe,
            "how": how,
            "name": name,
            "seed": seed,
            "keep_epochs": keep_epochs,
            **options,
        },
        resume=resume,
    )
    first = rank_and_size()[0] == 0
    snapshots = Snapshots(keep_epochs, run.epochs) if keep_epochs is not None and first else None
    fit = HOW[how](
        part,
        task,
        seed=seed,
        checkpoint=run.checkpoint,
        checkpoint_seconds=checkpoint_seconds,
        resume=resume,
        callbacks=() if snapshots is None else (snapshots,),
        **options,
    )
    if not first:
        return Outcome(view=(), data={})  # all hold the same network; one of them shelves it
    test = evaluate(fit.part, task)
    trained = _with_test(fit.part, test)
    others = _pieces(fit) if modules else {}
    others |= {} if snapshots is None else _epochs(snapshots, trained)
    outcome = _shelved(
        store,
        {name: trained} | {f"{name}.{suffix}": part for suffix, part in others.items()},
        task,
        fit.record,
        test,
        resumed=run.resumed,
        epochs=len(getattr(fit.record, "rows", ())),
    )
    run.clear()
    return outcome


def _solve_one(
    source: str,
    *,
    net: str | None,
    args: dict[str, Any] | None,
    name: str | None,
    shelf: str | Path,
    data: str | Path | None,
    task_options: dict[str, Any] | None,
    **options: Any,
) -> Outcome:
    """Solve for a network for one task, measure on the test split, shelve."""
    network = network_asked(net, args)
    task = load_task(source, data=data, **(task_options or {}))
    need_test(task)
    name = check_name(name or f"mlp-{slug(task.name)}")
    part, record, test = solve(task, network, **options)
    return _shelved(
        Shelf(shelf),
        {name: _with_test(part, test)},
        task,
        record,
        test,
        layers=record.to_plain()["data"],
        precision=record.settings["precision"],
    )


def _with_test(part: Part, test: Evaluation) -> Part:
    return with_measures(part, {f"test {name}": value for name, value in test.measures.items()})


def _shelved(
    store: Shelf,
    parts: dict[str, Part],
    task: Task,
    record: Record,
    test: Evaluation,
    *,
    resumed: bool = False,
    **facts: Any,
) -> Outcome:
    """Put what was made on the shelf, the network first, and say so.

    ``facts`` are data beside what every way to train has to tell.
    """
    entry, *beside = shelve(store, parts).values()
    name, value = next(iter(test.measures.items()))
    said = (
        f"{entry.ref} is on the shelf '{store.folder}': "
        f"test {name} {value:.4f} on {test.n} examples"
    )
    return Outcome(
        view=(
            *notes_of([task], resumed),
            *record.view(),
            *also(beside),
            Text(said, style="heading"),
        ),
        data={
            "ref": entry.ref,
            "measures": next(iter(parts.values())).origin.measured,
            "resumed": resumed,
            "also": [each.ref for each in beside],
            "notes": task.notes,
            **facts,
        },
        records=(record, test),
    )


def _packing(options: dict[str, Any]) -> dict[str, Any]:
    """The options in the words of the trainer."""
    if "extra_bits" not in options:
        return options
    if "average_every" not in options:
        raise SettingsError(
            "--extra-bits is about the weights that processes exchange; say --average-every too"
        )
    rest = {name: value for name, value in options.items() if name != "extra_bits"}
    return rest | {"packing": {"extra_bits": options["extra_bits"]}}


def _pieces(fit: Fit) -> dict[str, Part]:
    """The modules by name: ``module1``, ``module2``, ..., ``head``."""
    *body, head = fit.parts
    return {f"module{i}": part for i, part in enumerate(body, start=1)} | {"head": head}


def _epochs(snapshots: Snapshots, trained: Part) -> dict[str, Part]:
    """The networks of earlier epochs by name, with as many digits as sort them."""
    width = max(2, len(str(max(snapshots.epochs, default=0))))
    parts = snapshots.parts(trained).values()
    return {
        f"epoch{epoch:0{width}}": part for epoch, part in zip(snapshots.epochs, parts, strict=True)
    }
