"""Parts that fit put to use: a head keeps its front's place, or a front gets another head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from dovetail.core.errors import SettingsError, ShelfError, argument
from dovetail.core.records import Record
from dovetail.core.views import Text, View
from dovetail.core.words import counted
from dovetail.jobs import Outcome
from dovetail.jobs.frame import Frame, alone, job, names_for, net_for
from dovetail.jobs.recombine import keep_fits
from dovetail.jobs.train import auxiliary_heads
from dovetail.measure.evaluate import need_test, with_measures
from dovetail.measure.recombine import recombine
from dovetail.parts.norms import Norms
from dovetail.parts.part import Part
from dovetail.reuse import (
    adapt_domain,
    extend_classes,
    judge_adaptation,
    judge_extension,
    judge_replacement,
    replace_front,
    shared_head,
)
from dovetail.reuse import transfer as try_fronts
from dovetail.settings.reuse import Domain, Extend, Replace, Transfer
from dovetail.shelf.index import has_shape
from dovetail.shelf.names import name_of, stem_of
from dovetail.tasks.derive import only_classes
from dovetail.tasks.task import Task


@job
def domain(
    frame: Frame,
    /,
    network: str,
    source: str,
    *,
    head: str | None = None,
    rp_head: str | None = None,
    norms: Norms = Domain.norms,
    **options: Any,
) -> Outcome:
    """Adapt the front of a network to unlabelled images, and judge it by test labels if it can be.

    The network's front and head are on the shelf, and so is the pretext's head that they were
    trained with: by default ``pair.rp`` for ``pair.digits``.  Shelves ``name`` and ``name.front``.
    """
    front, behind = frame.front(network), frame.head(head, of=network)
    pretext_head = frame.part(rp_head) if rp_head else _pretext_head(frame, network)
    task = frame.task(source)
    name = frame.named(f"{stem_of(network)}-to-{names_for([task.name])[0]}", ".front")
    fit = frame.train(adapt_domain, front, pretext_head, task, head=behind, norms=norms, **options)
    adapted, whole = fit.parts[0], fit.part
    records: tuple[Record, ...] = (fit.record,)
    unjudged = f"Not judged: the test images of {task.name} have no labels that the head knows."
    view: View = (Text(unjudged, style="note"),)
    known, gain = set(behind.contract.classes or ()), None
    if task.kind == "classes" and known.issuperset(task.classes) and task.size("test"):
        judged = judge_adaptation(front, adapted, behind, task, norms=norms, seed=frame.seed)
        records, view, gain = (*records, judged), judged.view(), judged.gain
        adapted, whole = (
            with_measures(part, {"test accuracy": gain.after}) for part in (adapted, whole)
        )
        frame.keep_fit([adapted, behind], task, judged.settings["norms"], gain.after, judged.chance)
    first, *beside = frame.shelve({name: whole, f"{name}.front": adapted}).values()
    reached = "" if gain is None else f": {gain.after:.1%} on test, {gain.shown}"
    return frame.outcome(
        [task],
        (*fit.record.view(), *view),
        beside,
        f"{first.ref} is on the shelf{reached}",
        {"ref": first.ref, "gain": None if gain is None else gain.difference},
        records,
    )


@job
def replace(
    frame: Frame,
    /,
    network: str,
    source: str,
    *,
    net: str | None = None,
    args: dict[str, Any] | None = None,
    start: str | None = None,
    head: str | None = None,
    auxiliaries: Sequence[str] = (),
    norms: Norms = Replace.norms,
    **options: Any,
) -> Outcome:
    """Train another front behind a network's head, and say what the switch costs on test.

    Shelves ``name`` and ``name.front``; the head stays the one that is there.
    """
    if (start is None) == (net is None):
        raise SettingsError(
            f"say what the new front is: {argument('net', 'resnet8')}, or {argument('start')} PART"
        )
    if start is not None and args:
        raise SettingsError(f"a run from a part keeps its network; leave out {argument('args')}")
    old, behind = frame.front(network), frame.head(head, of=network)
    others = auxiliary_heads(auxiliaries, frame)
    task = frame.task(source)
    need_test(task)
    new = frame.part(start) if start else net_for(task, net or "", args, seed=frame.seed)
    name = frame.named(f"{stem_of(network)}-{name_of(start) if start else net}", ".front")
    fit = frame.train(
        replace_front, new, behind, task, old=old, auxiliaries=others, norms=norms, **options
    )
    front, same_head = fit.parts
    judged = judge_replacement(old, front, same_head, task, norms=norms, seed=frame.seed)
    change = judged.change
    parts = {name: fit.part, f"{name}.front": front}
    if same_head.contract != behind.contract:  # it takes maps of any size now, and must say so
        parts[f"{name}.head"] = same_head
    first, *beside = frame.shelve(
        {k: with_measures(part, {"test accuracy": change.after}) for k, part in parts.items()}
    ).values()
    for switch in judged.switches:
        frame.keep_fit([front, behind], task, switch.norms, switch.change.after, judged.chance)
    return frame.outcome(
        [task],
        (*fit.record.view(), *judged.view()),
        beside,
        f"{first.ref} is on the shelf: {change.after:.1%} on test, {change.shown} to the old front",
        {"ref": first.ref, "before": change.before, "after": change.after},
        (fit.record, judged),
    )


@job
def devices(
    frame: Frame,
    /,
    source: str,
    *,
    nets: Sequence[str] = (),
    args: dict[str, Any] | None = None,
    starts: Sequence[str] = (),
    at: Sequence[str] | None = None,
    **options: Any,
) -> Outcome:
    """Train extractors of several architectures with one head, and measure each with it on test.

    Shelves ``name.device`` and ``name.device.front`` for each, ``name.head``, and ``name.rp`` if
    there is one.
    """
    if not nets and not starts:
        raise SettingsError("name the devices' networks: --net lenet5 --net resnet8, or --from")
    task = frame.task(source)
    need_test(task)
    models = [net_for(task, net, args, seed=frame.seed + i) for i, net in enumerate(nets)]
    models += [frame.part(ref) for ref in starts]
    short = names_for([*nets, *map(name_of, starts)], taken=("head", "rp"))
    usual = f"devices-{names_for([task.name])[0]}"
    name = frame.named(usual, *(f".{word}.front" for word in short))
    fit = frame.train(shared_head, models, task, at=alone(at), names=short, **options)
    fronts, (head,) = dict(zip(short, fit.fronts, strict=True)), fit.heads
    pairs = recombine(fronts, {"head": head}, task, correlation=False, seed=frame.seed)
    reached = {pair.front: pair.accuracy[pairs.norms[0]] for pair in pairs.pairs if pair.accuracy}
    parts: dict[str, Part] = {}
    for word, whole, front in zip(short, fit.networks, fit.fronts, strict=True):
        measures = {"test accuracy": reached[word]}
        parts[f"{name}.{word}"] = with_measures(whole, measures)
        parts[f"{name}.{word}.front"] = with_measures(front, measures)
    parts[f"{name}.head"] = head
    parts |= {f"{name}.{which}": part for which, part in fit.auxiliaries.items()}
    entries = frame.shelve(parts)
    keep_fits(pairs, frame.store)
    refs = {word: entries[f"{name}.{word}"].ref for word in short}
    head_ref = entries[f"{name}.head"].ref
    accuracies = ", ".join(f"{refs[word]} {reached[word]:.1%}" for word in short)
    return frame.outcome(
        [task],
        (*fit.record.view(), *pairs.view()),
        (entry for entry in entries.values() if entry.ref not in refs.values()),
        f"On the shelf, with the head {head_ref}, on test: {accuracies}",
        {
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
        },
        (fit.record, pairs),
    )


@job
def extend(
    frame: Frame,
    /,
    head: str,
    source: str,
    *,
    front: str,
    fronts: Sequence[str] = (),
    classes: Sequence[str] | None = None,
    rp_head: str | None = None,
    norms: Norms = Extend.norms,
    **options: Any,
) -> Outcome:
    """Teach a head more classes behind one front, and judge it on test behind all that fit.

    Without ``fronts`` it is judged behind every front on the shelf that gives the head's space.
    Shelves ``name`` (the reference with the new head) and ``name.head``; of a front that was let
    move also ``name.front``.
    """
    old, reference = frame.head(head), frame.front(front)
    holding = frame.part(rp_head) if rp_head else None
    task = frame.task(source)
    need_test(task)
    judged_with = {stem_of(front): reference, **_fronts(frame, fronts, old, task)}
    name = frame.named(f"{stem_of(head)}-extended", ".front")
    fit = frame.train(
        extend_classes, reference, old, task, classes, rp_head=holding, norms=norms, **options
    )
    new, *moved = fit.parts
    known = new.contract.classes or ()
    judged_with |= {f"{name}.front": part for part in moved}
    wider = only_classes(task, known)
    judged = judge_extension(judged_with, old, new, wider, norms=norms, seed=frame.seed)
    own = judged.after[f"{name}.front" if moved else stem_of(front)].all
    parts = {name: fit.part, f"{name}.head": new} | {f"{name}.front": part for part in moved}
    entries = frame.shelve(
        {k: with_measures(part, {"test accuracy": own}) for k, part in parts.items()}
    )
    for each, shares in judged.after.items():
        frame.keep_fit(
            [judged_with[each], new], wider, judged.settings["norms"], shares.all, 1 / len(known)
        )
    first, *beside = entries.values()
    worst = min(shares.all for shares in judged.after.values())
    return frame.outcome(
        [task],
        (*fit.record.view(), *judged.view()),
        beside,
        f"{entries[f'{name}.head'].ref} knows {len(known)} classes: {worst:.1%} or more on "
        f"test behind {counted(len(judged.after), 'front')}",
        {
            "ref": first.ref,
            "classes": list(known),
            "accuracy": {each: shares.all for each, shares in judged.after.items()},
        },
        (fit.record, judged),
    )


@job
def transfer(
    frame: Frame,
    /,
    head: str,
    source: str,
    *,
    fronts: Sequence[str] = (),
    others: Sequence[str] = (),
    norms: Norms = Transfer.norms,
    **options: Any,
) -> Outcome:
    """Try a ready head behind fronts, at once and fine-tuned, and shelve the best as ``name``.

    Without ``fronts`` every front on the shelf that gives the head's space is tried.
    """
    ready, task = frame.head(head), frame.task(source)
    need_test(task)
    candidates = _fronts(frame, fronts, ready, task)
    if not candidates:
        raise SettingsError(
            f"no part on the shelf {frame.store.folder} gives what {head!r} takes; name the "
            f"candidates with {argument('fronts')}"
        )
    name = frame.named(f"{stem_of(head)}-{names_for([task.name])[0]}")
    frame.store.check_writable()
    fit = try_fronts(
        candidates,
        ready,
        task,
        others={stem_of(ref): frame.head(ref) for ref in others},
        norms=norms,
        seed=frame.seed,
        **options,
    )
    trial = cast(Any, fit.record)
    rows = {each: trial.of(each) for each in candidates}
    best = rows[trial.chosen]
    parts = {name: with_measures(fit.part, {"test accuracy": best.test[-1]})}
    entry = frame.shelve(parts)[name]
    for each, row in rows.items():
        frame.keep_fit(
            [candidates[each], ready], task, trial.settings["norms"], row.test[0], trial.chance
        )
    reached = f"{trial.chosen} with {head}, {best.test[-1]:.1%} on test"
    facts = {
        "ref": entry.ref,
        "chosen": trial.chosen,
        "order": list(trial.ranked()),
        "at_once": {each: row.direct for each, row in rows.items()},
        "test accuracy": best.test[-1],
    }
    return frame.outcome(
        [task], trial.view(), (), f"{entry.ref} is on the shelf: {reached}", facts, (trial,)
    )


def _fronts(frame: Frame, refs: Sequence[str], head: Part, task: Task) -> dict[str, Part]:
    """The fronts that are named; else all on the shelf that fit the head and take the task."""
    if refs:
        return {stem_of(ref): frame.front(ref) for ref in refs}
    fitting = [
        entry
        for entry in frame.store.find(fits=head)
        if not entry.contract.mismatches(head.contract)
        and has_shape(entry.contract.takes[0], task.input_shape)
    ]
    latest = {entry.name: entry for entry in sorted(fitting, key=lambda entry: entry.version)}
    once = {entry.digest: entry for entry in latest.values()}
    return {stem_of(entry.name): frame.store.get(entry) for entry in once.values()}


def _pretext_head(frame: Frame, network: str) -> Part:
    """The head that a network's group shares: ``pair.rp`` for ``pair.digits``."""
    group, dot, _ = stem_of(network).rpartition(".")
    name = f"{group}{dot}rp"
    try:
        return frame.part(name)
    except ShelfError:
        raise ShelfError(
            f"no pretext's head {name!r} for {network!r} on the shelf {frame.folder}; name it with "
            f"{argument('rp_head')}. It comes with the network from 'train --how compatible --by "
            "rp'"
        ) from None
