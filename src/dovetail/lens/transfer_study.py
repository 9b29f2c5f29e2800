r"""Is transfer feasible here?  From scratch, frozen and fine-tuned, side by side over seeds.

Every run gets the same budget: the same steps over the same batches at the same rates.

``"scratch"``
    The architecture of a source with fresh weights, inputs standardised by the target.
``"frozen"``
    The source up to its head, which stays as it is, below a fresh head that learns.
``"fine-tuned"``
    The same network, of which everything learns.

Of each there is the error on training and test examples, the deviation
:math:`\frac{1}{\sqrt n} \sum_l \lVert W^{(l)} - W_0^{(l)} \rVert_F` of its weights from where they
began (:func:`dovetail.lens.deviation`), and how soon it is as good as training from scratch ever
gets.  Sources may be networks of several tasks, or one network at several epochs
(:class:`~dovetail.train.Snapshots`).
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Unpack

from torch import nn

from dovetail.core.errors import ContractError, FormatError, SettingsError, TaskError, nearest
from dovetail.core.files import write_whole
from dovetail.core.plain import dumps, from_plain, read_json
from dovetail.core.progress import progress
from dovetail.core.seeds import derived_seed, seeded
from dovetail.core.words import numbered
from dovetail.lens.study_record import FINE_TUNED, FROZEN, SCRATCH, TransferRun, TransferStudy
from dovetail.lens.weights import deviation
from dovetail.measure.evaluate import evaluate
from dovetail.measure.forward import preprocess_for, refuse_other_inputs
from dovetail.parts.contract import Contract, Preprocess
from dovetail.parts.cutting import cut
from dovetail.parts.facts import Origin
from dovetail.parts.heads import before_the_head, head_like
from dovetail.parts.joining import join
from dovetail.parts.modules import structure_of
from dovetail.parts.part import Part, as_part, build, parts_by_name
from dovetail.parts.recipe import rebuild
from dovetail.tasks.task import Task
from dovetail.train.end_to_end import end_to_end
from dovetail.train.options import LoopOptions, Moment, Options

WAYS = (SCRATCH, FROZEN, FINE_TUNED)

Sources = Part | nn.Module | Mapping[str, Part | nn.Module] | Sequence[Part | nn.Module]

EPOCHS, STEPS, MOST_EPOCHS, BATCH, RATE = 20, 400, 200, 32, 0.01
"""Epochs at least, and steps, for training errors to end near zero, from scratch too.

