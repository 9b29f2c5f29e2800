"""How small do weights become within 0.1 points of accuracy, with bits chosen by measured mistakes?

"Efficient deep learning", chapter 3, packs 784-392-50-10 (tanh, MNIST) 8.5 times smaller at c = 6
and 9.0 times at c = 5, by a rule that looks at the weights only.  Here the bits of each tensor are
chosen by the mistakes on the validation images, beside that rule and fixed bits.

This is the third run, each with seeds that no run before had looked at.  The first rounded every
weight to the nearest bin and made seed 0 only 7.8 times smaller: six bits for the first layer gave
10.2, but were not sure enough to be within the budget.  Rounding that carries errors along the rows
was then added, and tried out on seeds 0 and 100.  The second run made seeds 10, 11, 12 20.2, 13.0
and 18.3 times smaller and lost 0.14, 0.00 and -0.10 points on the test images (standard errors
0.06, 0.03, 0.05), so the claim below failed for one of them: it asked for 1.645 standard errors, as
if a search tried only one container, and 6000 images show too little of 0.1 points.  Hence the
margin became 2.576, the validation split twice as large.  Fixed before the third run:

**Networks.**  The one above (15 epochs), and LeNet-5 (5 epochs), on MNIST, trained as
``dt.train.end_to_end`` does by default, a fifth of the training images (12 000) set aside for
validation.  A ResNet-8 was planned as well, and left to ``--scale paper`` before any was packed.

**Packings.**  The entropy rule with c = 6, 5, 4; 8, 6, 5 and 4 bits for every tensor (vectors
exact, as always); ``smallest_within`` with a budget of 0.1 points of mistakes on the validation
images and its usual margin, at most 60 measurements; the same with weights rounded to the nearest
only (``carry=False``); and with a budget of 0.5 points.  Ratios are of the whole file against the
bytes of the state dict.  Test images are looked at only to report what each packing loses there;
0.1 points are ten of them, and the standard error of each loss is beside it.

**Claim.**  For every seed of 784-392-50-10 the search within 0.1 points makes the weights at least
8.5 times smaller and loses at most 0.1 points on the test images.

``--scale small`` is this, with three seeds; ``tiny`` a smoke test on digits; ``paper`` has ten, and
ResNet-8 and ResNet-20 with three, each of whose measurements takes many seconds.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from linearized.keeping import Found, found_once
from torch import Tensor

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.core.seeds import generator
from dovetail.measure.forward import outputs_of
from dovetail.pack.compressing import compress
from dovetail.pack.decompressing import decompress
from dovetail.pack.packed import describe
from dovetail.pack.quality import smallest_within

RATIO, POINTS, CALLS = 8.5, 0.1, 60
MLP = "784-392-50-10"
TIGHT, LOOSE = f"within {POINTS} points", "within 0.5 points"
NEAREST = f"{TIGHT}, rounded to the nearest"
FIRST_SEED = 20
RULES: dict[str, dict[str, int]] = {
    **{f"entropy rule, c = {c}": {"extra_bits": c} for c in (6, 5, 4)},
    **{f"{bits} bits": {"bits": bits} for bits in (8, 6, 5, 4)},
}
BUDGETS = {TIGHT: POINTS, NEAREST: POINTS, LOOSE: 0.5}


@dataclass(frozen=True)
class Net:
    """A network, how long it is trained, and with how many seeds."""

    builder: str
    args: dict[str, Any]
    task: str
    epochs: int
    seeds: int


def nets(scale: str) -> dict[str, Net]:
    if scale == "tiny":
        small = {"shape": (1, 8, 8), "hidden": (32, 16), "activation": "tanh"}
        return {MLP: Net("mlp", small, "digits", 2, 1)}
    mlp = {"shape": (1, 28, 28), "hidden": (392, 50), "activation": "tanh"}
    seeds = 3 if scale == "small" else 10
    found = {
        MLP: Net("mlp", mlp, "mnist", 15, seeds),
        "lenet5": Net("lenet5", {}, "mnist", 5, seeds),
    }
    if scale == "paper":
        for name in ("resnet8", "resnet20"):
            found[name] = Net(name, {"channels": 1, "size": 28}, "mnist", 4, 3)
    return found


class Packing:
    """A trained network, its weights, and the mistakes that other weights make."""

    def __init__(self, name: str, net: Net, seed: int, kept: Path) -> None:
        self.task = _more_to_validate(dt.load_task(net.task))
        folder = kept / f"{name}-{seed}"
        if not folder.exists():
            start = dt.build(net.builder, classes=10, seed=seed, **net.args)
            part = dt.train.end_to_end(start, self.task, epochs=net.epochs, seed=seed).part
            part.save_pretrained(folder)
        self.part = dt.from_pretrained(folder)
        self.state = {key: value.clone() for key, value in self.part.module.state_dict().items()}

    def mistakes(self, split: str, state: dict[str, Tensor]) -> Tensor:
        """One for each example that is taken for another class, ``[n]``."""
        inputs, targets = self.task.subset(split)
        self.part.module.load_state_dict(state)
        return (outputs_of(self.part, inputs).argmax(1) != targets).double()

    @cache  # noqa: B019 - one object a seed, and the script ends
    def before(self, split: str) -> Tensor:
        """The mistakes of the weights as they were trained, ``[n]``."""
        return self.mistakes(split, self.state)

    def found(self, way: str) -> Found:
        """Size, points lost on both splits, and cost of one packing."""
        began, calls = time.perf_counter(), 0
        if way in BUDGETS:
            chosen = smallest_within(
                self.state,
                partial(self.mistakes, "validation"),
                BUDGETS[way] / 100,
                carry=way != NEAREST,
                most_calls=CALLS,
            )
            data, calls = chosen.data, chosen.record.calls
        else:
            data = compress(self.state, **RULES[way])
        seconds = time.perf_counter() - began
        packed = describe(data)
        bits = {f"bits of {t.name}": t.bits for t in packed.tensors if t.bits is not None}
        found: Found = {"ratio": packed.ratio, "bits a weight": packed.coded}
        for split in ("validation", "test"):
            more = 100 * (self.mistakes(split, decompress(data)) - self.before(split))
            found[f"{split} accuracy before"] = 100 * (1 - float(self.before(split).mean()))
            found[f"{split} points lost"] = float(more.mean())
            found[f"{split} error"] = float(more.std()) / math.sqrt(len(more))
        return found | {"calls": calls, "seconds": seconds} | bits


def _more_to_validate(task: dt.Task) -> dt.Task:
    """The task with a validation split twice as large, from training rows."""
    train, validation = task.indices("train"), task.indices("validation")
    train = train[torch.randperm(len(train), generator=generator(0, "more to validate"))]
    split = {
        "train": train[len(validation) :],
        "validation": torch.cat([validation, train[: len(validation)]]),
        "test": task.indices("test"),
    }
    names = [task.classes[i] for i in task.targets.tolist()]
    return dt.Task(task.inputs, names, name=task.name, classes=task.classes, split=split)


def rows_of(name: str, runs: dict[str, list[Found]]) -> list[dict[str, Any]]:
    """A row a seed, with the bits of the tensors in bins, and a row of means."""
    rows: list[dict[str, Any]] = []
    for way, found in runs.items():
        told = [key for key in found[0] if not key.startswith("bits of ")]
        for seed, one in enumerate(found, FIRST_SEED):
            bits = " ".join(f"{one[key]:.0f}" for key in one if key not in told)
            row = {"network": name, "packing": way, "seed": str(seed)}
            rows.append(row | {key: one[key] for key in told} | {"bits": bits})
        if len(found) > 1:
            means = {key: statistics.mean(one[key] for one in found) for key in told}
            rows.append({"network": name, "packing": way, "seed": "mean"} | means)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=("tiny", "small", "paper"), default="small")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kept", type=Path, default=Path("data/packing_quality"))
    parser.add_argument(
        "--output", type=Path, default=Path("reproduce/results/packing_quality.json")
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    kept, rows = args.kept / args.scale, []
    runs: dict[str, dict[str, list[Found]]] = {}
    for name, net in nets(args.scale).items():
        runs[name] = {}
        for seed in range(FIRST_SEED, FIRST_SEED + net.seeds):
            made: Callable[[], Packing] = cache(partial(Packing, name, net, seed, kept))
            protocol = {"epochs": net.epochs, "calls": CALLS}
            for way in (*RULES, *BUDGETS):
                found = found_once(
                    kept,
                    f"{name}, {way}, seed {seed}",
                    protocol,
                    lambda made=made, way=way: made().found(way),
                )
                runs[name].setdefault(way, []).append(found)
        rows += rows_of(name, runs[name])
        save(rows, runs[MLP][TIGHT], args)


def save(rows: list[dict[str, Any]], judged: list[Found], args: argparse.Namespace) -> None:
    """Write what is known so far: the network that the claim is about comes first."""
    verdicts = {
        f"{RATIO} times smaller": all(found["ratio"] >= RATIO for found in judged),
        f"at most {POINTS} points lost on test": all(
            found["test points lost"] <= POINTS + 1e-9 for found in judged
        ),
    }
    evidence = Evidence(
        claim=f"with bits chosen by mistakes on validation images, {MLP} becomes at least {RATIO} "
        f"times smaller within {POINTS} points of test accuracy, for every seed",
        holds=all(verdicts.values()),
        rows=tuple(rows),
        command=f"python reproduce/packing_quality.py --threads {args.threads}",
        settings=environment(threads=args.threads, scale=args.scale) | {"verdicts": verdicts},
    )
    evidence.save(args.output)
    print(verdicts, "holds" if evidence.holds else "does not hold", flush=True)


if __name__ == "__main__":
    main()
