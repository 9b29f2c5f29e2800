"""What do the layers learn while the loss falls, epoch by epoch?  (Figures 5.6 and 5.21)

The source trains the 784-392-196-50-10 network with ReLUs on MNIST for 50 epochs at a deliberately
tiny rate (3e-6) and records the mean entropy of the classes that each layer's features select, the
least-squares distance from each layer, and the squared error: the layers' entropies fall together
with it, those of later layers further, as their distances do.

Fixed before the first run: MNIST, the first 5 000 training images, loss ``"mse"`` (the squared
distance to one-hot labels), a constant rate of 0.003, momentum 0.9, batches of 128, no decay, 20
epochs: the rate is one at which the loss falls through all of them, not the source's, whose batch
and sum over examples it does not tell.  Three seeds.  ``lens.profile_over`` of the start and of
epochs 1, 2, 5, 10, 20 on the first 1 000 of these images; k = 10.

Claims, on every seed, each said to hold if it does on all three:

1. the selection entropy of the third hidden layer is lower at the last epoch than at the start, and
   it falls by more there than at the first hidden layer;
2. the least-squares distance falls at every hidden layer from the start to the last epoch;
3. over the six networks the rank correlation with the loss is at least 0.8 for the selection
   entropy of the third hidden layer, and for the mean distance of the hidden layers.

``--scale tiny`` is a smoke test, and writes nothing unless told where.  Needs ``make data``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from scipy.stats import spearmanr

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.ranking.candidates import only
from dovetail.train.callbacks import Snapshots

SCALES = {
    "tiny": {"seeds": 1, "trained": 500, "looked": 200, "epochs": (1, 2)},
    "small": {"seeds": 3, "trained": 5000, "looked": 1000, "epochs": (1, 2, 5, 10, 20)},
}
LAYERS = ("hidden1", "hidden2", "hidden3")
RATE, BATCH, ALIKE = 0.003, 128, 0.8
RESULT = Path(__file__).parent / "results" / "lens_epochs.json"


def loss_of(part: dt.Part, task: dt.Task) -> float:
    """The squared distance of the outputs to one-hot labels."""
    inputs, targets = task.subset("train")
    said = dt.measure.forward.outputs_of(part, inputs)
    wanted = torch.nn.functional.one_hot(targets, len(task.classes))
    return float((said - wanted).square().mean())


def course(seed: int, scale: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for every layer of every network of one training."""
    task = dt.load_task("mnist")
    task = only(task, task.indices("train")[: scale["trained"]])
    few = only(task, task.indices("train")[: scale["looked"]])
    start = dt.build("mlp", shape=(1, 28, 28), hidden=(392, 196, 50), classes=10, seed=seed)
    kept = Snapshots()
    fit = dt.train.end_to_end(
        start,
        task,
        loss="mse",
        epochs=max(scale["epochs"]),
        batch_size=BATCH,
        lr=RATE,
        schedule="constant",
        weight_decay=0.0,
        callbacks=(kept,),
        seed=seed,
    )
    # The start sees what the trained ones see: images in the same units.
    first = start.changed(contract=fit.part.contract)
    every = kept.parts(fit.part)
    parts = {"start": first, **{f"epoch {e}": every[f"epoch {e}"] for e in scale["epochs"]}}
    found = dt.lens.profile_over(parts, few, at=LAYERS, limit=None, seed=seed)
    rows = []
    for name, profile in zip(found.names, found.profiles, strict=True):
        loss = loss_of(parts[name], few)
        for point in profile.points:
            rows.append(
                {
                    "seed": seed,
                    "network": name,
                    "loss": loss,
                    "at": point.at,
                    "selection entropy": point.selection_entropy,
                    "least-squares distance": point.least_squares_distance,
                    "k-redundancy": point.k_redundancy,
                    "pure entropy": point.pure_entropy,
                }
            )
            print(rows[-1], flush=True)
    return rows


def claims_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What one seed says of the claims."""
    names = list(dict.fromkeys(row["network"] for row in rows))

    def curve(at: str, key: str) -> list[float]:
        by = {row["network"]: row[key] for row in rows if row["at"] == at}
        return [by[name] for name in names]

    entropy = {at: curve(at, "selection entropy") for at in LAYERS}
    distance = {at: curve(at, "least-squares distance") for at in LAYERS}
    loss = curve(LAYERS[0], "loss")
    fallen = {at: values[0] - values[-1] for at, values in entropy.items()}
    mean = [fmean(each) for each in zip(*distance.values(), strict=True)]
    with_entropy = float(spearmanr(entropy[LAYERS[-1]], loss).statistic)
    with_distance = float(spearmanr(mean, loss).statistic)
    return {
        "entropy falls more behind": fallen[LAYERS[-1]] > max(0.0, fallen[LAYERS[0]]),
        "distance falls": all(values[-1] < values[0] for values in distance.values()),
        "with the loss": min(with_entropy, with_distance) >= ALIKE,
        "entropy and loss": with_entropy,
        "distance and loss": with_distance,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", choices=list(SCALES), default="small")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    scale = SCALES[args.scale]
    rows: list[dict[str, Any]] = []
    verdicts: list[dict[str, Any]] = []
    for seed in range(scale["seeds"]):
        found = course(seed, scale)
        verdicts.append({"seed": seed, "what": "claims", **claims_of(found)})
        print(verdicts[-1], flush=True)
        rows += found
    claims = ("entropy falls more behind", "distance falls", "with the loss")
    record = Evidence(
        claim="selection entropy and least-squares distance fall with the loss, later layers "
        "further",
        holds=all(verdict[claim] for verdict in verdicts for claim in claims),
        rows=(*verdicts, *rows),
        command="python reproduce/lens_epochs.py",
        settings=environment(threads=1, **scale),
    )
    out = args.out or (RESULT if args.scale == "small" else None)
    if out is not None:
        record.save(out)
    print(record.verdict)


if __name__ == "__main__":
    main()
