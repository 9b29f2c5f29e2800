"""AL on a tenth of the data describes how fifteen binary tasks of CIFAR-10 transfer to each other.

After figures 6 to 8 of "Modularizing deep learning via pairwise learning with kernels".  The tasks
are all pairs of cat, automobile, dog, horse, truck and deer, named by two letters of each.

**Protocol, fixed before running.**  Sources: LeNet-5 for colour images (the source used a
ResNet-18), trained in modules by AL and cut before the last layer, on 4000 training images of each
class, 5 epochs, SGD with momentum 0.9, one-cycle rate with peak 0.1, batch 128, two seeds.  The
other 1000 training images of each class no source has seen.  They are a target's labelled examples:
all 2000 for the truth, 1000 of them (a tenth of what the data set has for the target) for the
estimate.  Truth: test accuracy, on all 2000 test images, of a logistic head (standardised features,
unit penalty) on the frozen front.  Estimates: AL, and beside it centred AL, LogME, GBC, 1-NN and
ridge leave-one-out, and the number of classes that source and target share, which looks at no data.

For each target, sources are ordered by estimate and by truth: Spearman, weighted Kendall τ, and
regret@1 in accuracy; the target's own source left out, since that it serves best is no discovery,
and beside it with that source.  Then the same for each source, over targets.  In the last row the
truth on one random half of the test images is judged by the truth on the other: how well truth
itself is known, at half the number of images.

**Holds** if AL's Spearman over sources, own source left out, is at least 0.8 in the mean over
targets and seeds.  The maps (values averaged over seeds) are in ``results/maps``.

Needs ``make data``.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.core.seeds import generator
from dovetail.measure.forward import outputs_of
from dovetail.ranking.scores import score
from dovetail.ranking.task_map import Role, TaskMap, task_map
from dovetail.tasks.derive import only_classes

CLASSES = ("cat", "automobile", "dog", "horse", "truck", "deer")
TASKS = {a[:2] + b[:2]: (a, b) for a, b in combinations(CLASSES, 2)}
SCORES = ("al", "centred-al", "logme", "gbc", "knn-1", "ridge-loo")
SEEN, LABELLED, ESTIMATED_ON = 4000, 1000, 500  # images a class
EPOCHS, BATCH, RATE = 5, 128, 0.1
DESCRIBED = 0.8

Matrix = dict[str, dict[str, float]]


class Images:
    """CIFAR-10's images of six classes, those of sources and those of targets apart."""

    def __init__(self, data: Path | None) -> None:
        whole = dt.load_task("cifar10", data=data)
        rows = torch.cat([whole.indices("train"), whole.indices("validation")]).sort().values
        self.source: dict[str, Tensor] = {}
        self.target: dict[str, Tensor] = {}
        self.test: dict[str, Tensor] = {}
        for name in CLASSES:
            code = whole.classes.index(name)
            own = rows[whole.targets[rows] == code]
            own = own[torch.randperm(len(own), generator=generator(0, "images", name))]
            self.source[name], self.target[name] = own[:SEEN], own[SEEN : SEEN + LABELLED]
            unseen = whole.indices("test")
            self.test[name] = unseen[whole.targets[unseen] == code]
        self.whole = whole

    def source_task(self, name: str) -> dt.Task:
        """A source's training images, none for validation or test."""
        rows = torch.cat([self.source[c] for c in TASKS[name]]).sort().values
        none = rows[:0]
        kept = self.whole.derived("", indices={"train": rows, "validation": none, "test": none})
        return only_classes(kept, TASKS[name]).derived(name)


def source(images: Images, name: str, seed: int) -> dt.Part:
    """The front of a network trained in modules for one task."""
    net = dt.build("lenet5", channels=3, size=32, classes=2, seed=seed)
    fit = dt.train.modular(
        net,
        images.source_task(name),
        objective="al",
        at="fc2",
        epochs=EPOCHS,
        head_epochs=1,  # nobody looks at the head
        batch_size=BATCH,
        lr=RATE,
        seed=seed,
    )
    return fit.parts[0]


def rows_of(front: dt.Part, images: Images) -> dict[str, tuple[Tensor, Tensor]]:
    """Features of each class: of the labelled images, and of the test images."""
    inputs = images.whole.inputs
    return {
        name: (
            outputs_of(front, inputs[images.target[name]]),
            outputs_of(front, inputs[images.test[name]]),
        )
        for name in CLASSES
    }


