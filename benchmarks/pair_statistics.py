"""What does it cost to score features, in units of one matrix product, of a peer, and of a pass?

Three questions, each answered in one process by paired rounds (processor time, median of ratios):

- n = 50 000, d = 512, C = 10: every score that is a function of sums, from the rows to the numbers,
  beside one float64 product of the features with themselves, the least that such scores need;
- the same rows: LogME as the peer transformer-ranker computes it, beside our LogME alone, and
  beside all our scores together;
- 10 000 images of 28x28 through LeNet-5 to its 84 features at fc2: all our scores beside the pass
  that extracts the features, and the same for all that ``dt.rank`` measures of a candidate.

The peer is optional: ``pip install --no-deps transformer-ranker`` (it brings text models
otherwise); only the one file with its LogME is loaded.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import statistics
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.measure.forward import outputs_of
from dovetail.ranking.logme import logme
from dovetail.ranking.measuring import yardstick
from dovetail.ranking.scores_from_sums import KINDS
from dovetail.ranking.statistics import PairStatistics

PRODUCTS, FASTER, SHARE = 2.0, 10.0, 0.1
ROWS, WIDTH, CLASSES = 50_000, 512, 10
IMAGES = 10_000


def every_score(features: Tensor, labels: Tensor, activation: str) -> dict[str, float]:
    kinds = [kind for kind in KINDS if activation == "tanh" or kind not in ("al-neo", "utal-neo")]
    return PairStatistics(activation).update(features, labels).scores(kinds)


def peers_logme() -> Any | None:
    """The peer's class, from its one file: its package imports models of text."""
    found = importlib.util.find_spec("transformer_ranker")
    if found is None or not found.submodule_search_locations:
        return None
    folder = Path(found.submodule_search_locations[0]) / "estimators"
    package = types.ModuleType("peer_estimators")
    package.__path__ = [str(folder)]
    sys.modules["peer_estimators"] = package
    return importlib.import_module("peer_estimators.logme").LogME


def paired(
    first: Callable[[], object], second: Callable[[], object], rounds: int
) -> tuple[float, float, float]:
    """The median of second / first, and both medians, in seconds of the processor."""
    times = []
    for turn in range(rounds + 1):
        began = time.process_time()
        first()
        between = time.process_time()
        second()
        ended = time.process_time()
        if turn:  # the first turn warms up
            times.append((between - began, ended - between))
    ratio = statistics.median(b / a for a, b in times)
    return ratio, *(statistics.median(column) for column in zip(*times, strict=True))


def row(question: str, ratio: float, limit: str, holds: bool, times: tuple[float, float]) -> dict:
    print(f"{question}: {ratio:.3g} ({limit})")
    return {
        "question": question,
        "ratio": ratio,
        "must be": limit,
        "holds": holds,
        "first ms": 1000 * times[0],
        "second ms": 1000 * times[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--output", type=Path, default=Path("benchmarks/results/pair_statistics.json")
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    with threadpool_limits(args.threads):  # the products are scipy's
        rows = measured(args.rounds)
    evidence = Evidence(
        claim="all scores cost at most two products of the features with themselves and a tenth "
        "of extracting them; LogME alone at most a tenth of a peer's",
        holds=all(row["holds"] for row in rows),
        rows=tuple(rows),
        command="python benchmarks/pair_statistics.py",
        settings=environment(threads=args.threads, rounds=args.rounds),
    )
    evidence.save(args.output)
    if not evidence.holds:
        raise SystemExit("scoring costs more than that")


def measured(rounds: int) -> list[dict[str, Any]]:
    labels = torch.randint(CLASSES, (ROWS,))
    centres = torch.randn(CLASSES, WIDTH, dtype=torch.float64) * 0.3
    features = torch.tanh(centres[labels] + torch.randn(ROWS, WIDTH, dtype=torch.float64))
    ratio, *times = paired(
        lambda: features.T @ features, lambda: every_score(features, labels, "tanh"), rounds
    )
    rows = [row("all scores / one product", ratio, "<= 2", ratio <= PRODUCTS, times)]

    peer = peers_logme()
    if peer is None:
        print("no peer: pip install --no-deps transformer-ranker")
    else:
        theirs, found = peer().fit(features, labels), logme(features, labels)
        assert math.isclose(theirs, found, rel_tol=1e-2), "different work"
        for name, ours, least in (
            ("our LogME", lambda: logme(features, labels), FASTER),
            ("all our scores", lambda: every_score(features, labels, "tanh"), 1.0),
        ):
            ratio, *times = paired(ours, lambda: peer().fit(features, labels), max(rounds // 3, 3))
            question = f"the peer's LogME / {name}"
            rows.append(row(question, ratio, f">= {least:g}", ratio >= least, times))

    front, _ = dt.cut(dt.build("lenet5", size=28), at="fc2")
    images, labels = torch.rand(IMAGES, 1, 28, 28), torch.randint(CLASSES, (IMAGES,))
    kept = outputs_of(front, images)
    assert kept.shape == (IMAGES, 84), "the features at fc2"
    ratio, *times = paired(
        lambda: outputs_of(front, images), lambda: every_score(kept, labels, "relu"), rounds
    )
    rows.append(row("all scores / extracting", ratio, "<= 0.1", ratio <= SHARE, times))

    nothing = torch.empty(0, dtype=torch.int64)
    kept_task = dt.Task(images, labels).derived(
        "images",
        indices={"train": torch.arange(IMAGES), "validation": nothing, "test": nothing},
    )
    stick = yardstick(kept_task, None, groups=10, permutations=20, confidence=0.9, seed=0)
    ratio, *times = paired(
        lambda: outputs_of(front, images), lambda: stick.measure(kept, "relu"), rounds
    )
    question = "score, interval, z and expected accuracy as dt.rank / extracting"
    rows.append(row(question, ratio, "no limit", True, times))
    return rows


if __name__ == "__main__":
    main()
