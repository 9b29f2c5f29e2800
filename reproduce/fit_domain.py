"""Does a frozen rotation head adapt a network to a new domain without labels?  (Table 1.)

A network is trained on one task of a pair together with a rotation head.  Then its front alone is
trained on unlabelled images of the other task, through the frozen rotation head, and joined to its
class head again.  The honest baseline is the source network *with batch statistics of the target*:
that alone is most of the gain.  Every pair in both directions; five epochs of adaptation, all else
as ``adapt_domain`` does by default.

The claim of the source, fixed beforehand: adaptation gains on that baseline, on average over all
directions and seeds, with a 95 % interval over the directions above zero.  Needs ``make data``.
"""

from __future__ import annotations

import math

from compatibility.methods import options
from compatibility.pairs import PAIRS, net_for, tasks_of
from compatibility.protocol import Found, Workplace, arguments, mean, spread

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.reuse.domain import adapt_domain, judge_adaptation

EPOCHS = 5
STUDENT = {4: 3.182, 8: 2.365}
"""Quantiles for 95 % intervals of a mean over so many directions."""


def adapted(pair: str, turned: bool, seed: int, place: Workplace) -> Found:
    source, target = tasks_of(pair, place)[:: -1 if turned else 1]
    net = net_for(source, place.protocol, seed)
    fit = dt.train.compatible(net, source, by=("rp",), **options(place, seed))
    front, head, rp = fit.fronts[0], fit.heads[0], fit.auxiliaries["rp"]
    moved = adapt_domain(front, rp, target, epochs=EPOCHS, seed=seed)
    found = judge_adaptation(front, moved.parts[0], head, target)
    stored, batch, after = (reading.accuracy for reading in found.readings)
    return {
        "source, stored": stored,
        "source, batch": batch,
        "adapted": after,
        "low": found.gain.low,
        "high": found.gain.high,
    }


def row_of(direction: str, runs: list[Found]) -> dict[str, object]:
    gains = [run["adapted"] - run["source, batch"] for run in runs]
    return {
        "direction": direction,
        "source": mean([run["source, stored"] for run in runs]),
        "with target statistics": mean([run["source, batch"] for run in runs]),
        "adapted": mean([run["adapted"] for run in runs]),
        "gain": mean(gains),
        "spread": spread(gains),
        "gains above zero (95 %)": sum(run["low"] > 0 for run in runs),
        "losses (95 %)": sum(run["high"] < 0 for run in runs),
        "runs": len(runs),
    }


def main() -> None:
    args, place = arguments(__doc__, "fit_domain")
    rows = []
    for pair in args.pairs or PAIRS:
        for turned in (False, True):
            names = pair.split(", ")[:: -1 if turned else 1]
            direction = " to ".join(names)
            runs = [
                place.once(
                    f"domain, {pair}, {direction}, seed {seed}",
                    lambda p=pair, t=turned, s=seed: adapted(p, t, s, place),
                )
                for seed in range(place.seeds)
            ]
            rows.append(row_of(f"{pair}: {direction}", runs))
    if args.pairs:
        return
    gains = [float(str(row["gain"])) for row in rows]
    error = spread(gains) / math.sqrt(len(gains)) * STUDENT[len(gains)]
    rows.append({"direction": "mean", "gain": mean(gains), "spread": spread(gains)})
    print(f"gain {mean(gains):.4f} ± {error:.4f}")
    Evidence(
        claim="a front adapted through a frozen rotation head beats the source network with target "
        "statistics",
        holds=mean(gains) - error > 0,
        rows=tuple(rows),
        command=f"python reproduce/fit_domain.py --threads {args.threads}",
        settings=environment(
            threads=args.threads,
            scale=args.scale,
            gain=f"{mean(gains):.4f}",
            interval=f"{mean(gains) - error:.4f} to {mean(gains) + error:.4f}",
        ),
    ).save(args.output)


if __name__ == "__main__":
    main()
