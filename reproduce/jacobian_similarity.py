"""Are the Jacobians of networks trained on related tasks alike?  (Figure 5 of the source.)

The source trains 25 LeNets on each half of MNIST and on Fashion-MNIST, refits the last layer of the
latter on the first half, and finds the Jacobians of the halves "vastly more similar" to each other
than to those of Fashion-MNIST, which have "nearly zero similarity".  Fixed before running:

**Networks.**  LeNet-5 on 10 000 images each of MNIST1, MNIST2 (disjoint) and Fashion-MNIST, five
seeds, five epochs of SGD with Nesterov momentum 0.9, one-cycle rate with peak 0.1, batch 128; every
network standardises its inputs as MNIST1 does, so that preprocessing is no difference.  The
three networks of a seed start from the same weights ("aligned"), those of two seeds do not.  The
last layer of the Fashion-MNIST networks is refitted on MNIST1 by logistic regression.  The source
does not say whether its networks shared their starts.  A control that it does not have: the MNIST2
networks with their last layer refitted in the same way, which shows what the refit alone does.

**Similarity** to the MNIST1 networks on 200 training images of MNIST1, by both readings of
``dt.lens.jacobian_similarity``: aligned (the same seed) and not (all other pairs).

**Claim**, on the source's measure (parameters) and aligned networks: MNIST2 is more similar to
MNIST1 than Fashion-MNIST is, in every seed; and Fashion-MNIST "nearly zero", at most 0.1 on
average.  All other rows are reported beside it.

``--scale small`` is this; ``tiny`` a smoke test; ``paper`` 25 seeds on full halves, 500 images.
Needs ``make data``.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, quantiles, stdev
from typing import Any

import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.core.seeds import derived_seed, generator
from dovetail.lens.similarity import jacobian_similarity
from dovetail.measure.forward import preprocess_for
from dovetail.parts.contract import Preprocess

NEARLY_ZERO = 0.1
OTHERS = ("mnist2", "mnist2, refitted", "fashion, refitted")


@dataclass(frozen=True)
class Scale:
    """How much is trained and compared."""

    seeds: int
    images: int
    epochs: int
    compared: int


SCALES = {
    "tiny": Scale(2, 400, 1, 20),
    "small": Scale(5, 10_000, 5, 200),
    "paper": Scale(25, 30_000, 20, 500),
}


def tasks_of(scale: Scale, data: Path | None) -> dict[str, dt.Task]:
    """The three sources: disjoint pieces of MNIST's training images, and some of Fashion-MNIST."""
    mnist, fashion = dt.load_task("mnist", data=data), dt.load_task("fashion-mnist", data=data)
    found = {}
    for name, task, part in (("mnist1", mnist, 0), ("mnist2", mnist, 1), ("fashion", fashion, 0)):
        rows = torch.cat([task.indices("train"), task.indices("validation")]).sort().values
        rows = rows[torch.randperm(len(rows), generator=generator(0, "halves", task.name))]
        mine = rows[part * scale.images : (part + 1) * scale.images]
        test = task.indices("test")
        found[name] = task.derived(
            name, indices={"train": mine, "validation": test[:0], "test": test}
        )
    return found


def trained(task: dt.Task, seed: int, scale: Scale, how: Preprocess, kept: Path) -> dt.Part:
    """LeNet-5 on one task; networks of one seed share their initial weights."""
    folder = kept / f"{task.name}-{seed}"
    if not folder.is_dir():
        fit = dt.train.end_to_end(
            dt.build("lenet5", classes=10, seed=seed),
            task,
            epochs=scale.epochs,
            batch_size=128,
            lr=0.1,
            preprocess=how,
            seed=derived_seed(seed, task.name) % 2**31,
        )
        folder.parent.mkdir(parents=True, exist_ok=True)
        fit.part.save_pretrained(folder)
    return dt.from_pretrained(folder)


