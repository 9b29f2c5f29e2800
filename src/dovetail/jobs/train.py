"""Train, measure, and put what was trained on the shelf: every way of ``settings.train.WAYS``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from dovetail.core.errors import SettingsError, TaskError, argument
from dovetail.core.records import slug
from dovetail.core.views import Text, View
from dovetail.dist.group import rank_and_size, under_torchrun
from dovetail.jobs import Outcome
from dovetail.jobs.frame import Frame, alone, job, names_for, net_for
from dovetail.jobs.recombine import keep_fits
from dovetail.measure.evaluate import Evaluation, evaluate, need_test, with_measures
from dovetail.measure.familiar import knowing
from dovetail.measure.recombination import Recombination
from dovetail.measure.recombine import recombine
from dovetail.parts.part import Part
from dovetail.settings.train import Compatible, Partitioned, Way, chosen
from dovetail.shelf.names import name_of
from dovetail.tasks.task import Task
from dovetail.train.callbacks import Snapshots
from dovetail.train.compatible_record import CompatibleFit
from dovetail.train.fit import Fit
from dovetail.train.group_parts import AUXILIARIES
from dovetail.train.memory_plan import plan
from dovetail.train.partition_plan import plan_partitions

NET, OF_VECTORS = "lenet5", "mlp"
"""What is trained unless said: on images, on vectors."""

_IN_WORDS = ("hidden", "activation", "scale_inputs")
"""What a network that is solved for may be told."""


@job
def train(
    frame: Frame,
    /,
    source: str | Sequence[str],
    *,
    net: str | None = None,
    args: dict[str, Any] | None = None,
    start: str | Sequence[str] | None = None,
    how: str = "end-to-end",
    **options: Any,
) -> Outcome:
    """Train, measure, shelve; in the words of the command line.

    An unfinished run keeps a checkpoint beside the shelf under what it depends on: the same call
    goes on where it stopped, another call never finds it.  Under ``torchrun``, with
    ``average_every`` or ``parallel``, the processes train one network together; one of them
    shelves it.

    Beside the network, what a way gives by name goes on the shelf: the modules of a training in
    modules as ``name.module1`` and ``name.head`` if ``modules`` is said, the front and the
    pretext's head of one without labels; with ``keep_epochs=n`` the network of every nth epoch.
    """
    sources = [source] if isinstance(source, str) else list(source)
    starts = [start] if isinstance(start, str) else list(start or ())
    new_net = net is not None or bool(args)
    of_runs = {"resume": frame.resume, "checkpoint_seconds": frame.checkpoint_seconds}
    way, options = chosen(
        how, options | of_runs, tasks=len(sources), starts=len(starts), new_net=new_net
    )
    options = {name: value for name, value in options.items() if name not in of_runs}
    tasks = [frame.task(each) for each in sources]
    if way.labels:
        need_test(*tasks)
    if way.several:
        return train_many(frame, way, tasks, starts, net or _usual(tasks[0]), args, **options)
    together = "average_every" in options or options.get("parallel")
    with under_torchrun() if together else nullcontext():
        return _train_one(frame, way, tasks[0], starts, net, args, **options)


def _train_one(
    frame: Frame,
    way: Way,
    task: Task,
    starts: Sequence[str],
    net: str | None,
    args: dict[str, Any] | None,
    *,
    modules: bool | None = None,
    keep_epochs: int | None = None,
    at: Sequence[str] | None = None,
    **options: Any,
) -> Outcome:
    """Train one network on one task, measure it on the test split if it knows labels, shelve."""
    if way.labels and task.kind == "pairs":
        raise TaskError(
            f"{task.name!r} has pair labels only, and the classes must come from somewhere; "
            "in Python, dt.train.modular takes them from a second task, as head_task="
        )
    if at is not None:
        if len(at) > 1 and not way.labels:
            raise SettingsError(
                f"the front ends at one point, but {argument('at')} names {len(at)}"
            )
        options["at"] = alone(tuple(at))
    options = _packing(options)
    network = _network(frame, way, task, starts, net, args)
    if options.pop("plan", False):
        if way.settings is Partitioned:
            return _partitions(network, task, frame.seed, options)
        return _planned(network, task, frame.seed, way.name == "layerwise", options)
    stem = name_of(starts[0]) if starts else net or (OF_VECTORS if way.builds else _usual(task))
    by = "" if way.labels else f"-{options.get('by', way.settings.declared['by'].default)}"
    endings = [".module1"] * bool(modules) + [".epoch0000"] * (keep_epochs is not None)
    frame.named(f"{stem}-{slug(task.name)}{by}", *endings, *([] if way.labels else [".pretext"]))
    first = rank_and_size()[0] == 0
    snapshots = None
    if way.builds:
        fit = way.load()(task, seed=frame.seed, **network, **options)
    else:
        run = frame.begin(
            {"way": way.name, "start": network, "task": task, "keep": keep_epochs, **options}
        )
        snapshots = Snapshots(keep_epochs, run.epochs) if keep_epochs and first else None
        callbacks = () if snapshots is None else (snapshots,)
        fit = frame.train(way.load(), network, task, callbacks=callbacks, **options)
    if not first:
        return Outcome(view=(), data={})  # all hold the same network; one of them shelves it
    test = evaluate(fit.part, task) if way.labels else None
    pieces = fit.pieces if modules or "modules" not in way.settings.declared else {}
    usual = None if net or starts or way.builds else _usual(task)
    return _shelved(frame, task, fit, test, pieces | _epochs(snapshots, fit.part), usual)


_MATTER = (
    *("memory_budget", "loss", "batch_size", "optimiser", "momentum", "patience", "device", "at"),
    *("segment", "overlap", "order", "keep", "grow", "forward_dropout", "backward_dropout"),
    *("decision_convs", "decision_channels", "decision_pool"),
)
"""What a plan asks of the settings; the others change nothing in it."""


def _planned(
    network: Part, task: Task, seed: int, by_layers: bool, options: dict[str, Any]
) -> Outcome:
    """What a step would take, each way; nothing is trained."""
    said = {name: value for name, value in options.items() if name in _MATTER}
    made = plan(network, task, seed=seed, by_layers=by_layers, **said)
    take = made.take
    facts = {
        "take": None if take is None else take.name,
        "budget": made.budget,
        "ways": [vars(way) for way in made.ways],
        "stages": [vars(stage) for stage in made.stages],
    }
    return Outcome(view=made.view(), data=facts, records=(made,), ok=take is not None)


def _partitions(network: Part, task: Task, seed: int, options: dict[str, Any]) -> Outcome:
    """How partitions would be balanced, and how fast they would be; nothing is trained."""
    apart = ("parallel", "order", "rounds", "queue", "replicas", "timeout", "filter", "augment")
    of_layers = ("lr_by_depth", "decay_by_depth")
    made = plan_partitions(
        network,
        task,
        seed=seed,
        **{k: v for k, v in options.items() if k not in (*apart, *of_layers)},
    )
    facts = {
        "partitions": [vars(each) for each in made.partitions],
        "examples a second": made.examples_a_second,
        "against one process": made.against_one,
        "against DDP": made.against_ddp,
    }
    return Outcome(view=made.view(), data=facts, records=(made,))


def _usual(task: Task) -> str:
    """The network that a task gets where none is named."""
    return NET if len(task.input_shape) == 3 else OF_VECTORS


def _network(
    frame: Frame,
    way: Way,
    task: Task,
    starts: Sequence[str],
    net: str | None,
    args: dict[str, Any] | None,
) -> Any:
    """What training starts from; of a way that builds its own network, the words it takes."""
    if not way.builds:
        if starts:
            return frame.part(starts[0])
        return net_for(task, net or _usual(task), args, seed=frame.seed)
    if net not in (None, "mlp"):
        raise SettingsError(
            f"closed form makes multi-layer perceptrons, not {net!r}; leave out {argument('net')} "
            f"and say the widths, as {argument('set.hidden', [256, 64])}"
        )
    if other := sorted(set(args or {}) - set(_IN_WORDS)):
        raise SettingsError(
            f"{argument('set.' + other[0])}: closed form takes "
            "hidden=, activation= and scale_inputs= alone"
        )
    return dict(args or {})


def _shelved(
    frame: Frame,
    task: Task,
    fit: Fit,
    test: Evaluation | None,
    beside: dict[str, Part],
    usual: str | None,
) -> Outcome:
    """Put what was made on the shelf, the network first, and say what it reached.

    ``usual`` is the network that was taken because none was named.
    """
    whole, name, record = fit.part, frame.name or "", fit.record
    if test is not None:
        whole = with_measures(whole, {f"test {k}": value for k, value in test.measures.items()})
        whole = knowing(whole, task)
    parts = {name: whole} | {f"{name}.{ending}": part for ending, part in beside.items()}
    entry, *others = frame.shelve(parts).values()
    verdict = f"{entry.ref} is on the shelf '{frame.store.folder}'"
    measured = whole.origin.measured
    if test is not None:
        what, value = next(iter(test.measures.items()))
        verdict += f": test {what} {value:.4f} on {test.n} examples"
    elif "validation solved" in measured:
        verdict += (
            f": its front was trained without labels, {measured['validation solved']:.1%} of the "
            "questions answered rightly"
        )
    rows = getattr(record, "rows", None)
    facts: dict[str, Any] = {"ref": entry.ref, "measures": measured, "notes": task.notes}
    if rows is not None:
        facts["epochs"] = len(rows)
    else:  # solved for, without epochs
        facts |= {"layers": record.to_plain()["data"], "precision": record.settings["precision"]}
    view: View = record.view()
    if usual is not None:
        view = (Text(f"{usual} was trained; {argument('net')} names another.", "note"), *view)
    records = (record,) if test is None else (record, test)
    return frame.outcome([task], view, others, verdict, facts, records)


def _packing(options: dict[str, Any]) -> dict[str, Any]:
    """The options in the words of the trainer."""
    if "extra_bits" not in options:
        return options
    if "average_every" not in options:
        raise SettingsError(
            f"{argument('extra_bits')} is about the weights that processes exchange; say "
            f"{argument('average_every')} too"
        )
    rest = {name: value for name, value in options.items() if name != "extra_bits"}
    return rest | {"packing": {"extra_bits": options["extra_bits"]}}


def _epochs(snapshots: Snapshots | None, trained: Part) -> dict[str, Part]:
    """The networks of earlier epochs by name, with as many digits as sort them."""
    if snapshots is None:
        return {}
    width = max(2, len(str(max(snapshots.epochs, default=0))))
    parts = snapshots.parts(trained).values()
    return {
        f"epoch{epoch:0{width}}": part for epoch, part in zip(snapshots.epochs, parts, strict=True)
    }


# Several networks, so that their parts fit --------------------------------------------------------


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
