"""A head stays, its front changes: for images of another domain, or for another architecture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.core.errors import SettingsError, ShelfError
from dovetail.core.records import Record
from dovetail.core.views import Text, View
from dovetail.jobs.locate import FRONTS, HEADS, find_half, find_part, own_head
from dovetail.jobs.nets import net_for
from dovetail.jobs.outcome import Outcome
from dovetail.jobs.runs import Run
from dovetail.jobs.shelving import also, keep_pair, names_for, notes_of, shelve
from dovetail.jobs.train_many import auxiliary_heads
from dovetail.measure.evaluate import need_test, with_measures
from dovetail.parts.norms import Norms
from dovetail.parts.part import Part
from dovetail.reuse.domain import adapt_domain
from dovetail.reuse.domain_record import judge_adaptation
from dovetail.reuse.replacement import replace_front
from dovetail.reuse.replacement_record import judge_replacement
from dovetail.shelf.names import check_name
from dovetail.shelf.places import name_of, stem_of
from dovetail.shelf.store import Shelf
from dovetail.tasks.builtin import load_task

__all__ = ["domain", "replace"]


def domain(
    network: str,
    source: str,
    *,
    head: str | None = None,
    rp: str | None = None,
    pretext: str = "rotation",
    norms: Norms = "batch",
    name: str | None = None,
    shelf: str | Path = "shelf",
    data: str | Path | None = None,
    task_options: dict[str, Any] | None = None,
    seed: int = 0,
    resume: bool = True,
    checkpoint_seconds: float = 10.0,
    **options: Any,
) -> Outcome:
    """Adapt the front of a network to unlabelled images, and judge it by test labels if it can be.

    The network's front and head are on the shelf, and so is the pretext's head that they were
    trained with: by default ``pair.rp`` for ``pair.digits``.  Shelves ``name`` and ``name.front``.
    """
    front = find_half(network, FRONTS, shelf)
    behind = find_half(head or own_head(network, shelf), HEADS, shelf)
    asked = find_part(rp, shelf) if rp else _pretext_head(network, shelf)
    task = load_task(source, data=data, **(task_options or {}))
    name = check_name(name or f"{stem_of(network)}-to-{names_for([task.name])[0]}")
    check_name(f"{name}.front")
    store = Shelf(shelf)
    facts = {
        **{"how": "domain", "front": front.digest, "head": behind.digest, "rp": asked.digest},
        **{"task": task.fingerprint, "name": name, "pretext": pretext, "norms": norms},
        **{"seed": seed, **options},
    }
    run = Run.of(store, facts, resume=resume)
    fit = adapt_domain(
        front,
        asked,
        task,
        head=behind,
        pretext=pretext,
        norms=norms,
        seed=seed,
        checkpoint=run.checkpoint,
        checkpoint_seconds=checkpoint_seconds,
        resume=resume,
        **options,
    )
    adapted, whole = fit.parts[0], fit.part
    records: tuple[Record, ...] = (fit.record,)
    found: View = (
        Text(
            f"Not judged: the test images of {task.name} have no labels that the head knows.",
            style="note",
        ),
    )
    known, gain = set(behind.contract.classes or ()), None
    if task.kind == "classes" and known.issuperset(task.classes) and task.size("test"):
        judged = judge_adaptation(front, adapted, behind, task, norms=norms, seed=seed)
        records, found, gain = (*records, judged), judged.view(), judged.gain
        adapted, whole = (
            with_measures(part, {"test accuracy": gain.after}) for part in (adapted, whole)
        )
        keep_pair(store, adapted, behind, task, norms, gain.after, judged.chance)
    entries = shelve(store, {name: whole, f"{name}.front": adapted})
    run.clear()
    return _outcome(
        (*notes_of([task], run.resumed), *fit.record.view(), *found),
        entries,
        {"gain": None if gain is None else gain.difference, "resumed": run.resumed},
        records,
        "" if gain is None else f": {gain.after:.1%} on test, {gain.shown}",
    )


def replace(
    network: str,
    source: str,
    *,
    net: str | None = None,
    args: dict[str, Any] | None = None,
    start: str | None = None,
    head: str | None = None,
    at: str | None = None,
    auxiliary: Sequence[str] = (),
    pretext: str = "rotation",
    norms: Norms = "stored",
    name: str | None = None,
    shelf: str | Path = "shelf",
    data: str | Path | None = None,
    task_options: dict[str, Any] | None = None,
    seed: int = 0,
    resume: bool = True,
    checkpoint_seconds: float = 10.0,
    **options: Any,
) -> Outcome:
    """Train another front behind a network's head, and say what the switch costs on test.

    Shelves ``name`` and ``name.front``; the head stays the one that is there.
    """
    if (start is None) == (net is None):
        raise SettingsError("say what the new front is: --net resnet8, or --from PART")
    if start is not None and args:
        raise SettingsError("a run from a part keeps its network; leave out --set")
    old = find_half(network, FRONTS, shelf)
    behind = find_half(head or own_head(network, shelf), HEADS, shelf)
    others = auxiliary_heads(auxiliary, shelf)
    task = load_task(source, data=data, **(task_options or {}))
    need_test(task)
    new = find_part(start, shelf) if start else net_for(task, net or "", args, seed=seed)
    name = check_name(name or f"{stem_of(network)}-{name_of(start) if start else net}")
    check_name(f"{name}.front")
    store = Shelf(shelf)
    facts = {
        **{"how": "replace", "start": new.digest, "recipe": new.recipe, "head": behind.digest},
        **{"old": old.digest, "others": {k: part.digest for k, part in others.items()}},
        **{"task": task.fingerprint, "name": name, "at": at, "pretext": pretext, "norms": norms},
        **{"seed": seed, **options},
    }
    run = Run.of(store, facts, resume=resume)
    fit = replace_front(
        new,
        behind,
        task,
        old=old,
        auxiliaries=others,
        at=at,
        pretext=pretext,
        norms=norms,
        seed=seed,
        checkpoint=run.checkpoint,
        checkpoint_seconds=checkpoint_seconds,
        resume=resume,
        **options,
    )
    front, kept = fit.parts
    judged = judge_replacement(old, front, kept, task, norms=norms, seed=seed)
    change = judged.change
    parts = {name: fit.part, f"{name}.front": front}
    if kept.contract != behind.contract:  # it takes maps of any size now, and must say so
        parts[f"{name}.head"] = kept
    entries = shelve(
        store, {k: with_measures(p, {"test accuracy": change.after}) for k, p in parts.items()}
    )
    for switch in judged.switches:
        keep_pair(store, front, behind, task, switch.norms, switch.change.after, judged.chance)
    run.clear()
    return _outcome(
        (*notes_of([task], run.resumed), *fit.record.view(), *judged.view()),
        entries,
        {"before": change.before, "after": change.after, "resumed": run.resumed},
        (fit.record, judged),
        f": {change.after:.1%} on test, {change.shown} to the old front",
    )


def _outcome(
    view: View, entries: dict[str, Any], facts: dict[str, Any], records: Any, said: str
) -> Outcome:
    first, *beside = entries.values()
    return Outcome(
        view=(*view, *also(beside), Text(f"{first.ref} is on the shelf{said}", style="heading")),
        data={"ref": first.ref, "also": [entry.ref for entry in beside], **facts},
        records=records,
    )


def _pretext_head(network: str, shelf: str | Path) -> Part:
    """The head that a network's group shares: ``pair.rp`` for ``pair.digits``."""
    group, dot, _ = stem_of(network).rpartition(".")
    name = f"{group}{dot}rp"
    try:
        return find_part(name, shelf)
    except ShelfError:
        raise ShelfError(
            f"no pretext's head {name!r} for {network!r} on the shelf {shelf}; name it with --rp. "
            "It comes with the network from 'train --how compatible --by rp'"
        ) from None
