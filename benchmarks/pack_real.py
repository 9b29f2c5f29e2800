"""How small do real networks become within a tenth of a point, and how long does it take?

Fixed before the run:

**Networks.**  EfficientNet-Lite0 with its released ImageNet weights and a linear head (``Probe``)
fitted to the features of 2000 CIFAR-10 images at 64 pixels; and the zoo's MobileNetV2 (width 0.5),
trained on 8000 MNIST images for two epochs.  1000 other images are for validation, on which every
choice is made; 2000 test images are looked at only to report.

**Budget.**  0.1 points, by the rule that ``pack_part`` has: the points that are *expected* to be
lost on the validation images (``ExpectedPoints``) and 2.576 standard errors of them.  Counting
could not tell: of 1000 images none must change for 0.26 points to be sure.  On the test images what
is counted is reported with its standard error, and what is expected beside it.

**Ours**: ``pack_part``, at most 20 measurements, a range a channel; for the smaller network also
one a tensor, of which the smaller file counts.  **NNCodec** 2.1.3: its defaults, and the largest
``qp`` from -44 to -14 that keeps the budget, by bisection.  Batch statistics and other vectors of
fewer than 256 numbers are kept exactly by ours and rounded finely by NNCodec.  Sizes are of whole
files; ratios are against the float32 tensors in memory.

**Time** is processor time of one thread: of the whole search (which runs the network), and of
encoding (without the rounding that the search chose) and decoding, best of two.

**Claim**: within the same budget ours is no larger than NNCodec's, is encoded and decoded three
times as fast, and keeps the budget on the test images by what is expected there; what is counted
there does not exceed it by more than 2.576 standard errors.

An earlier protocol chose by mistakes on 200 validation images without a margin: EfficientNet-Lite0
became 6.3 times smaller, and lost 1.8 points on the test images.  That run is why points are
expected now, and why tensors are compared by a probe; the images of this run were not used to
choose either, apart from 500 of the validation images.

Before any search had ended, the images were cut for time (from 1500 and 4000 to 1000 and 2000).
Changed after the rows were seen: ways to peel that cannot pay are no longer priced, which gives the
same bytes sooner.  MobileNetV2 was measured again with that (it had been encoded 2.5 times as fast
as by NNCodec), EfficientNet-Lite0 was not.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pack_coders import Coder, nncodec

import dovetail as dt
from dovetail.adapt.probe import Probe
from dovetail.core.evidence import Evidence, environment
from dovetail.core.files import write_whole
from dovetail.core.seeds import generator
from dovetail.pack.compressing import compress
from dovetail.pack.decompressing import decompress
from dovetail.pack.searching import Rise
from dovetail.reuse.pack_agreement import ExpectedPoints
from dovetail.reuse.packing import pack_part
from dovetail.settings.pack import MARGIN
from dovetail.tasks.splits import Split

Row = dict[str, Any]
State = dict[str, torch.Tensor]
POINTS, FASTER, SIZE, CALLS = 0.1, 3, 64, 20
VALIDATION, TEST = 1000, 2000
QPS = (-44, -14)
LITE0, MOBILE = "EfficientNet-Lite0 on CIFAR-10", "MobileNetV2 on MNIST"
OURS = {"ours, a range a channel": True, "ours, a range a tensor": False}
NNCODEC, EXACT = "NNCodec", "ours, exact"
SPLITS: tuple[Split, ...] = ("validation", "test")
CODERS = {LITE0: [next(iter(OURS)), NNCODEC, EXACT], MOBILE: [*OURS, NNCODEC, EXACT]}


def drawn(name: str, train: int) -> dt.Task:
    """So many training images, and others to validate and to test on."""
    task = dt.load_task(name)
    rows, test = task.indices("train"), task.indices("test")
    order = rows[torch.randperm(len(rows), generator=generator(0, "draw"))]
    chosen: dict[Split, torch.Tensor] = {
        "train": order[:train].sort().values,
        "validation": order[train : train + VALIDATION].sort().values,
        "test": test[torch.randperm(len(test), generator=generator(1, "draw"))][:TEST],
    }
    return task.derived(f"{name}-some", indices=chosen)


def efficientnet(task: dt.Task) -> dt.Part:
    part = dt.adopt("efficientnet-lite0", args={"size": SIZE})
    inputs, labels = task.subset("train")
    names = [task.classes[label] for label in labels.tolist()]
    return Probe(part, at="flatten", kind="ridge").fit(inputs, names).to_part()


def mobilenet(task: dt.Task) -> dt.Part:
    part = dt.build("mobilenetv2", channels=1, size=28, width=0.5, classes=10, seed=0)
    return dt.train.end_to_end(part, task, epochs=2, seed=0).part


NETWORKS: dict[str, tuple[str, int, Callable[[dt.Task], dt.Part]]] = {
    MOBILE: ("mnist", 8000, mobilenet),
    LITE0: ("cifar10", 2000, efficientnet),
}


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    began = time.process_time()
    return work(), time.process_time() - began


class Judge:
    """What other weights of a part lose on a split: expected, and counted."""

    def __init__(self, part: dt.Part, task: dt.Task, split: Split) -> None:
        self.state: State = part.module.state_dict()
        self.points = ExpectedPoints(part, task, split=split)

    def __call__(self, weights: State) -> tuple[Rise, Rise]:
        """The points expected to be lost, and those lost."""
        expected = Rise.between(self.points.given.numpy(), self.points(weights).numpy(), MARGIN)
        before, after = self.points.given_mistakes.numpy(), self.points.mistakes.numpy()
        return expected, Rise.between(before, after, MARGIN)


def searched(part: dt.Part, task: dt.Task, channels: bool) -> tuple[Coder, bytes, str, float]:
    """Ours: a coder with the levels that were found, the container, and the time it took."""
    # pack_part measures on test images, too: here a hundred, since all are measured below.
    few: dict[Split, torch.Tensor] = {s: task.indices(s) for s in ("train", *SPLITS)}
    few["test"] = few["test"][:100]
    found, seconds = timed(
        lambda: pack_part(
            part,
            task.derived(task.name, indices=few),
            points=POINTS,
            channels=channels,
            most_calls=CALLS,
        )
    )
    print(found.search.summary, flush=True)
    levels = {tensor.name: tensor.levels for tensor in found.record.tensors if tensor.levels}
    exact = [name for name in part.module.state_dict() if name not in levels]

    def encode(weights: State) -> bytes:
        return compress(weights, levels=levels, channels=channels, lossless=exact)

    many = sorted(levels.values())
    said = f"{many[0]} to {many[-1]} levels" if many else "exact"
    return Coder(encode, decompress), found.part.packed, said, seconds


def bisected(peer: Callable[[int], Coder], judge: Judge) -> tuple[Coder, bytes, str, float] | None:
    """NNCodec with the largest ``qp`` that keeps the budget, as if the loss only grew with it."""
    began, best = time.process_time(), None
    low, high = QPS[0] - 1, QPS[1] + 1
    while high - low > 1:
        qp = (low + high) // 2
        coder = peer(qp)
        data = coder.encode(judge.state)
        expected, _ = judge(judge.state | coder.decode(data))  # NNCodec holds no integers
        print(f"qp {qp}: {len(data):,} bytes, {expected}", flush=True)
        if expected.most <= POINTS:
            low, best = qp, (coder, data, f"qp {qp}")
        else:
            high = qp
    return None if best is None else (*best, time.process_time() - began)


def measured(name: str, label: str, kept: Path, peer: Callable[[int], Coder] | None) -> Row:
    """One network by one coder."""
    dataset, train, make = NETWORKS[name]
    task = drawn(dataset, train)
    folder = kept / name.split()[0]
    if not folder.exists():
        make(task).save_pretrained(folder)
    part = dt.from_pretrained(folder)
    state: State = part.module.state_dict()
    judges = {split: Judge(part, task, split) for split in SPLITS}
    found: tuple[Coder, bytes, str, float] | None
    if label in OURS:
        found = searched(part, task, channels=OURS[label])
    elif label == EXACT:
        exact = Coder(lambda weights: compress(weights, lossless=("*",)), decompress)
        found = exact, exact.encode(state), "all bits", 0.0
    else:
        found = None if peer is None else bisected(peer, judges["validation"])
    row: Row = {"network": name, "coder": label}
    if found is None:
        return row
    coder, data, strength, seconds = found
    row |= {"strength": strength, "bytes": len(data), "search seconds": seconds}
    row["ratio"] = sum(tensor.nbytes for tensor in state.values()) / len(data)
    row["encode seconds"] = min(timed(lambda: coder.encode(state))[1] for _ in range(2))
    row["decode seconds"] = min(timed(lambda: coder.decode(data))[1] for _ in range(2))
    for split, judge in judges.items():
        expected, counted = judge(state | coder.decode(data))
        row |= {
            f"{split} points expected": expected.mean,
            f"{split} points expected, error": expected.error,
            f"{split} points lost": counted.mean,
            f"{split} points lost, error": counted.error,
        }
    row["test accuracy before"] = 100 - float(judges["test"].points.given_mistakes.mean())
    print(row, flush=True)
    return row


def kept_once(name: str, label: str, kept: Path, peer: Callable[[int], Coder] | None) -> Row:
    """A row, from disk if it was measured before."""
    file = kept / f"{name} {label}.json"
    if not file.exists():
        write_whole(file, json.dumps(measured(name, label, kept, peer)).encode())
    row: Row = json.loads(file.read_text())
    return row


def verdicts_of(name: str, rows: list[Row]) -> dict[str, bool | None]:
    of = {row["coder"]: row for row in rows}
    best = min((of[label] for label in OURS if label in of), key=lambda row: row["bytes"])
    theirs = of[NNCODEC]
    lost, error = best["test points lost"], best["test points lost, error"]
    found: dict[str, bool | None] = {
        f"{name}: budget kept on test, expected": best["test points expected"] <= POINTS,
        f"{name}: not refuted on test, counted": lost - MARGIN * error <= POINTS,
    }
    if "bytes" not in theirs:  # not installed, or nothing within the budget
        return found | {f"{name}: beside NNCodec": None}
    found[f"{name}: no larger"] = best["bytes"] <= theirs["bytes"]
    for verb in ("encode", "decode"):
        faster = FASTER * best[f"{verb} seconds"] <= theirs[f"{verb} seconds"]
        found[f"{name}: {verb}d {FASTER} times as fast"] = faster
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kept", type=Path, default=Path("data/pack_real"))
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/pack_real.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    peer = nncodec(args.kept / "nncodec")
    rows: list[Row] = []
    verdicts: dict[str, bool | None] = {}
    for name in NETWORKS:
        found = [kept_once(name, label, args.kept, peer) for label in CODERS[name]]
        rows += found
        verdicts |= verdicts_of(name, found)
    print(verdicts)
    Evidence(
        claim=f"within {POINTS} points of accuracy real networks are no larger than NNCodec's, and "
        f"encoded and decoded {FASTER} times as fast",
        holds=all(verdicts.values()),
        rows=tuple(rows),
        command="python benchmarks/pack_real.py",
        settings=environment(
            threads=1,
            verdicts=verdicts,
            size=SIZE,
            calls=CALLS,
            validation=VALIDATION,
            test=TEST,
        ),
    ).save(args.output)


if __name__ == "__main__":
    main()
