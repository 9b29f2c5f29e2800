"""The accuracy of the best head rises with the proxy of the module below it.

After the fourth figure of "Modularizing deep learning via pairwise learning with kernels".  LeNet-5
with tanh, cut before its last layer, features scaled to unit length; 10 000 training images of
MNIST.

**Protocol, fixed before running.**  The input module is trained by AL, CTS, NMSE or NMSE-NEO (SGD
with momentum 0.9, rate 0.1, batches of 128, three seeds each) and frozen after 0, 4, 8, ... 1024
steps.  On each of these 120 modules an output layer is trained to convergence (logistic regression,
penalty 1e-4 on the squared weights) and its accuracy measured on the 10 000 test images.  Each
module's proxies are computed on the training images: exactly on all of them, CTS on the first 3000.

**Holds** if for each proxy the rank correlation (Spearman) of its value and the accuracy is at
least 0.9 among the modules it trained, both over all of them and over the better half by accuracy
("near perfect in the high-accuracy regime").  Beside it the same over all 120 modules, whatever
trained them, which the paper does not claim.

Needs ``make data``.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from scipy import stats
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.core.seeds import generator
from dovetail.measure.forward import outputs_of, prepare, preprocess_for
from dovetail.objectives import Pairwise, unit_rows
from dovetail.ranking.scores import score
from dovetail.ranking.statistics import PairStatistics

PROXIES = ("al", "cts", "nmse", "nmse-neo")
STEPS = (0, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
IMAGES, BATCH, RATE = 10_000, 128, 0.1
CTS_ROWS = 3000
NEAR_PERFECT = 0.9


def fronts(task: dt.Task, proxy: str, seed: int) -> Iterator[tuple[int, dt.Part]]:
    """The input module after each number of steps; the same module, trained on in between."""
    net = dt.build("lenet5", classes=10, activation="tanh", seed=seed)
    net = net.changed(contract=replace(net.contract, preprocess=preprocess_for(task)))
    front, _ = dt.cut(net, at="fc2")
    inputs, labels = task.subset("train")
    inputs = prepare(inputs, front.contract)
    optimiser = torch.optim.SGD(front.module.parameters(), lr=RATE, momentum=0.9)
    objective = Pairwise(proxy, activation="tanh")
    draw = generator(seed, "batches", proxy)
    done = 0
    for steps in STEPS:
        front.module.train()
        for _ in range(steps - done):
            rows = torch.randint(len(inputs), (BATCH,), generator=draw)
            optimiser.zero_grad()
            (-objective(front.module(inputs[rows]), labels[rows])).backward()
            optimiser.step()
        done = steps
        front.module.eval()
        yield steps, front


def head_accuracy(train: Tensor, labels: Tensor, test: Tensor, answers: Tensor) -> float:
    """Test accuracy of the output layer, trained to convergence on unit-length features."""
    rows, unseen = (unit_rows(features).double().numpy() for features in (train, test))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        head = LogisticRegression(C=1e4 / len(rows), max_iter=300).fit(rows, labels.numpy())
    return float(head.score(unseen, answers.numpy()))


def proxies_of(features: Tensor, labels: Tensor) -> dict[str, float]:
    """Each proxy of one module."""
    sums = PairStatistics("tanh").update(features, labels)
    found = {name: sums.score(name) for name in PROXIES if name != "cts"}
    few = score(features[:CTS_ROWS], labels[:CTS_ROWS], by="cts", activation="tanh")
    return {**found, "cts": few}


def agreement(modules: list[dict[str, Any]], proxy: str) -> tuple[float, float]:
    """Spearman's correlation of proxy and accuracy: of all modules, and of the better half."""
    ordered = sorted(modules, key=lambda module: -module["accuracy"])
    better = ordered[: len(ordered) // 2]
    both = [
        stats.spearmanr([m[proxy] for m in some], [m["accuracy"] for m in some]).statistic
        for some in (ordered, better)
    ]
    return float(both[0]), float(both[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", type=Path)
    parser.add_argument(
        "--output", type=Path, default=Path("reproduce/results/proxy_and_accuracy.json")
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    began = time.process_time()
    whole = dt.load_task("mnist", data=args.data)
    chosen = whole.indices("train")
    chosen = chosen[torch.randperm(len(chosen), generator=generator(0, "images"))[:IMAGES]]
    kept = {"train": chosen, "validation": chosen[:0], "test": whole.indices("test")}
    task = whole.derived(f"mnist~{IMAGES}", indices=kept)
    (inputs, labels), (unseen, answers) = task.subset("train"), task.subset("test")
    modules: list[dict[str, Any]] = []
    for proxy in PROXIES:
        for seed in range(args.seeds):
            for steps, front in fronts(task, proxy, seed):
                rows, others = outputs_of(front, inputs), outputs_of(front, unseen)
                modules.append(
                    {"trained by": proxy, "seed": seed, "steps": steps}
                    | {"accuracy": head_accuracy(rows, labels, others, answers)}
                    | proxies_of(rows, labels)
                )
                print(modules[-1], f"{time.process_time() - began:.0f} s", flush=True)
    rows_out = []
    for proxy in PROXIES:
        own = [module for module in modules if module["trained by"] == proxy]
        over_own, better_own = agreement(own, proxy)
        over_all, better_all = agreement(modules, proxy)
        median = sorted(module["accuracy"] for module in own)[len(own) // 2]
        rows_out.append(
            {
                "proxy": proxy,
                "modules": len(own),
                "accuracy from": min(module["accuracy"] for module in own),
                "median": median,
                "to": max(module["accuracy"] for module in own),
                "Spearman": over_own,
                "Spearman, better half": better_own,
                "over all modules": over_all,
                "over their better half": better_all,
            }
        )
        print(rows_out[-1])
    evidence = Evidence(
        claim="the accuracy of the best head rises with the proxy of the module below it",
        holds=all(
            min(row["Spearman"], row["Spearman, better half"]) >= NEAR_PERFECT for row in rows_out
        ),
        rows=tuple(rows_out),
        command="python reproduce/proxy_and_accuracy.py",
        settings=environment(
            threads=1, seeds=args.seeds, images=IMAGES, cpu_seconds=round(time.process_time())
        ),
    )
    evidence.save(args.output)
    print(f"{evidence.claim}: {'holds' if evidence.holds else 'does not hold'}")


if __name__ == "__main__":
    main()
