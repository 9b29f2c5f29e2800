"""Train several networks so that their parts fit, and put networks and parts on the shelf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dovetail.core.errors import SettingsError
from dovetail.core.views import Text
from dovetail.jobs.locate import find_part
from dovetail.jobs.nets import net_for
from dovetail.jobs.outcome import Outcome
from dovetail.jobs.recombine import keep_fits
from dovetail.jobs.runs import Run
from dovetail.jobs.shelving import also, names_for, notes_of, shelve
from dovetail.measure.evaluate import evaluate, need_test, with_measures
from dovetail.measure.recombination import Recombination
from dovetail.measure.recombine import recombine
from dovetail.parts.part import Part
from dovetail.shelf.names import check_name
from dovetail.shelf.places import name_of
from dovetail.shelf.store import Shelf
from dovetail.tasks.builtin import load_task
from dovetail.tasks.task import Task
from dovetail.train.compatible import WAYS, compatible
from dovetail.train.fitting.auxiliaries import AUXILIARIES
from dovetail.train.fitting.record import CompatibleFit

__all__ = ["auxiliary_heads", "train_compatible"]


def train_compatible(
    sources: Sequence[str],
    *,
    net: str = "lenet5",
    args: dict[str, Any] | None = None,
    starts: Sequence[str] = (),
    name: str | None = None,
    shelf: str | Path = "shelf",
    data: str | Path | None = None,
    task_options: dict[str, Any] | None = None,
    auxiliary: Sequence[str] = (),
    at: Sequence[str] | None = None,
    seed: int = 0,
    resume: bool = True,
    checkpoint_seconds: float = 10.0,
    **options: Any,
) -> Outcome:
    """Train a network on each task, measure every front with every head on test, shelve.

    On the shelf are ``name.task``, ``name.task.front`` and ``name.task.head`` for each task,
    ``name.dcc`` and ``name.rp``, and what was measured of each pair.  ``starts`` are parts to start
    from, one for all or one for each task; ``auxiliary`` are shelved heads to train against.
    """
    tasks = [load_task(source, data=data, **(task_options or {})) for source in sources]
    need_test(*tasks)
    models = _models(tasks, net, args, starts, options.get("by", tuple(WAYS)), shelf, seed)
    heads = auxiliary_heads(auxiliary, shelf)
    short = names_for((task.name for task in tasks), taken=AUXILIARIES)
    name = check_name(name or "-".join([name_of(starts[0]) if starts else net, *short])[:60])
    for word in short:
        check_name(f"{name}.{word}.front")
    store = Shelf(shelf)
    run = Run.of(
        store,
        {
            "how": "compatible",
            "tasks": [task.fingerprint for task in tasks],
            "starts": [model.digest for model in models],
            "recipes": [model.recipe for model in models],
            "auxiliaries": {each: part.digest for each, part in heads.items()},
            "name": name,
            "at": at,
            "seed": seed,
            **options,
        },
        resume=resume,
    )
    fit = compatible(
        models,
        tasks,
        at=at[0] if at and len(at) == 1 else at,
        auxiliaries=heads,
        seed=seed,
        checkpoint=run.checkpoint,
        checkpoint_seconds=checkpoint_seconds,
        resume=resume,
        **options,
    )
    found = recombine(
        dict(zip(short, fit.fronts, strict=True)),
        dict(zip(short, fit.heads, strict=True)),
        dict(zip(short, tasks, strict=True)),
        seed=seed,
    )
    measures = {
        each: {"test accuracy": evaluate(whole, task).accuracy, **_recombined(found, each)}
        for each, whole, task in zip(short, fit.networks, tasks, strict=True)
    }
    trained = {
        each: part
        for each, part in fit.auxiliaries.items()
        if each not in heads or part.digest != heads[each].digest
    }
    parts = _networks(name, fit, measures) | {f"{name}.{each}": p for each, p in trained.items()}
    entries = shelve(store, parts)
    keep_fits(found, store)
    run.clear()
    refs = [entries[f"{name}.{each}"].ref for each in short]
    are = "is" if len(refs) == 1 else "are"
    said = f"{' and '.join(refs)} {are} on the shelf '{store.folder}'"
    mean = found.mean_off_diagonal
    said += "" if mean is None else f": recombined they reach {mean:.1%} on test"
    return Outcome(
        view=(
            *notes_of(tasks, run.resumed),
            *fit.record.view(),
            Text("On the test images", style="heading"),
            *found.view(),
            *also(entry for entry in entries.values() if entry.ref not in refs),
            Text(said, style="heading"),
        ),
        data={
            "refs": refs,
            "networks": {
                each: {
                    "task": task.name,
                    "front": entries[f"{name}.{each}.front"].ref,
                    "head": entries[f"{name}.{each}.head"].ref,
                    "measures": parts[f"{name}.{each}"].origin.measured,
                }
                for each, task in zip(short, tasks, strict=True)
            },
            "auxiliaries": {each: entries[f"{name}.{each}"].ref for each in trained},
            "space": fit.fronts[0].contract.gives[0].space,
            "recombination": mean,
            "upper_bound": found.upper_bound,
            "resumed": run.resumed,
            "notes": [note for task in tasks for note in task.notes],
        },
        records=(fit.record, found),
    )


def auxiliary_heads(refs: Sequence[str], shelf: str | Path) -> dict[str, Part]:
    """Shelved heads by what they are for: ``pair.rp``, or ``rp=any.name``."""
    found: dict[str, Part] = {}
    for ref in refs:
        way, equals, named = ref.partition("=")
        if not equals:
            way, named = name_of(ref).rpartition(".")[2], ref
        if way not in AUXILIARIES:
            raise SettingsError(
                f"--auxiliary {ref}: say what the head is for, as in "
                f"{' or '.join(f'{each}={named}' for each in AUXILIARIES)}"
            )
        if way in found:
            raise SettingsError(f"--auxiliary names two heads for {way}")
        found[way] = find_part(named, shelf)
    return found


def _models(
    tasks: Sequence[Task],
    net: str,
    args: dict[str, Any] | None,
    starts: Sequence[str],
    by: Sequence[str],
    shelf: str | Path,
    seed: int,
) -> list[Part]:
    """A network for each task: shelved ones, or built; from one seed only to begin alike."""
    if len(starts) not in (0, 1, len(tasks)):
        raise SettingsError(
            f"--from names {len(starts)} parts for {len(tasks)} tasks; give one for all, or one "
            "for each in their order"
        )
    if starts:
        found = [find_part(ref, shelf) for ref in starts]
        return found * len(tasks) if len(found) == 1 else found
    apart = 0 if "iiw" in by else 1
    return [net_for(task, net, args, seed=seed + i * apart) for i, task in enumerate(tasks)]


def _networks(
    name: str, fit: CompatibleFit, measures: Mapping[str, Mapping[str, float]]
) -> dict[str, Part]:
    """The networks and their halves by name, with what they reached on test."""
    parts = {}
    for each, *three in zip(measures, fit.networks, fit.fronts, fit.heads, strict=True):
        for ending, part in zip(("", ".front", ".head"), three, strict=True):
            parts[f"{name}.{each}{ending}"] = with_measures(part, measures[each])
    return parts


def _recombined(found: Recombination, name: str) -> dict[str, float]:
    """The mean accuracy on test of a network's front or head with those of others."""
    others = [
        pair.accuracy[found.norms[0]]
        for pair in found.recombined
        if name in (pair.front, pair.head) and pair.accuracy
    ]
    return {"test recombination": sum(others) / len(others)} if others else {}
