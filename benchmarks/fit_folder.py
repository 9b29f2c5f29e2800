"""One command on a folder of photos: how near is it to the best of everything that could be tried?

A folder of CIFAR-10 images (3000 unless said, a sub-folder for each class, five broken files among
them).  ``dovetail fit FOLDER`` with its defaults (EfficientNet-Lite 0 to 2 at four sizes, a network
from scratch, closed form; ten minutes), timed.  Then, with the same splits, every network at every
size by every way to adapt it, however long it takes; each is measured on the test images.  And
scikit-learn's ``LogisticRegression`` (C chosen on validation) on the features of each network at
each size, the best of them by validation.

Claim: ``fit`` takes at most the minutes that it was given, its test accuracy is within a point of
the best of all attempts and above logistic regression on the best features.

``--only-fit`` leaves the attempts away; finished ones are kept under ``--kept`` and not made again.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from PIL import Image
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dovetail as dt
from dovetail.adapt.networks import front_of
from dovetail.core.evidence import Evidence, environment
from dovetail.core.seeds import generator
from dovetail.jobs.fit import fit as fit_job
from dovetail.reuse.fitting_attempts import PASSES, Attempt, attempt, keep, kept_attempt, sealed
from dovetail.reuse.fitting_candidates import Candidates, candidates_for

WITHIN, BROKEN = 0.01, 5
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 96, 128, 224])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only-fit", action="store_true")
    parser.add_argument("--kept", type=Path, default=Path("data/fit_folder"))
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/fit_folder.json"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    place = Path(mkdtemp())
    photos = exported(place / "photos", args.images)
    began = time.perf_counter()
    outcome = fit_job(
        str(photos),
        output=str(place / "model"),
        report=str(place / "report.html"),
        minutes=args.minutes,
        sizes=tuple(args.sizes),
        shelf=str(place / "shelf"),
    )
    minutes = (time.perf_counter() - began) / 60
    said = outcome.data
    chosen = f"{said['network']}, {said['how']}"
    ours = {"attempt": f"dovetail fit ({chosen})", "test accuracy": said["value"]}
    rows: list[Row] = [{**ours, "held out": said["held_out"], "seconds": 60 * minutes}]
    print(rows[0], f"{minutes:.1f} minutes", flush=True)
    verdicts = {f"fit took at most {args.minutes:g} minutes": minutes <= args.minutes}
    if not args.only_fit:
        task = dt.load_task(str(photos), unreadable="skip")
        nets = candidates_for(task, None, released=True, sizes=tuple(args.sizes))
        rows += everything(nets, task, args.kept)
        rows.append(logistic(nets, task))
        best = max(row["test accuracy"] for row in rows[1:-1])
        verdicts["fit is within a point of the best attempt"] = said["value"] >= best - WITHIN
        verdicts["fit is above logistic regression"] = said["value"] > rows[-1]["test accuracy"]
    Evidence(
        claim="one command on a folder is within a point of the best of all that could be tried",
        holds=not args.only_fit and all(verdicts.values()),
        rows=tuple(rows),
        command="python benchmarks/fit_folder.py",
        settings=environment(threads=args.threads, images=args.images, sizes=args.sizes)
        | {"minutes": minutes, "verdicts": verdicts, "test images": said["n"]},
    ).save(args.output)
    print(verdicts)


def exported(folder: Path, count: int) -> Path:
    """So many images as PNG files, and a few files that are none."""
    task = dt.load_task("cifar10")
    rows = torch.randperm(len(task.inputs), generator=generator(0, "folder"))[:count]
    for row in rows.tolist():
        name = task.classes[int(task.targets[row])]
        (folder / name).mkdir(parents=True, exist_ok=True)
        pixels = task.inputs[row].movedim(0, -1).numpy()
        Image.fromarray(pixels).save(folder / name / f"{row}.png")
    for i, name in enumerate(task.classes[:BROKEN]):
        (folder / name / f"broken{i}.png").write_bytes(b"\x89PNG but no picture")
    return folder


def everything(nets: Candidates, task: dt.Task, kept: Path) -> list[Row]:
    """Every network by every way, on the test images."""
    rows, open_task = [], sealed(task)
    for name in nets:
        for how in PASSES:
            what = Attempt(name, how)
            done = kept_attempt(what, kept, open_task)
            if done is None:
                done = attempt(what, open_task, nets[name], folds=0, seed=0)
                keep(done, kept)
            accuracy = dt.evaluate(done.part, task).accuracy
            held_out = done.measures(task)["accuracy"]
            rows.append({"attempt": what.name, "test accuracy": accuracy, "held out": held_out})
            rows[-1]["seconds"] = done.seconds
            print(rows[-1], flush=True)
    return rows


def logistic(nets: Candidates, task: dt.Task) -> Row:
    """Logistic regression on the features that it does best with on validation."""
    best: Row = {"held out": -1.0}
    for name in nets:
        front = front_of(nets[name])
        x, y = ({s: task.subset(s)[i] for s in ("train", "validation", "test")} for i in (0, 1))
        rows = {split: front.rows(inputs).numpy() for split, inputs in x.items()}
        for c in (0.001, 0.01, 0.1, 1.0):
            peer = make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=300))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                peer.fit(rows["train"], y["train"].numpy())
            held_out = peer.score(rows["validation"], y["validation"].numpy())
            if held_out > best["held out"]:
                accuracy = peer.score(rows["test"], y["test"].numpy())
                best = {"attempt": f"LogisticRegression on {name}", "test accuracy": accuracy}
                best["held out"] = held_out
    return best


if __name__ == "__main__":
    main()
