"""Where to cut networks that are to fit?  (Figure 8 of the source.)

Both networks of one pair are trained by identical initial weights and rotation prediction, cut
after each block.  The source finds a slight loss with every later cut and a large one at the end:
the claim, fixed beforehand, is that the earliest cut recombines best up to 2 points and the latest
worst.  Needs ``make data``.
"""

from __future__ import annotations

import time

from compatibility.methods import both, judged, options
from compatibility.pairs import net_for, tasks_of
from compatibility.protocol import Found, Workplace, arguments, mean, spread

import dovetail as dt
from dovetail.core.evidence import Evidence, environment

PAIR = "mnist, changed"
CUTS = {"lenet5": ("conv1", "conv2", "fc1", "fc2"), "resnet56": ("layer1", "layer2", "layer3")}


def cut_at(at: str, seed: int, place: Workplace) -> Found:
    tasks, began = tasks_of(PAIR, place), time.perf_counter()
    nets = [net_for(task, place.protocol, 2 * seed + i) for i, task in enumerate(tasks)]
    chosen = {**options(place, seed), "at": at}
    return judged(dt.train.compatible(nets, tasks, by=("iiw", "rp"), **chosen), tasks, began)


def main() -> None:
    args, place = arguments(__doc__, "fit_where")
    rows = []
    for at in CUTS[place.protocol.net]:
        runs = [
            place.once(f"where, {at}, seed {seed}", lambda a=at, s=seed: cut_at(a, s, place))
            for seed in range(place.seeds)
        ]
        found = both(runs, "recombined, batch")
        rows.append(
            {
                "cut after": at,
                "recombined": mean(found),
                "spread": spread(found),
                "own": mean(both(runs, "own, batch")),
                "correlation": mean([run["correlation"] for run in runs]),
                "runs": len(runs),
            }
        )
    values = [float(row["recombined"]) for row in rows]
    holds = values[0] >= max(values) - 0.02 and values[-1] == min(values)
    Evidence(
        claim="early cuts recombine best, the latest worst (iiw+rp, MNIST and changed MNIST)",
        holds=holds,
        rows=tuple(rows),
        command=f"python reproduce/fit_where.py --threads {args.threads}",
        settings=environment(threads=args.threads, scale=args.scale),
    ).save(args.output)


if __name__ == "__main__":
    main()
