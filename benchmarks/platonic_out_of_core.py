"""Can a network be fitted in closed form to rows that do not fit in memory, and exactly?

A million rows of 784 numbers (6.3 GB in float64) are made block by block from a seed and never
held.  One hidden layer by sorted PCA and one by a random projection are fitted to the stream, with
a ridge.  Another process holds all rows and solves the same by its own dense formulas: centred
matrix, target formed, ``torch.linalg.cholesky`` of the normal equations.  Reported are the peak of
the streaming process above what it had after its imports, how far the two solutions are apart, and
the processor time of the fit (without the making of the rows) beside what its matrix products alone
would cost, ``(d + k)^2 + d w + (w + k)^2`` a row, at the speed of a bare ``x.T @ x`` of the same
blocks, timed in between.

Fixed before the first run: below 1 GB, and every weight within 1e-8 of the largest.
"""

from __future__ import annotations

import argparse
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dovetail.closed_form.platonic import Platonic, platonic
from dovetail.closed_form.rows import Block, StreamedRows
from dovetail.core.evidence import Evidence, environment
from dovetail.core.seeds import generator

D, CLASSES, WIDTH, BLOCK, RIDGE = 784, 10, 256, 4096, 100.0
METHODS = ("sorted-pca", "random")
EVERY = 4
"""A bare product is timed at one block in so many."""