Five times this rate makes some trained networks diverge."""

_MOST_BYTES = 1 << 24


def transfer_study(
    sources: Sources,
    target: Task,
    *,
    ways: Sequence[str] = WAYS,
    seeds: int | Sequence[int] = 3,
    at: str | None = None,
    threshold: float | None = None,
    folder: str | Path | None = None,
    **options: Unpack[LoopOptions],
) -> TransferStudy:
    """Train on the target from scratch, on frozen sources and fine-tuned from them.

    Args:
        sources: Parts that take the target's inputs, by name if you like; they are left as they
            are.  Networks of earlier epochs, ``Snapshots.parts(...)``, are shown along the epochs.
        target: Of classes or numbers.  The error is the share of mistakes, or 1 - R².
        ways: Some of ``"scratch"``, ``"frozen"``, ``"fine-tuned"``.
        seeds: How many, from 0; or which.  A seed draws heads, fresh weights and the batches.
        at: Where the head begins, a cut point; by default before the last layer.  An earlier one
            gives a head of several layers, as the frozen runs of the source have it.
        threshold: The validation error whose first epoch is the speed of a run; by default what
            training from scratch reaches in the end, on average.
        folder: Keep every run that is done here, and go on with one that was interrupted: the same
            call finds them again.
        options: Of the training, see :class:`~dovetail.train.Options`; by default batches of 32, a
            peak rate of 0.01, and as many epochs as make 400 steps, but at least 20.

    An interrupt (Ctrl-C) ends the run that it meets.  If others were done by then, the study is of
    those, and says so.

    >>> from dovetail.tasks.load import load_task
    >>> source, target = load_task("digits[0,1,2]"), load_task("digits[3,4,5]")
    >>> net = end_to_end(build("mlp", hidden=(32,), classes=3), source, epochs=3).part
    >>> study = transfer_study({"012": net}, target, seeds=1, epochs=2)
    >>> study.row("012", "frozen").layers["1.head.weight"] == study.row("012", "frozen").deviation
    True
    """
    parts = _named(sources)
    numbers = _checked(target, ways, seeds, threshold)
    loop = _usual(target, options)
    show = loop.pop("show", None)
    Options(**loop)  # a wrong option is told before anything runs
    for part in parts.values():
        refuse_other_inputs(target, part.contract)
    plan = _planned(parts, ways, numbers)
    place = None if folder is None else Path(folder)
    runs: list[TransferRun] = []
    stopped = ""
    with progress(f"studying transfer to {target.name}", len(plan), show=show) as step:
        for name, part, way, seed in plan:
            now = f"{name}, {way}, seed {seed}" if way != SCRATCH else f"{way}, seed {seed}"
            try:
                run = _run(name, part, way, seed, target, at, loop, place)
            except KeyboardInterrupt:
                if not runs:
                    raise
                stopped = now
                break
            runs.append(run)
            step(now)
    return TransferStudy(
        target=target.name,
        sources=tuple(parts),
        n=target.size("train"),
        runs=tuple(runs),
        threshold=threshold,
        measured={name: _own_accuracy(part) for name, part in parts.items()},
        stopped=stopped,
        settings={
            **{
                key: value
                for key, value in Options(**loop).described().items()
                if value is not None
            },
            "seeds": list(numbers),
            "at": at,
            "task_fingerprint": target.fingerprint,
        },
    )


def _usual(target: Task, options: LoopOptions) -> LoopOptions:
    """The options, with what suits most targets where nothing was said."""
    loop: LoopOptions = {"batch_size": BATCH, "lr": RATE}
    loop.update(options)
    if "epochs" not in loop:
        batches = max(1, target.size("train") // max(1, loop["batch_size"]))
        loop["epochs"] = min(MOST_EPOCHS, max(EPOCHS, -(-STEPS // batches)))
    return loop


def _named(sources: Sources) -> dict[str, Part]:
    if isinstance(sources, Part | nn.Module):
        sources = [sources]
    parts: dict[str, Part]
    if isinstance(sources, Mapping):
        parts = {str(name): as_part(part) for name, part in sources.items()}
    else:
        parts = parts_by_name(sources, by_task=True)
    if not parts:
        raise SettingsError("there is no source to transfer from")
    for name, part in parts.items():
        if len(part.contract.takes) != 1 or part.contract.takes[0].space is not None:
            raise ContractError(f"{name!r} takes features, not a task's inputs; give its network")
    return parts


def _checked(
    target: Task, ways: Sequence[str], seeds: int | Sequence[int], threshold: float | None
) -> tuple[int, ...]:
    if not isinstance(target, Task):
        raise TaskError(f"the target must be a Task, got {type(target).__name__}; see dt.load_task")
    if target.kind not in ("classes", "regression"):
        raise TaskError(
            f"{target.name!r} is of kind {target.kind!r}; a study needs classes or numbers"
        )
    if target.size("test") == 0:
        raise TaskError(f"{target.name!r} has no test split to measure errors on")
    if target.kind == "classes" and len(target.classes) < 2:
        raise TaskError(f"{target.name!r} has one class: there is nothing to learn")
    if isinstance(ways, str) or not ways:
        raise SettingsError(f"ways are some of {', '.join(WAYS)}")
    for way in ways:
        if way not in WAYS:
            raise SettingsError(f"unknown way {way!r}{nearest(str(way), WAYS)}")
    if threshold is not None and not 0 <= threshold < float("inf"):
        raise SettingsError(f"threshold is an error of at least 0, got {threshold}")
    numbers = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    if not numbers or len(set(numbers)) != len(numbers):
        raise SettingsError("seeds are how many, at least one, or a list of different ones")
    return numbers


Planned = tuple[str, Part, str, int]


def _planned(parts: Mapping[str, Part], ways: Iterable[str], seeds: Sequence[int]) -> list[Planned]:
    """Seed by seed, so that an interrupted study has some of everything; scratch once a network."""
    fresh: dict[Any, str] = {}
    for name, part in parts.items():
        how = part.contract.preprocess
        seen = None if how is None else (how.size, how.channels)
        fresh.setdefault((structure_of(_body(part).module), seen), name)
    alone = len(fresh) == 1
    words = numbered(parts[name].described.split(":")[0] for name in fresh.values())
    called = dict(zip(fresh.values(), words, strict=True))
    return [
        (
            "" if way == SCRATCH and alone else called[name] if way == SCRATCH else name,
            part,
            way,
            seed,
        )
        for seed in seeds
        for way in ways
        for name, part in parts.items()
        if way != SCRATCH or name in called
    ]


def _body(part: Part) -> Part:
    """A network without its head, whose number of outputs is no difference."""
    where = before_the_head(part)
    return part if where is None else cut(part, where)[0]


def _start(part: Part, way: str, seed: int, target: Task, at: str | None) -> Part:
    """The network that a run begins with, a copy throughout."""
    outputs = list(target.classes) if target.kind == "classes" else target.outputs
    where = before_the_head(part) if at is None else at
    if where is None:
        front = part
        shape = part.contract.gives[0].shape
        if shape is None or None in shape:
            raise ContractError(
                f"{part.described!r} does not say what it gives; adopt it with an example"
            )
        count = outputs if isinstance(outputs, int) else len(outputs)
        head = build("mlp", shape=shape, classes=count, hidden=(), seed=derived_seed(seed, "head"))
    else:
        front, back = cut(part, where)
        head = head_like(back, outputs, seed=seed)
    module = copy.deepcopy(front.module)
    if way == SCRATCH:
        module = _fresh(front, seed)
    for parameter in module.parameters():
        parameter.requires_grad_(way != FROZEN)
    how = part.contract.preprocess
    contract = replace(
        front.contract.in_space(None), preprocess=_own(how, target) if way == SCRATCH else how
    )
    whole = join(
        front.changed(module=module, contract=contract, origin=Origin("build")),
        head,
        force=True,
    )
    return whole.changed(origin=Origin("build"), contract=_for(whole.contract, target))


def _own(how: Preprocess | None, target: Task) -> Preprocess | None:
    """Standardised by the target, at the size that the architecture of the source is used with."""
    if how is None or how.channels not in (None, target.input_shape[0]):
        return how
    return replace(preprocess_for(target), size=how.size, channels=how.channels)


def _for(contract: Contract, target: Task) -> Contract:
    if target.kind == "classes":
        return replace(contract, classes=target.classes, kind="classes")
    return replace(contract, classes=None, kind="regression")


def _fresh(front: Part, seed: int) -> nn.Module:
    """The front's layers with weights drawn anew."""
    with seeded(seed, "scratch"):
        if front.recipe is not None:
            return rebuild(front.recipe).to(front.device)
        module = copy.deepcopy(front.module)
        for layer in module.modules():
            reset = getattr(layer, "reset_parameters", None)
            if callable(reset):
                reset()
            elif list(layer.parameters(recurse=False)):
                raise ContractError(
                    f"{front.described!r} has no recipe, and its {type(layer).__name__} cannot be "
                    "drawn anew; leave ways without scratch, or adopt it with a builder"
                )
        return module


