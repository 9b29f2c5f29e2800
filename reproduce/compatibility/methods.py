"""Both networks of a pair, trained in one of the ways, and what their recombination gives."""

from __future__ import annotations

import time

import dovetail as dt
from compatibility.pairs import net_for, tasks_of
from compatibility.protocol import Found, Workplace, mean, spread

METHODS: dict[str, tuple[str, ...]] = {
    "independent": (),
    "iiw": ("iiw",),
    "rp": ("rp",),
    "dcc": ("dcc",),
    "iiw+rp": ("iiw", "rp"),
    "iiw+dcc": ("iiw", "dcc"),
    "rp+dcc": ("rp", "dcc"),
    "iiw+rp+dcc": ("iiw", "rp", "dcc"),
}
ALL = "iiw+rp+dcc"
INCREMENTAL = f"{ALL}, incremental"
BOUND, OWN_HEADS = "alone, own rp head", "alone, own rp and dcc heads"


def options(place: Workplace, seed: int) -> dict[str, object]:
    protocol = place.protocol
    return {
        "at": protocol.at,
        "epochs": protocol.epochs,
        "batch_size": protocol.batch_size,
        "lr": protocol.lr,
        "seed": seed,
    }


def both(runs: list[Found], what: str) -> list[float]:
    """The mean of the two directions, run by run."""
    return [(run[f"first {what}"] + run[f"second {what}"]) / 2 for run in runs]


def judged(fit: dt.train.CompatibleFit, tasks: tuple[dt.Task, dt.Task], began: float) -> Found:
    """Recombined and own accuracies, with both kinds of statistics, and the correlations."""
    seconds = time.perf_counter() - began
    found = dt.recombine(fit.fronts, fit.heads, list(tasks), norms=("batch", "stored"))
    (a, b), own = [pair.front for pair in found.recombined], found.own_heads
    result = {"seconds": seconds}
    for norms in ("batch", "stored"):
        table = found.accuracy_with(norms)
        for name, front in (("first", a), ("second", b)):
            other = next(head for head in own.values() if head != own[front])
            result[f"{name} recombined, {norms}"] = float(table[front][other])
            result[f"{name} own, {norms}"] = float(table[front][own[front]])
    (alike,) = found.alike
    return result | {"correlation": alike.plain, "permuted correlation": alike.permuted}


def trained(pair: str, method: str, seed: int, place: Workplace) -> Found:
    """One way to train both networks of a pair."""
    tasks, began = tasks_of(pair, place), time.perf_counter()
    nets = [net_for(task, place.protocol, 2 * seed + i) for i, task in enumerate(tasks)]
    fit = dt.train.compatible(nets, tasks, by=METHODS[method], **options(place, seed))
    return judged(fit, tasks, began)


def incremental(pair: str, first: int, seed: int, place: Workplace) -> Found:
    """All three ways, one network after the other, beginning with the first or the second task."""
    tasks, began = tasks_of(pair, place), time.perf_counter()
    order = tasks if first == 0 else tasks[::-1]
    nets = [net_for(task, place.protocol, 2 * seed + i) for i, task in enumerate(order)]
    ways = METHODS[ALL]
    fit = dt.train.compatible(nets, order, by=ways, scheme="incremental", **options(place, seed))
    return judged(fit, order, began)


def alone(pair: str, ways: tuple[str, ...], seed: int, place: Workplace) -> Found:
    """Each network by itself, with auxiliary heads of its own."""
    tasks, began = tasks_of(pair, place), time.perf_counter()
    result = {}
    for i, (name, task) in enumerate(zip(("first", "second"), tasks, strict=True)):
        net = net_for(task, place.protocol, 2 * seed + i)
        fit = dt.train.compatible(net, task, by=ways, **options(place, seed))
        for norms in ("batch", "stored"):
            found = dt.recombine(fit.fronts, fit.heads, task, norms=norms, correlation=False)
            result[f"{name} own, {norms}"] = float(found.pairs[0].accuracy[norms])
    return result | {"seconds": time.perf_counter() - began}


def runs_of(pair: str, method: str, place: Workplace) -> list[Found]:
    """The runs of one method on one pair, seed by seed."""
    found = []
    for seed in range(place.seeds):
        key = f"methods, {pair}, {method}, seed {seed}"
        if method in METHODS:
            found.append(place.once(key, lambda s=seed: trained(pair, method, s, place)))
        elif method == INCREMENTAL:
            for first in (0, 1):
                turn = f"{key}, from task {first + 1}"
                run = place.once(turn, lambda s=seed, f=first: incremental(pair, f, s, place))
                found.append(run if first == 0 else turned(run))
        else:
            ways = ("rp",) if method == BOUND else ("rp", "dcc")
            found.append(place.once(key, lambda s=seed, w=ways: alone(pair, w, s, place)))
    return found


def turned(run: Found) -> Found:
    """A run that began with the second task, with its columns named after the tasks again."""
    other = {"first": "second", "second": "first"}
    words = {name: name.split(" ", 1) for name in run}
    return {
        f"{other[w[0]]} {w[1]}" if w[0] in other else name: run[name] for name, w in words.items()
    }


def row_of(pair: str, method: str, runs: list[Found]) -> dict[str, object]:
    """Means over the seeds, and their spreads."""
    row: dict[str, object] = {"tasks": pair, "trained": method}
    if "first recombined, batch" in runs[0]:
        found = both(runs, "recombined, batch")
        row |= {
            "recombined": mean(found),
            "spread": spread(found),
            "first task": mean([r["first recombined, batch"] for r in runs]),
            "second task": mean([r["second recombined, batch"] for r in runs]),
            "stored norms": mean(both(runs, "recombined, stored")),
        }
    own = both(runs, "own, batch")
    row |= {"own": mean(own), "own spread": spread(own)}
    if "correlation" in runs[0]:
        row |= {
            "correlation": mean([r["correlation"] for r in runs]),
            "permuted": mean([r["permuted correlation"] for r in runs]),
        }
    return row | {"runs": len(runs), "seconds": mean([r["seconds"] for r in runs])}
