"""Does each target gain more from the source of its own kind?  (Fig. 8c-d, in small)

The source fine-tunes networks of ImageNet and of Places to birds and to indoor scenes: birds gain
more from ImageNet, scenes more from Places, in accuracy and in speed.  Here, fixed before the first
run:

**Sources.**  LeNet-5 on classes 0 to 4 of MNIST, and of Fashion-MNIST; some 5 000 training images
each at 8×8, 8 epochs of the house's defaults, one network a seed (0, 1, 2).  **Targets.**  Classes
5 to 9 of each, 20 training images a class of other images, 500 validation and 1000 test images at
most before the classes are chosen.
``dt.lens.transfer_study`` with its defaults: scratch and fine-tuned from either; study seeds are
the source's.

**Claims**, on means over seeds, fine-tuned:

1. crossing: on both targets the test error from the source of its kind is below that from the
   other, by more than the standard error of the paired difference over seeds;
2. both are below scratch's for the source of its kind;
3. speed: on both targets the source of its kind reaches scratch's final validation error in fewer
   epochs than the other does (a run that never does counts as all epochs).

``--scale tiny`` is a smoke test, and writes nothing unless told where.  Needs ``make data``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from transfer_feasibility import PER_CLASS, small

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.lens.study_record import FINE_TUNED, SCRATCH
from dovetail.tasks.derive import few, only_classes

SCALES: dict[str, dict[str, Any]] = {
    "tiny": {"seeds": 2, "images": 600, "epochs": 1, "steps": {"epochs": 2}},
    "small": {"seeds": 3, "images": 10_000, "epochs": 8, "steps": {}},
}
SETS = ("mnist", "fashion-mnist")
RESULT = Path(__file__).parent / "results" / "transfer_crossing.json"


def half(name: str, rows: slice, images: int, first: bool) -> dt.Task:
    """The first five classes of a data set, or the others, at 8×8."""
    task = small(name, None, rows, images)
    return only_classes(task, task.classes[:5] if first else task.classes[5:])


def source_of(name: str, seed: int, scale: dict[str, Any]) -> dt.Part:
    """A network of the first five classes."""
    task = half(name, slice(0, 20_000), scale["images"], True)
    net = dt.build("lenet5", channels=1, size=8, classes=5, seed=seed)
    return dt.train.end_to_end(net, task, epochs=scale["epochs"], seed=seed).part


def rows_of(seed: int, target: str, study: dt.lens.TransferStudy) -> list[dict[str, Any]]:
    return [
        {
            "target": target,
            "seed": seed,
            "source": row.source or "–",
            "way": row.way,
            "test error": row.test_error,
            "training error": row.train_error,
            "deviation": row.deviation,
            "epochs to scratch's end": row.epochs,
        }
        for row in study.rows
    ]


def crossed(rows: list[dict[str, Any]], target: str, epochs: int) -> dict[str, Any]:
    """What the seeds say of one target."""
    other = next(name for name in SETS if name != target)

    def of(source: str, key: str) -> list[float]:
        here = [r for r in rows if r["target"] == target and r["source"] == source]
        return [float(epochs if r[key] is None else r[key]) for r in here]

    apart = [b - a for a, b in zip(of(target, "test error"), of(other, "test error"), strict=True)]
    error = stdev(apart) / len(apart) ** 0.5
    speed = {name: fmean(of(name, "epochs to scratch's end")) for name in SETS}
    return {
        "target": target,
        "seed": "all",
        "own kind": fmean(of(target, "test error")),
        "other kind": fmean(of(other, "test error")),
        "scratch": fmean(of("–", "test error")),
        "difference": fmean(apart),
        "its standard error": error,
        "epochs, own kind": speed[target],
        "epochs, other kind": speed[other],
        "crossing": fmean(apart) > error,
        "below scratch": fmean(of(target, "test error")) < fmean(of("–", "test error")),
        "speed": speed[target] < speed[other],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", choices=list(SCALES), default="small")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    scale = SCALES[args.scale]
    targets = {name: few(half(name, slice(30_000, None), 5000, False), PER_CLASS) for name in SETS}
    rows: list[dict[str, Any]] = []
    longest = 0
    for seed in range(scale["seeds"]):
        parts = {name: source_of(name, seed, scale) for name in SETS}
        for name, target in targets.items():
            study = dt.lens.transfer_study(
                parts, target, ways=(SCRATCH, FINE_TUNED), seeds=[seed], **scale["steps"]
            )
            longest = max(longest, *(len(run.errors) for run in study.runs))
            rows += rows_of(seed, name, study)
            print(f"seed {seed}: {study.summary}", flush=True)
    found = [crossed(rows, name, longest) for name in SETS]
    for row in found:
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()})
    claims = ("crossing", "below scratch", "speed")
    held = {claim: all(row[claim] for row in found) for claim in claims}
    record = Evidence(
        claim="each target gains more, and faster, from the source of its own kind: "
        + "; ".join(f"{claim} {'holds' if it else 'does not hold'}" for claim, it in held.items()),
        holds=all(held.values()),
        rows=(*found, *rows),
        command="python reproduce/transfer_crossing.py",
        settings=environment(
            threads=1, epochs=longest, **{k: scale[k] for k in ("seeds", "images")}
        ),
    )
    out = args.out or (RESULT if args.scale == "small" else None)
    if out is not None:
        record.save(out)
    print(record.verdict)


if __name__ == "__main__":
    main()
