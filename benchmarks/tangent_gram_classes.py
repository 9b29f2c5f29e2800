"""What does the exact tangent Gram matrix of a classifier cost beside its dense Jacobian?

LeNet-5 on 28x28 images with its ten outputs and all pairs of them, n = 500: the matrix that
inference for classes factors, 5000 rows.  The peer is ``torch.func``: ``vmap(jacrev)``, a tenth of
the images at a time so that it fits, and the product of what it gives with itself in float64.
Alternating rounds in one process, processor time, median of ratios; the two are compared.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.linalg.tangent import tangent_gram

SAMPLES, OUTPUTS, LEAST = 500, 10, 10.0


def dense(model: nn.Module, x: Tensor) -> Tensor:
    """The Jacobian ``[n o, p]`` times itself, float64."""
    values = {name: p.detach() for name, p in model.named_parameters()}

    def of_one(held: dict[str, Tensor], sample: Tensor) -> Tensor:
        return functional_call(model, held, (sample[None],))[0]

    blocks = []
    for some in x.split(max(1, len(x) // 10)):
        parts = vmap(jacrev(of_one), in_dims=(None, 0))(values, some)
        blocks.append(torch.cat([part.flatten(2) for part in parts.values()], 2).flatten(0, 1))
    total = torch.zeros(len(x) * OUTPUTS, len(x) * OUTPUTS, dtype=torch.float64)
    for columns in torch.cat(blocks).split(10_000, 1):
        rows = columns.double()
        total.addmm_(rows, rows.T)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument(
        "--output", type=Path, default=Path("benchmarks/results/tangent_gram_classes.json")
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = dt.build("lenet5", size=28, classes=OUTPUTS).module.eval()
    x = torch.rand(args.samples, 1, 28, 28)
    tangent_gram(model, x[:20])  # warms up
    ours, peer, error = [], [], 0.0
    for _ in range(args.rounds):
        began = time.process_time()
        found = tangent_gram(model, x)
        ours.append(time.process_time() - began)
        began = time.process_time()
        exact = dense(model, x)
        peer.append(time.process_time() - began)
        error = float((found.reshape(exact.shape) - exact).norm() / exact.norm())
    ratio = statistics.median(b / a for a, b in zip(ours, peer, strict=True))
    print(f"dense / ours {ratio:.1f}, error {error:.1e}, ours {ours}, dense {peer}")
    Evidence(
        claim="the exact tangent Gram matrix of LeNet-5 with ten outputs costs at most a tenth of "
        "the dense Jacobian's",
        holds=ratio >= LEAST and error < 1e-6,
        rows=(
            {
                "samples": args.samples,
                "outputs": OUTPUTS,
                "dense / ours": ratio,
                "must be at least": LEAST,
                "ours s": statistics.median(ours),
                "dense s": statistics.median(peer),
                "relative difference": error,
            },
        ),
        command=f"python benchmarks/tangent_gram_classes.py --threads {args.threads}",
        settings=environment(threads=args.threads, rounds=args.rounds),
    ).save(args.output)


if __name__ == "__main__":
    main()