def _run(
    name: str,
    part: Part,
    way: str,
    seed: int,
    target: Task,
    at: str | None,
    loop: LoopOptions,
    place: Path | None,
) -> TransferRun:
    start = _start(part, way, seed, target, at)
    n = target.size("train")
    depends_on = [
        *(start.digest, structure_of(start.module), way, seed, target.fingerprint),
        *(str(start.contract.preprocess), Options(**loop).described()),
    ]
    key = hashlib.sha256(dumps(depends_on).encode()).hexdigest()[:16]
    if place is not None and (before := _kept(place / f"{key}.json")) is not None:
        return replace(before, source=name)
    moved: dict[int, float] = {}

    def look(moment: Moment) -> None:
        moved[moment.epoch] = deviation(moment.module, start.module, examples=n).total

    settings: LoopOptions = {**loop, "callbacks": (*loop.get("callbacks", ()), look), "show": False}
    if place is not None:
        settings["checkpoint"] = place / f"{key}.safetensors"
    fit = end_to_end(start, target, seed=seed, **settings)
    whole = deviation(fit.part, start, examples=n)
    rows = fit.record.rows  # type: ignore[attr-defined]
    run = TransferRun(
        source=name,
        way=way,
        seed=seed,
        train_error=_error(evaluate(fit.part, target, split="train").measures),
        test_error=_error(evaluate(fit.part, target, split="test").measures),
        deviation=whole.total,
        layers=dict(whole.layers),
        losses=tuple(row["loss"] for row in rows),
        errors=tuple(_validation_error(row) for row in rows),
        deviations=tuple(moved.get(int(row["epoch"])) for row in rows),
        seconds=sum(row.get("seconds", 0.0) for row in rows),
    )
    if place is not None:
        write_whole(place / f"{key}.json", dumps(asdict(run)))
        (place / f"{key}.safetensors").unlink(missing_ok=True)
    return run


def _kept(file: Path) -> TransferRun | None:
    """A run as an earlier call left it; nothing if there is none, or it is damaged."""
    if not file.is_file():
        return None
    try:
        return from_plain(TransferRun, read_json(file, most_bytes=_MOST_BYTES), str(file))
    except FormatError:
        return None


def _error(measures: Mapping[str, float]) -> float:
    return 1 - (measures["accuracy"] if "accuracy" in measures else measures["r2"])


def _validation_error(row: Mapping[str, float]) -> float | None:
    known = (row.get(f"validation {name}") for name in ("accuracy", "r2"))
    return next((1 - value for value in known if value is not None), None)


def _own_accuracy(part: Part) -> float | None:
    """What a source reached on its own task, if it says."""
    measured = part.origin.measured
    value = measured.get("validation accuracy", measured.get("accuracy"))
    return float(value) if isinstance(value, int | float) else None
