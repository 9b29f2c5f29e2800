"""What does filtering redundant examples cost beside one search for their neighbours?

The mask of ``k_filter`` (k = 10) of 60 000 images of MNIST as rows of 784 pixels must take at most
1.2 times one exact search of faiss (``IndexFlatL2``, k = 10, the index built too), in the same
process.  It searches with faiss itself, for a few more neighbours, and decides exactly where
float32 cannot; the rest is what that costs.  Also: the same mask by torch alone, which must be the
same bit by bit.  The search runs before and after ours, and the mean of the two is what we are held
against.  Processor time of one thread; elapsed time of all.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import torch
from torch import Tensor

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.measure.neighbours import k_filter

K, LIMIT = 10, 1.2
RESULT = Path(__file__).parent / "results" / "lens_neighbours.json"


def timed(run: Callable[[], Any], clock: Callable[[], float]) -> tuple[Any, float]:
    began = clock()
    return run(), clock() - began


def searched(x: Tensor) -> None:
    index = faiss.IndexFlatL2(x.shape[1])
    index.add(x.numpy())
    index.search(x.numpy(), K)


def measured(x: Tensor, y: Tensor, threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    searched(x[:1000])
    _, before = timed(lambda: searched(x), clock)
    mask, ours = timed(lambda: k_filter(x, y, K, by="faiss"), clock)
    _, after = timed(lambda: searched(x), clock)
    other, by_torch = timed(lambda: k_filter(x, y, K, by="torch"), clock)
    peer = statistics.mean([before, after])
    row = {
        "rows": len(x),
        "columns": x.shape[1],
        "threads": threads,
        "faiss s": peer,
        "faiss, first and second s": f"{before:.2f}, {after:.2f}",
        "k_filter with faiss s": ours,
        "k_filter with torch s": by_torch,
        "with faiss / one search": ours / peer,
        "with torch / one search": by_torch / peer,
        "the same mask": torch.equal(mask, other),
        "k-redundancy": 1 - float(mask.float().mean()),
    }
    row["holds"] = row["with faiss / one search"] <= LIMIT and row["the same mask"]
    for key, value in row.items():
        print(f"{key}: {value:.4g}" if isinstance(value, float) else f"{key}: {value}", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    task = dt.load_task("mnist")
    x, y = task.inputs[: args.rows].flatten(1).float() / 255, task.targets[: args.rows]
    rows = tuple(measured(x, y, threads) for threads in args.threads)
    record = Evidence(
        claim=f"k-filtering costs at most {LIMIT} times one faiss search of the same k",
        holds=all(row["holds"] for row in rows),
        rows=rows,
        command="python benchmarks/lens_neighbours.py",
        settings=environment(faiss=faiss.__version__, k=K),
    )
    if args.rows == 60_000:
        record.save(RESULT)


if __name__ == "__main__":
    main()
