"""Train several networks so that their parts fit, and put networks and parts on the shelf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.core.errors import SettingsError, argument
from dovetail.core.views import Text
from dovetail.jobs import Outcome
from dovetail.jobs.frame import Frame, alone, names_for, net_for
from dovetail.jobs.recombine import keep_fits
from dovetail.measure.evaluate import evaluate, with_measures
from dovetail.measure.recombination import Recombination
from dovetail.measure.recombine import recombine
from dovetail.parts.part import Part
from dovetail.settings.train import Compatible, Way
from dovetail.shelf.names import name_of
from dovetail.tasks.task import Task
from dovetail.train.compatible_record import CompatibleFit
from dovetail.train.group_parts import AUXILIARIES

__all__ = ["auxiliary_heads", "train_many"]


def train_many(
    frame: Frame,
    way: Way,
    tasks: Sequence[Task],
    starts: Sequence[str],
    net: str,
    args: dict[str, Any] | None,
    *,
    auxiliaries: Sequence[str] = (),
    at: Sequence[str] | None = None,
    **options: Any,
) -> Outcome:
    """Train a network on each task, measure every front with every head on test, shelve.

    On the shelf are ``name.task``, ``name.task.front`` and ``name.task.head`` for each task,
    ``name.dcc`` and ``name.rp``, and what was measured of each pair.  ``starts`` are parts to start
    from, one for all or one for each task; ``auxiliaries`` are shelved heads to train against.
    """
    models = _models(frame, tasks, net, args, starts, options.get("by", Compatible.by))
    heads = auxiliary_heads(auxiliaries, frame)
    short = names_for((task.name for task in tasks), taken=AUXILIARIES)
    usual = "-".join([name_of(starts[0]) if starts else net, *short])[:60]
    name = frame.named(usual, *(f".{word}.front" for word in short))
    fit: CompatibleFit = frame.train(
        way.load(),
        models,
        tasks,
        at=alone(at),
        auxiliaries=heads,
        **options,
    )
    pairs = recombine(
        dict(zip(short, fit.fronts, strict=True)),
        dict(zip(short, fit.heads, strict=True)),
        dict(zip(short, tasks, strict=True)),
        seed=frame.seed,
    )
    measures = {
        each: {"test accuracy": evaluate(whole, task).accuracy, **_recombined(pairs, each)}
        for each, whole, task in zip(short, fit.networks, tasks, strict=True)
    }
    trained = {
        each: part
        for each, part in fit.auxiliaries.items()
        if each not in heads or part.digest != heads[each].digest
    }
    parts = _networks(name, fit, measures) | {f"{name}.{each}": p for each, p in trained.items()}
    entries = frame.shelve(parts)
    keep_fits(pairs, frame.store)
    refs = [entries[f"{name}.{each}"].ref for each in short]
    are = "is" if len(refs) == 1 else "are"
    verdict = f"{' and '.join(refs)} {are} on the shelf '{frame.store.folder}'"
    mean = pairs.mean_off_diagonal
    verdict += "" if mean is None else f": recombined they reach {mean:.1%} on test"
    return frame.outcome(
        tasks,
        (*fit.record.view(), Text("On the test images", style="heading"), *pairs.view()),
        (entry for entry in entries.values() if entry.ref not in refs),
        verdict,
        {
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
            "upper_bound": pairs.upper_bound,
            "notes": [note for task in tasks for note in task.notes],
        },
        (fit.record, pairs),
    )


def auxiliary_heads(refs: Sequence[str], frame: Frame) -> dict[str, Part]:
    """Shelved heads by what they are for: ``pair.rp``, or ``rp=any.name``."""
    heads: dict[str, Part] = {}
    for ref in refs:
        way, equals, named = ref.partition("=")
        if not equals:
            way, named = name_of(ref).rpartition(".")[2], ref
        if way not in AUXILIARIES:
            raise SettingsError(
                f"{argument('auxiliaries')} {ref}: say what the head is for, as in "
                f"{' or '.join(f'{each}={named}' for each in AUXILIARIES)}"
            )
        if way in heads:
            raise SettingsError(f"{argument('auxiliaries')} names two heads for {way}")
        heads[way] = frame.part(named)
    return heads


def _models(
    frame: Frame,
    tasks: Sequence[Task],
    net: str,
    args: dict[str, Any] | None,
    starts: Sequence[str],
    by: Sequence[str],
) -> list[Part]:
    """A network for each task: shelved ones, or built; from one seed only to begin alike."""
    if len(starts) not in (0, 1, len(tasks)):
        raise SettingsError(
            f"{argument('start')} names {len(starts)} parts for {len(tasks)} tasks; give one "
            "for all, or one for each in their order"
        )
    if starts:
        models = [frame.part(ref) for ref in starts]
        return models * len(tasks) if len(models) == 1 else models
    apart = 0 if "iiw" in by else 1
    return [net_for(task, net, args, seed=frame.seed + i * apart) for i, task in enumerate(tasks)]


def _networks(
    name: str, fit: CompatibleFit, measures: Mapping[str, Mapping[str, float]]
) -> dict[str, Part]:
    """The networks and their halves by name, with what they reached on test."""
    parts = {}
    for each, *three in zip(measures, fit.networks, fit.fronts, fit.heads, strict=True):
        for ending, part in zip(("", ".front", ".head"), three, strict=True):
            parts[f"{name}.{each}{ending}"] = with_measures(part, measures[each])
    return parts


def _recombined(record: Recombination, name: str) -> dict[str, float]:
    """The mean accuracy on test of a network's front or head with those of others."""
    others = [
        pair.accuracy[record.norms[0]]
        for pair in record.recombined
        if name in (pair.front, pair.head) and pair.accuracy
    ]
    return {"test recombination": sum(others) / len(others)} if others else {}
