"""Does one look into EfficientNet-Lite0 fit into a minute, and does the plan tell what more costs?

``lens.inspect`` of EfficientNet-Lite0 with released weights, 500 images of CIFAR-10 enlarged to 224
pixels, and as the part before it a twin whose weights lie 1 % off: the looks it takes by default
(profile of every stage, curvature of the last layer, deviation, gradients).  With one thread and
with two, on the clock and in processor time.  Then the plan of the same looks, and of one that is
not taken by default, the landscape at 96 pixels, beside that look itself.

Claims, fixed before the run: with two threads the default takes at most 75 s on the clock; the plan
of the default and of the landscape is within a factor of two of what they take.  It needs a machine
that does nothing else; how busy it was stands in the record.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.ranking.candidates import only

ABOUT_A_MINUTE, ALIKE = 75.0, 2.0
RESULT = Path(__file__).parent / "results" / "lens_inspect.json"


def network(size: int, off: float = 0.0) -> dt.Part:
    """Lite0, or one whose weights lie a share off."""
    part = dt.adopt("efficientnet-lite0", args={"size": size})
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in part.module.parameters():
            weight += off * weight.std(correction=0) * torch.randn(weight.shape, generator=draw)
    return part


def seconds(run: Callable[[], Any]) -> tuple[Any, float, float]:
    """What it gives, and its seconds on the clock and of the processor."""
    began = time.perf_counter(), time.process_time()
    found = run()
    return found, time.perf_counter() - began[0], time.process_time() - began[1]


def near(one: float, other: float) -> bool:
    return 1 / ALIKE <= one / other <= ALIKE


def by_default(task: dt.Task, size: int, threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    busy = round(os.getloadavg()[0], 2)
    part, twin = network(size), network(size, off=0.01)
    n = task.size("train")
    plan = dt.lens.inspect(part, task, twin, samples=n, plan=True, show=False)
    seen, clock, processor = seconds(
        lambda: dt.lens.inspect(part, task, twin, samples=n, show=False)
    )
    taken = {look.name: look.seconds for look in seen.looks}
    planned = {offer.name: offer.seconds or 0.0 for offer in plan.offers if offer.name in taken}
    print(seen.answer, flush=True)
    rest = {offer.name: round(offer.seconds or 0.0, 1) for offer in seen.offers}
    return {
        "what": f"the default looks, {n} images of {size} pixels",
        "threads": threads,
        "clock s": clock,
        "processor s": processor,
        "planned s": sum(planned.values()),
        **{f"{name} s": value for name, value in taken.items()},
        **{f"{name}, planned s": value for name, value in planned.items()},
        "offered": ", ".join(f"{name} {value} s" for name, value in rest.items()),
        "busy processors at the start": busy,
        "limit": ABOUT_A_MINUTE if threads > 1 else None,
        "holds": (threads == 1 or clock <= ABOUT_A_MINUTE) and near(sum(planned.values()), clock),
    }


def one_look(task: dt.Task, size: int, threads: int, look: str) -> dict[str, Any]:
    torch.set_num_threads(threads)
    busy = round(os.getloadavg()[0], 2)
    part, n = network(size), task.size("train")
    plan = dt.lens.inspect(part, task, samples=n, plan=True, show=False)
    planned = next(offer.seconds or 0.0 for offer in plan.offers if offer.name == look)
    seen, clock, processor = seconds(
        lambda: dt.lens.inspect(part, task, samples=n, what=[look], show=False)
    )
    taken = seen.looks[0].seconds
    return {
        "what": f"{look}, {n} images of {size} pixels",
        "threads": threads,
        "clock s": clock,
        "processor s": processor,
        "planned s": planned,
        f"{look} s": taken,
        "busy processors at the start": busy,
        "holds": near(planned, taken),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--small", type=int, default=96, help="pixels of the landscape")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    task = dt.load_task("cifar10")
    task = only(task, task.indices("train")[: args.images])
    rows = [by_default(task, args.size, threads) for threads in args.threads]
    rows += [one_look(task, args.small, max(args.threads), "landscape")]
    for row in rows:
        for key, value in row.items():
            print(f"{key}: {value:.4g}" if isinstance(value, float) else f"{key}: {value}")
    record = Evidence(
        claim="EfficientNet-Lite0 is looked into in about a minute with two threads, and the plan "
        "is within a factor of two of what looks take",
        holds=all(row["holds"] for row in rows),
        rows=tuple(rows),
        command="python benchmarks/lens_inspect.py",
        settings=environment(images=args.images, size=args.size),
    )
    record.save(args.out)
    print(record.verdict)


if __name__ == "__main__":
    main()
