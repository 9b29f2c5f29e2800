"""One head, many fronts: shared from the start, taught more classes, tried behind candidates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from dovetail.core.errors import SettingsError
from dovetail.core.views import Text
from dovetail.jobs.locate import FRONTS, HEADS, find_half, find_part
from dovetail.jobs.nets import net_for
from dovetail.jobs.outcome import Outcome
from dovetail.jobs.recombine import keep_fits
from dovetail.jobs.runs import Run
from dovetail.jobs.shelving import also, keep_pair, names_for, notes_of, shelve
from dovetail.measure.evaluate import need_test, with_measures
from dovetail.measure.recombine import recombine
from dovetail.parts.norms import Norms
from dovetail.parts.part import Part
from dovetail.reuse.devices import shared_head
from dovetail.reuse.extension import extend_classes
from dovetail.reuse.extension_record import judge_extension
from dovetail.reuse.transfer import transfer as try_fronts
from dovetail.reuse.transfer_record import TransferTrial
from dovetail.shelf.names import check_name
from dovetail.shelf.places import name_of, stem_of
from dovetail.shelf.search import has_shape
from dovetail.shelf.store import Shelf
from dovetail.tasks.builtin import load_task
from dovetail.tasks.derive import only_classes
from dovetail.tasks.task import Task

__all__ = ["devices", "extend", "transfer"]


def devices(
    source: str,
    *,
    nets: Sequence[str] = (),
    args: dict[str, Any] | None = None,
    starts: Sequence[str] = (),
    at: Sequence[str] | None = None,
    name: str | None = None,
    shelf: str | Path = "shelf",
    data: str | Path | None = None,
    task_options: dict[str, Any] | None = None,
    seed: int = 0,
    resume: bool = True,
    checkpoint_seconds: float = 10.0,
    **options: Any,
) -> Outcome:
    """Train extractors of several architectures with one head, and measure each with it on test.

    Shelves ``name.device`` and ``name.device.front`` for each, ``name.head``, and ``name.rp`` if
    there is one.
    """
    if not nets and not starts:
        raise SettingsError("name the devices' networks: --net lenet5 --net resnet8, or --from")
    task = load_task(source, data=data, **(task_options or {}))
    need_test(task)
    models = [net_for(task, net, args, seed=seed + i) for i, net in enumerate(nets)]
    models += [find_part(ref, shelf) for ref in starts]
    short = names_for([*nets, *map(name_of, starts)], taken=("head", "rp"))
    name = check_name(name or f"devices-{names_for([task.name])[0]}")
    for word in short:
        check_name(f"{name}.{word}.front")
    store = Shelf(shelf)
    facts = {
        **{"how": "devices", "task": task.fingerprint, "name": name, "at": at, "seed": seed},
        **{"starts": [model.digest for model in models]},
        **{"recipes": [model.recipe for model in models], **options},
    }
    run = Run.of(store, facts, resume=resume)
    fit = shared_head(
        models,
        task,
        at=at[0] if at and len(at) == 1 else at,
        names=short,
        seed=seed,
        checkpoint=run.checkpoint,
        checkpoint_seconds=checkpoint_seconds,
        resume=resume,
        **options,
    )
    fronts, (head,) = dict(zip(short, fit.fronts, strict=True)), fit.heads
    found = recombine(fronts, {"head": head}, task, correlation=False, seed=seed)
    reached = {pair.front: pair.accuracy["batch"] for pair in found.pairs if pair.accuracy}
    parts: dict[str, Part] = {}
    for word, whole, front in zip(short, fit.networks, fit.fronts, strict=True):
        measures = {"test accuracy": reached[word]}
        parts[f"{name}.{word}"] = with_measures(whole, measures)
        parts[f"{name}.{word}.front"] = with_measures(front, measures)
    parts[f"{name}.head"] = head
    parts |= {f"{name}.{which}": part for which, part in fit.auxiliaries.items()}
    entries = shelve(store, parts)
    keep_fits(found, store)
    run.clear()
    refs = {word: entries[f"{name}.{word}"].ref for word in short}
    head_ref = entries[f"{name}.head"].ref
    listed = ", ".join(f"{refs[word]} {reached[word]:.1%}" for word in short)
    return Outcome(
        view=(
            *notes_of([task], run.resumed),
            *fit.record.view(),
            *found.view(),
            *also(entry for entry in entries.values() if entry.ref not in refs.values()),
            Text(f"On the shelf, with the head {head_ref}, on test: {listed}", style="heading"),
        ),
        data={
            "head": head_ref,
            "devices": {
                word: {
                    "ref": refs[word],
                    "front": entries[f"{name}.{word}.front"].ref,
                    "accuracy": reached[word],
                }
                for word in short
            },
            "auxiliaries": {which: entries[f"{name}.{which}"].ref for which in fit.auxiliaries},
            "resumed": run.resumed,
        },
        records=(fit.record, found),
    )


def extend(
    head: str,
    source: str,
    *,
    front: str,
    fronts: Sequence[str] = (),
    classes: Sequence[str] | None = None,
    moving: bool = False,
    rp: str | None = None,
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
    """Teach a head more classes behind one front, and judge it on test behind all that fit.

    Without ``fronts`` it is judged behind every front on the shelf that gives the head's space.
    Shelves ``name`` (the reference with the new head) and ``name.head``; of a front that was let
    move also ``name.front``.
    """
    old, reference = find_half(head, HEADS, shelf), find_half(front, FRONTS, shelf)
    holding = find_part(rp, shelf) if rp else None
    task = load_task(source, data=data, **(task_options or {}))
    need_test(task)
    store = Shelf(shelf)
    judged_with = {stem_of(front): reference, **_fronts(fronts, old, task, store)}
    name = check_name(name or f"{stem_of(head)}-extended")
    check_name(f"{name}.front")
    facts = {
        **{"how": "extend", "head": old.digest, "front": reference.digest, "moving": moving},
        **{"rp": None if holding is None else holding.digest, "norms": norms, "name": name},
        **{"task": task.fingerprint, "classes": classes, "seed": seed, **options},
    }
    run = Run.of(store, facts, resume=resume)
    fit = extend_classes(
        reference,
        old,
        task,
        classes,
        moving=moving,
        rp_head=holding,
        norms=norms,
        seed=seed,
        checkpoint=run.checkpoint,
        checkpoint_seconds=checkpoint_seconds,
        resume=resume,
        **options,
    )
    new, *moved = fit.parts
    known = new.contract.classes or ()
    judged_with |= {f"{name}.front": part for part in moved}
    asked = only_classes(task, known)
    found = judge_extension(judged_with, old, new, asked, norms=norms, seed=seed)
    own = found.after[f"{name}.front" if moved else stem_of(front)].all
    parts = {name: fit.part, f"{name}.head": new}
    parts |= {f"{name}.front": part for part in moved}
    entries = shelve(
        store, {k: with_measures(part, {"test accuracy": own}) for k, part in parts.items()}
    )
    for each, shares in found.after.items():
        keep_pair(store, judged_with[each], new, asked, norms, shares.all, 1 / len(known))
    run.clear()
    first, *beside = entries.values()
    worst = min(shares.all for shares in found.after.values())
    return Outcome(
        view=(
            *notes_of([task], run.resumed),
            *fit.record.view(),
            *found.view(),
            *also(beside),
            Text(
                f"{entries[f'{name}.head'].ref} knows {len(known)} classes: {worst:.1%} or more on "
                f"test behind {_counted(len(found.after), 'front')}",
                style="heading",
            ),
        ),
        data={
            "ref": first.ref,
            "also": [entry.ref for entry in beside],
            "classes": list(known),
            "accuracy": {each: shares.all for each, shares in found.after.items()},
            "resumed": run.resumed,
        },
        records=(fit.record, found),
    )


def transfer(
    head: str,
    source: str,
    *,
    fronts: Sequence[str] = (),
    others: Sequence[str] = (),
    norms: Norms = "batch",
    name: str | None = None,
    shelf: str | Path = "shelf",
    data: str | Path | None = None,
    task_options: dict[str, Any] | None = None,
    seed: int = 0,
    **options: Any,
) -> Outcome:
    """Try a ready head behind fronts, at once and fine-tuned, and shelve the best as ``name``.

    Without ``fronts`` every front on the shelf that gives the head's space is tried.
    """
    ready = find_half(head, HEADS, shelf)
    task = load_task(source, data=data, **(task_options or {}))
    need_test(task)
    store = Shelf(shelf)
    candidates = _fronts(fronts, ready, task, store)
    if not candidates:
        raise SettingsError(
            f"no part on the shelf {store.folder} gives what {head!r} takes; name the candidates "
            "with --fronts"
        )
    beside = {stem_of(ref): find_half(ref, HEADS, shelf) for ref in others}
    name = check_name(name or f"{stem_of(head)}-{names_for([task.name])[0]}")
    store.check_writable()
    fit = try_fronts(candidates, ready, task, others=beside, norms=norms, seed=seed, **options)
    trial = cast(TransferTrial, fit.record)
    rows = {each: trial.of(each) for each in candidates}
    best = rows[trial.chosen]
    entry = store.add(with_measures(fit.part, {"test accuracy": best.test[-1]}), name)
    for each, row in rows.items():
        keep_pair(store, candidates[each], ready, task, norms, row.test[0], trial.chance)
    said = f"{entry.ref} is on the shelf: {trial.chosen} with {head}, {best.test[-1]:.1%} on test"
    return Outcome(
        view=(*notes_of([task], False), *trial.view(), Text(said, style="heading")),
        data={
            "ref": entry.ref,
            "chosen": trial.chosen,
            "order": list(trial.ranked()),
            "at_once": {each: row.direct for each, row in rows.items()},
            "test accuracy": best.test[-1],
        },
        records=(trial,),
    )


def _fronts(refs: Sequence[str], head: Part, task: Task, store: Shelf) -> dict[str, Part]:
    """The fronts that are named; else all on the shelf that fit the head and take the task."""
    if refs:
        return {stem_of(ref): find_half(ref, FRONTS, store.folder) for ref in refs}
    fitting = [
        entry
        for entry in store.find(fits=head)
        if not entry.contract.mismatches(head.contract)
        and has_shape(entry.contract.takes[0], task.input_shape)
    ]
    latest = {entry.name: entry for entry in sorted(fitting, key=lambda entry: entry.version)}
    once = {entry.digest: entry for entry in latest.values()}
    return {stem_of(entry.name): store.get(entry) for entry in once.values()}


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
