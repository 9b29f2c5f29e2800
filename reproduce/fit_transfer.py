"""Does a ready target head make transfer faster?  (Figure 4 of the source.)

A rotation head is trained on Fashion-MNIST and frozen.  A target network (MNIST) and two source
networks (changed MNIST; digits of eight by eight, enlarged) are then trained against it, each on
its own.  The target's head is put behind each source's front: at once, and fine-tuned on the
target.  Baselines: a head drawn anew behind the same fronts; and fronts and a target head trained
independently, each with a rotation head of its own.

The claims of the source, fixed beforehand: the reused head beats both baselines at once by at least
10 points, and still after one epoch of fine-tuning, on average over sources and seeds.
Needs ``make data``.
"""

from __future__ import annotations

from compatibility.methods import options
from compatibility.pairs import changed, limited, net_for
from compatibility.protocol import Found, Workplace, arguments, mean, spread

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.reuse.transfer import transfer
from dovetail.tasks.derive import resized

SOURCES = ("changed", "digits")
STEPS = (0, 3, 10)
EPOCHS = 5


def tasks(place: Workplace) -> dict[str, dt.Task]:
    target = dt.load_task("mnist", data=place.data)
    found = {
        "rotations": dt.load_task("fashion-mnist", data=place.data),
        "target": target,
        "changed": changed(target),
        "digits": resized(dt.load_task("digits"), 28),
    }
    return {name: limited(task, place.protocol) for name, task in found.items()}


def trained(
    task: dt.Task, seed: int, place: Workplace, rp: dt.Part | None
) -> dt.train.CompatibleFit:
    """A network with a rotation head: the frozen one, or one of its own."""
    return dt.train.compatible(
        net_for(task, place.protocol, seed),
        task,
        by=("rp",),
        scheme="incremental",
        auxiliaries={} if rp is None else {"rp": rp},
        **options(place, seed),
    )


def trial(seed: int, place: Workplace) -> Found:
    data = tasks(place)
    numbers = {name: 10 * seed + i for i, name in enumerate(data)}
    rp = trained(data["rotations"], numbers["rotations"], place, None).auxiliaries["rp"]
    found: Found = {}
    epoch = -(-data["target"].size("train") // place.protocol.batch_size)
    for kind, head in (("compatible", rp), ("independent", None)):
        target = trained(data["target"], numbers["target"], place, head)
        fronts = {n: trained(data[n], numbers[n], place, head).fronts[0] for n in SOURCES}
        record = transfer(
            fronts,
            target.heads[0],
            data["target"],
            epochs=EPOCHS,
            steps=(*STEPS[1:], epoch),
            batch_size=place.protocol.batch_size,
            seed=seed,
        ).record
        for source in SOURCES:
            for which in record.heads if kind == "compatible" else record.heads[:1]:
                row = record.of(source, which)
                name = f"{source}, {kind}" if which == record.heads[0] else f"{source}, {which}"
                for step, words in ((0, "0 steps"), *((s, f"{s} steps") for s in STEPS[1:])):
                    found[f"{name}, {words}"] = row.after(step)
                found[f"{name}, 1 epoch"] = row.after(epoch)
                found[f"{name}, {EPOCHS} epochs"] = row.final
                found[f"{name}, test at once"], found[f"{name}, test after"] = (
                    row.test[0],
                    row.test[-1],
                )
    return found


def main() -> None:
    args, place = arguments(__doc__, "fit_transfer")
    runs = [
        place.once(f"transfer, seed {seed}", lambda s=seed: trial(s, place))
        for seed in range(place.seeds)
    ]
    columns = [*(f"{s} steps" for s in STEPS), "1 epoch", f"{EPOCHS} epochs"]
    rows: list[dict[str, object]] = []
    for source in SOURCES:
        for head in ("compatible", "reinitialised", "independent"):
            name = f"{source}, {head}"
            rows.append(
                {
                    "front of": source,
                    "head": head,
                    **{c: mean([run[f"{name}, {c}"] for run in runs]) for c in columns},
                    "spread at once": spread([run[f"{name}, 0 steps"] for run in runs]),
                    "spread, 1 epoch": spread([run[f"{name}, 1 epoch"] for run in runs]),
                    "test at once": mean([run[f"{name}, test at once"] for run in runs]),
                    "test after": mean([run[f"{name}, test after"] for run in runs]),
                    "runs": len(runs),
                }
            )

    def over(head: str, column: str) -> float:
        return mean([float(str(row[column])) for row in rows if row["head"] == head])

    baselines = ("reinitialised", "independent")
    at_once = [over("compatible", "0 steps") - over(b, "0 steps") for b in baselines]
    later = [over("compatible", "1 epoch") - over(b, "1 epoch") for b in baselines]
    Evidence(
        claim="a compatible target head makes transfer faster: at once and after one epoch",
        holds=min(at_once) >= 0.1 and min(later) > 0,
        rows=tuple(rows),
        command=f"python reproduce/fit_transfer.py --threads {args.threads}",
        settings=environment(threads=args.threads, scale=args.scale),
    ).save(args.output)


if __name__ == "__main__":
    main()