def refitted(part: dt.Part, task: dt.Task) -> dt.Part:
    """The part with its last layer fitted anew on a task, the rest as it was."""
    front, _ = dt.cut(part, at="fc2")
    rows = dt.features(front, task)
    head = LogisticRegression(C=1.0, max_iter=300)
    with warnings.catch_warnings():  # of 300 steps that leave the likelihood still rising a little
        warnings.simplefilter("ignore", ConvergenceWarning)
        head.fit(rows.values.numpy(), rows.targets.numpy())
    module = copy.deepcopy(part.module)
    last = module.get_submodule("head")
    with torch.no_grad():
        last.weight.copy_(torch.from_numpy(head.coef_))
        last.bias.copy_(torch.from_numpy(head.intercept_))
    return part.changed(module=module)


def summary(values: list[float]) -> dict[str, float]:
    """The mean, the deviation and the quartiles."""
    low, middle, high = quantiles(values, n=4) if len(values) > 1 else values * 3
    return {
        "mean": mean(values),
        "deviation": stdev(values) if len(values) > 1 else 0.0,
        "lower quartile": low,
        "median": middle,
        "upper quartile": high,
        "least": min(values),
        "greatest": max(values),
        "pairs": len(values),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=tuple(SCALES), default="small")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--kept", type=Path, default=Path("data/jacobian-similarity"))
    parser.add_argument(
        "--output", type=Path, default=Path("reproduce/results/jacobian_similarity.json")
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    scale = SCALES[args.scale]
    tasks = tasks_of(scale, args.data)
    first = tasks["mnist1"]
    how = preprocess_for(first)
    nets: dict[str, dt.Part] = {}
    accuracy: dict[str, list[float]] = {}
    for seed in range(scale.seeds):
        parts = {
            name: trained(task, seed, scale, how, args.kept / args.scale)
            for name, task in tasks.items()
        }
        parts["mnist2, refitted"] = refitted(parts["mnist2"], first)
        parts["fashion, refitted"] = refitted(parts.pop("fashion"), first)
        for name, part in parts.items():
            nets[f"{name} #{seed}"] = part.changed(
                contract=parts["mnist1"].contract  # MNIST's classes, now that the heads tell them
            )
            found = dt.evaluate(nets[f"{name} #{seed}"], first).accuracy
            accuracy.setdefault(name, []).append(found)
        print(f"seed {seed}:", {name: round(found[-1], 3) for name, found in accuracy.items()})
    rows: list[dict[str, Any]] = []
    aligned: dict[str, list[float]] = {}
    for reading in ("parameters", "functions"):
        found = jacobian_similarity(nets, first, reading=reading, limit=scale.compared)
        for other in ("mnist1", *OTHERS):
            for same in (True, False):
                values = [
                    found[f"mnist1 #{one}", f"{other} #{two}"]
                    for one in range(scale.seeds)
                    for two in range(scale.seeds)
                    if (one == two) == same and (other != "mnist1" or one < two)
                ]
                if not values:
                    continue
                start = "the same" if same else "another"
                rows.append(
                    {"reading": reading, "mnist1 with": other, "start": start} | summary(values)
                )
                if reading == "parameters" and same:
                    aligned[other] = values
    rows += [
        {"network": name, "accuracy on mnist": mean(found)} for name, found in accuracy.items()
    ]
    for row in rows:
        print({name: round(v, 3) if isinstance(v, float) else v for name, v in row.items()})
    ordered = [
        near > far
        for near, far in zip(aligned["mnist2"], aligned["fashion, refitted"], strict=True)
    ]
    evidence = Evidence(
        claim="Jacobians of LeNets on the halves of MNIST are more alike than those of MNIST and "
        f"Fashion-MNIST, and the latter at most {NEARLY_ZERO} alike",
        holds=all(ordered) and mean(aligned["fashion, refitted"]) <= NEARLY_ZERO,
        rows=tuple(rows),
        command=f"python reproduce/jacobian_similarity.py --threads {args.threads}",
        settings=environment(
            threads=args.threads,
            scale=args.scale,
            seeds=scale.seeds,
            images=scale.images,
            epochs=scale.epochs,
            compared=scale.compared,
            ordered_in_every_seed=all(ordered),
        ),
    )
    evidence.save(args.output)
    print("holds" if evidence.holds else "does not hold")


if __name__ == "__main__":
    main()