def made(rows: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Rows between 0 and 2 that differ in brightness most, and the class of each."""
    draw = generator(0, "profile")
    profile = torch.rand(D, generator=draw, dtype=torch.float64)
    sought = torch.randn(D, CLASSES, generator=draw, dtype=torch.float64)
    for start in range(0, rows, BLOCK):
        part = slice(start, min(start + BLOCK, rows))
        draw = generator(0, "block", start)
        x = torch.rand(part.stop - start, D, generator=draw).double()
        x += torch.rand(len(x), 1, generator=draw) * profile
        nearest = ((x - 0.75) @ sought).argmax(1)
        yield part, x, torch.nn.functional.one_hot(nearest, CLASSES).double()


@dataclass
class Watched:
    """The rows as a stream, and where the time goes that is not the fit's."""

    rows: int
    passes: int = 0
    elsewhere: float = 0.0
    products: list[float] = field(default_factory=list)

    def __call__(self) -> Iterator[Block]:
        """One pass."""
        self.passes += 1
        blocks = made(self.rows)
        while True:
            began = time.process_time()
            found = next(blocks, None)
            if found is None:
                break
            _, x, y = found
            if (found[0].start // BLOCK) % EVERY == 0:
                middle = time.process_time()
                x.T @ x
                self.products.append((time.process_time() - middle) / len(x))
            self.elsewhere += time.process_time() - began
            yield Block(x, y)


def streamed(rows: int, folder: Path) -> None:
    """Fit both networks to the stream; peak and times go beside the weights."""
    before = _resident()
    for method in METHODS:
        watched = Watched(rows)
        began = time.process_time()
        net = platonic(StreamedRows(watched), (WIDTH,), projections=(method,), tries=1, ridge=RIDGE)
        busy = time.process_time() - began - watched.elsewhere
        product = rows * sum(watched.products) / len(watched.products)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
        facts = [peak, watched.passes, busy, product]
        _save(folder / f"streamed-{method}", net, torch.tensor(facts, dtype=torch.float64))


def _save(path: Path, net: Platonic, facts: Tensor) -> None:
    save_file(
        {
            "hidden": net.layers[0].weights.contiguous(),
            "hidden bias": net.layers[0].bias.contiguous(),
            "head": net.head.weights.contiguous(),
            "head bias": net.head.bias.contiguous(),
            "facts": facts,
        },
        path,
    )


def held(rows: int, folder: Path) -> None:
    """The same networks by dense formulas on all rows at once."""
    x = torch.empty(rows, D, dtype=torch.float64)
    y = torch.empty(rows, CLASSES, dtype=torch.float64)
    for part, some, classes in made(rows):
        x[part], y[part] = some, classes
    mean = x.mean(0)
    x -= mean  # in place: there is room for one such matrix
    scatter = x.T @ x
    for method in METHODS:
        if method == "sorted-pca":
            first = torch.linalg.eigh(scatter)[1][:, -1]
            first *= first[first.abs().argmax()].sign()
            order = torch.argsort(x @ first)
            weights = x[order[(torch.arange(WIDTH) * (rows / WIDTH)).round().long()]].T
            weights = weights / (x @ weights).square().mean().sqrt()
            bias = -mean @ weights
        else:
            drawn = torch.randn(
                1 + D + CLASSES, WIDTH, generator=generator(0, "try", 0, 0), dtype=torch.float64
            )
            beta = math.sqrt(scatter.trace() / (y - y.mean(0)).square().sum())
            target = drawn[0] + mean @ drawn[1 : D + 1] + x @ drawn[1 : D + 1]
            target += y @ (beta * drawn[D + 1 :])
            weights = _ridge(scatter, x, target - target.mean(0))
            bias = target.mean(0) - mean @ weights
            del target
        z = (x @ weights + (bias + mean @ weights)).relu_()
        middle = z.mean(0)
        z -= middle
        head = _ridge(z.T @ z, z, y - y.mean(0))
        found = {
            "hidden": weights.contiguous(),
            "hidden bias": bias,
            "head": head.contiguous(),
            "head bias": y.mean(0) - middle @ head,
        }
        save_file(found, folder / f"held-{method}")
        del z


def _ridge(scatter: Tensor, rows: Tensor, target: Tensor) -> Tensor:
    factor = torch.linalg.cholesky(scatter + RIDGE * torch.eye(len(scatter), dtype=torch.float64))
    return torch.cholesky_solve(rows.T @ target, factor)


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--role", choices=["both", "streamed", "held"], default="both")
    parser.add_argument("--folder", type=Path)
    parser.add_argument(
        "--output", type=Path, default=Path("benchmarks/results/platonic_out_of_core.json")
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.role != "both":
        {"streamed": streamed, "held": held}[args.role](args.rows, args.folder)
        return
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for role in ("streamed", "held"):
            sizes = ["--rows", str(args.rows), "--threads", str(args.threads)]
            command = [sys.executable, __file__, "--role", role, "--folder", name, *sizes]
            subprocess.run(command, check=True)
        for method in METHODS:
            ours = load_file(Path(name) / f"streamed-{method}")
            dense = load_file(Path(name) / f"held-{method}")
            peak, passes, seconds, product = ours["facts"].tolist()
            least = product * ((D + CLASSES) ** 2 + D * WIDTH + (WIDTH + CLASSES) ** 2) / D**2
            apart = max(
                float((ours[key] - value).abs().max() / value.abs().max())
                for key, value in dense.items()
            )
            rows.append(
                {
                    "first layer": method,
                    "peak above the imports, MB": peak / 1e6,
                    "all rows, MB": args.rows * D * 8 / 1e6,
                    "largest difference of a weight": apart,
                    "passes": int(passes),
                    "seconds": seconds,
                    "one product, seconds": product,
                    "seconds / those of its products": seconds / least,
                }
            )
            print(rows[-1], flush=True)
    Evidence(
        claim="a million rows of 784 are fitted below 1 GB, to the in-memory ridge solution",
        holds=args.rows >= 1_000_000
        and all(
            row["peak above the imports, MB"] < 1000
            and row["largest difference of a weight"] < 1e-8
            for row in rows
        ),
        rows=tuple(rows),
        command=f"python benchmarks/platonic_out_of_core.py --threads {args.threads}",
        settings=environment(
            threads=args.threads, rows=args.rows, width=WIDTH, ridge=RIDGE, block=BLOCK
        ),
    ).save(args.output)


if __name__ == "__main__":
    main()
