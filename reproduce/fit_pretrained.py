"""Do pretrained starts help or hurt compatibility?  (Section 4 of the source.)

Networks are first trained on Fashion-MNIST to tell rotations, without labels; then on MNIST and
changed MNIST.  With iiw both begin with the same pretrained weights, without it with different
ones, pretrained from different random weights.  The claims of the source, fixed beforehand: the
same pretrained start fits better than the same random one (iiw), and different pretrained starts
fit worse than different random ones (rp, dcc).  Needs ``make data``.
"""

from __future__ import annotations

import time
from functools import cache

from compatibility.methods import METHODS, both, judged, options, runs_of
from compatibility.pairs import limited, net_for, tasks_of
from compatibility.protocol import Found, Workplace, arguments, mean, spread

import dovetail as dt
from dovetail.core.evidence import Evidence, environment

PAIR = "mnist, changed"
WAYS = ("independent", "iiw", "rp", "dcc", "iiw+dcc")


@cache
def pretrained(seed: int, place: Workplace) -> dt.Part:
    """A network that has learnt to tell rotations of clothes."""
    clothes = limited(dt.load_task("fashion-mnist", data=place.data), place.protocol)
    net = net_for(clothes, place.protocol, seed)
    whole = dt.train.self_supervised(net, clothes, **options(place, seed)).whole
    assert whole is not None
    # The standardisation of clothes would stay with the part; the target's own is wanted.
    return dt.Part(whole.module, net.contract, net.recipe, whole.origin)


def started(method: str, seed: int, place: Workplace) -> Found:
    tasks, began = tasks_of(PAIR, place), time.perf_counter()
    nets = [pretrained(2 * seed + i, place) for i in range(2)]
    fit = dt.train.compatible(nets, tasks, by=METHODS[method], **options(place, seed))
    return judged(fit, tasks, began)


def main() -> None:
    args, place = arguments(__doc__, "fit_pretrained")
    rows: list[dict[str, object]] = []
    value = {}
    for method in WAYS:
        before = [
            place.once(
                f"pretrained, {method}, seed {seed}", lambda m=method, s=seed: started(m, s, place)
            )
            for seed in range(place.seeds)
        ]
        for start, runs in (("pretrained", before), ("random", runs_of(PAIR, method, place))):
            found = both(runs, "recombined, batch")
            value[method, start] = mean(found)
            rows.append(
                {
                    "trained": method,
                    "start": start,
                    "recombined": mean(found),
                    "spread": spread(found),
                    "own": mean(both(runs, "own, batch")),
                    "correlation": mean([run["correlation"] for run in runs]),
                    "runs": len(runs),
                }
            )
    holds = (
        value["iiw", "pretrained"] > value["iiw", "random"]
        and value["rp", "pretrained"] < value["rp", "random"]
        and value["dcc", "pretrained"] < value["dcc", "random"]
    )
    Evidence(
        claim="the same pretrained start helps compatibility, different pretrained starts hurt it",
        holds=holds,
        rows=tuple(rows),
        command=f"python reproduce/fit_pretrained.py --threads {args.threads}",
        settings=environment(threads=args.threads, scale=args.scale),
    ).save(args.output)


if __name__ == "__main__":
    main()
