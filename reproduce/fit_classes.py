"""How many classes must two tasks share?  (Figure 9 of the source, and the question it leaves.)

The shared head tells 2, 4, 6, 8 or all 10 classes apart; both networks still learn all ten, and are
recombined on all ten.  With fewer classes the head also sees fewer examples.  The source does not
know which of the two makes recombination worse, so each number of classes is also run with as many
examples as two classes have.  The claims, fixed beforehand: recombination grows with the classes
(all ten at least 10 points above two), and so it does with equal examples.  Needs ``make data``.
"""

from __future__ import annotations

import time

from compatibility.methods import both, judged, options
from compatibility.pairs import net_for, tasks_of
from compatibility.protocol import Found, Workplace, arguments, mean, spread

import dovetail as dt
from dovetail.core.evidence import Evidence, environment

PAIR = "mnist, changed"
COUNTS = (2, 4, 6, 8, 10)


def shared(count: int, equal: bool, seed: int, place: Workplace) -> Found:
    tasks, began = tasks_of(PAIR, place), time.perf_counter()
    nets = [net_for(task, place.protocol, 2 * seed + i) for i, task in enumerate(tasks)]
    each = tasks[0].size("train") // len(tasks[0].classes)
    fit = dt.train.compatible(
        nets,
        tasks,
        by=("iiw", "dcc"),
        common=tasks[0].classes[:count],
        common_limit=2 * each if equal else None,
        **options(place, seed),
    )
    return judged(fit, tasks, began)


def main() -> None:
    args, place = arguments(__doc__, "fit_classes")
    rows = []
    for count in COUNTS:
        for equal in (False, True):
            examples = "as many as two classes have" if equal else "all of them"
            key = f"classes, {count}, {examples}"
            runs = [
                place.once(
                    f"{key}, seed {seed}", lambda c=count, e=equal, s=seed: shared(c, e, s, place)
                )
                for seed in range(place.seeds)
            ]
            found = both(runs, "recombined, batch")
            rows.append(
                {
                    "common classes": count,
                    "examples": examples,
                    "recombined": mean(found),
                    "spread": spread(found),
                    "own": mean(both(runs, "own, batch")),
                    "runs": len(runs),
                }
            )
    value = {(row["common classes"], row["examples"]): float(row["recombined"]) for row in rows}
    ends = [
        value[10, words] - value[2, words] >= 0.1
        for words in ("all of them", "as many as two classes have")
    ]
    Evidence(
        claim="recombination grows with the common classes, also with equal examples (iiw+dcc)",
        holds=all(ends),
        rows=tuple(rows),
        command=f"python reproduce/fit_classes.py --threads {args.threads}",
        settings=environment(threads=args.threads, scale=args.scale),
    ).save(args.output)


if __name__ == "__main__":
    main()