def together(pieces: Iterable[Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of two classes under each other, and their labels."""
    both = list(pieces)
    labels = np.repeat(np.arange(len(both)), [len(piece) for piece in both])
    return torch.cat(both).double().numpy(), labels


def truth(rows: dict[str, tuple[Tensor, Tensor]], target: str) -> np.ndarray:
    """Whether a head on the front is right, for each test image of the target."""
    train, labels = together(rows[name][0] for name in TASKS[target])
    test, answers = together(rows[name][1] for name in TASKS[target])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        head = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        return np.asarray(head.fit(train, labels).predict(test) == answers)


def estimates(rows: dict[str, tuple[Tensor, Tensor]], target: str) -> dict[str, float]:
    """Every score of the front on a tenth of the target's training images."""
    few, labels = together(rows[name][0][:ESTIMATED_ON] for name in TASKS[target])
    return {name: score(few, labels, by=name, activation="relu") for name in SCORES}


def measured(images: Images, seed: int, say: Callable[..., None]) -> dict[str, Matrix]:
    """Everything of one seed: the truth, its halves, and every estimate, source by target."""
    found: dict[str, Matrix] = {}

    def note(what: str, value: float) -> None:
        found.setdefault(what, {}).setdefault(name, {})[target] = value

    half = torch.randperm(2000, generator=generator(seed, "halves")).numpy() < 1000
    for name in TASKS:
        rows = rows_of(source(images, name, seed), images)
        for target in TASKS:
            right = truth(rows, target)
            note("truth", float(right.mean()))
            note("first half", float(right[half].mean()))
            note("second half", float(right[~half].mean()))
            note("shared classes", float(len({*TASKS[name]} & {*TASKS[target]})))
            for by, value in estimates(rows, target).items():
                note(by, value)
        say(f"seed {seed}, {name}: own accuracy {found['truth'][name][name]:.3f}")
    return found


def summary(maps: list[TaskMap], role: Role, *, own: bool) -> dict[str, float | None]:
    """Means over tasks and seeds."""
    found = [each.agreement(task, role, own=own) for each in maps for task in TASKS]

    def mean(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return statistics.mean(known) if known else None

    return {
        "Spearman": mean(a.spearman for a in found),
        "weighted τ": mean(a.weighted_kendall for a in found),
        "regret@1": mean(a.regret for a in found),
    }


def row_of(by: str, maps: list[TaskMap]) -> dict[str, Any]:
    """One estimate in one row."""
    without, with_own = (summary(maps, "target", own=own) for own in (False, True))
    as_source = summary(maps, "source", own=False)
    return {
        "estimate": by,
        **without,
        **{f"{name}, own source too": value for name, value in with_own.items()},
        "Spearman over targets": as_source["Spearman"],
    }


def averaged(several: list[Matrix]) -> Matrix:
    return {a: {b: statistics.mean(m[a][b] for m in several) for b in TASKS} for a in TASKS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--output", type=Path, default=Path("reproduce/results"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    images = Images(args.data)

    def say(words: str) -> None:
        print(f"{words} ({time.process_time():.0f} CPU-s)", flush=True)

    seeds = [measured(images, seed, say) for seed in range(args.seeds)]
    rows = []
    for by in (*SCORES, "shared classes"):
        maps = [task_map(found[by], found["truth"], by=by) for found in seeds]
        rows.append(row_of(by, maps))
    halves = [task_map(found["first half"], found["second half"]) for found in seeds]
    rows.append(row_of("truth on other images", halves))
    own = [found["truth"][task][task] for found in seeds for task in TASKS]
    evidence = Evidence(
        claim="AL on a tenth of the data describes how 15 binary tasks transfer",
        holds=rows[0]["Spearman"] >= DESCRIBED,
        rows=tuple(rows),
        command="python reproduce/binary_tasks.py",
        settings=environment(
            threads=1,
            seeds=args.seeds,
            own_accuracy=f"{min(own):.3f} to {max(own):.3f}, mean {statistics.mean(own):.3f}",
            cpu_seconds=round(time.process_time()),
        ),
    )
    for row in rows:
        print(row)
    evidence.save(args.output / "binary_tasks.json")
    for by in ("al", "logme"):
        both = (averaged([found[what] for found in seeds]) for what in (by, "truth"))
        name = "binary_tasks.json" if by == "al" else f"binary_tasks_{by}.json"
        made = task_map(*both, by=by, measure="test accuracy")
        made.save(args.output / "maps" / name)
        print(made.summary)
    print(f"{evidence.claim}: {'holds' if evidence.holds else 'does not hold'}")


if __name__ == "__main__":
    main()
