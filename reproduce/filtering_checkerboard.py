"""Does k-filtering free gradient descent on a checkerboard?  (Section 5.4.2, EFF.)

5000 points on a board of 8 x 8 squares, uniform on [-0.5, 0.5].  The source says that no
perceptron it tried learns them by gradient descent, with any optimiser: always 51 to 53 % of the
training points are right, since opposed gradients along the diagonals cancel.  K-filtered, which
leaves out the middle of each square, the points can be fitted "to arbitrary precision".  It names
neither network, k, rate nor number of steps.  Our own earlier runs: SGD 51.5 %, Adam 58 to 63 %,
and 71 to 73 % with inputs times eight, where a square has side one.

A first look at another board (seed 100, 3000 to 4000 steps of SGD) had shown no gain from
filtering, so the grid is wide.  Protocol, fixed before running:

- 2-256-256-256-1, ReLU, logistic loss, batches of 128, no weight decay, 5000 steps in every run
  (125 epochs of all points), constant rate: SGD with momentum 0.9 at rates 0.1 and 0.03, and Adam
  at 0.001.  Three seeds draw board, network and batches.
- Learnt from: all points; k-filtered with k = 3, 5, 10 and 20; and as many points as k = 10 leaves,
  at random (the floor).  Accuracy on the points that were learnt from, as in the source, on all
  5000, and on 5000 new ones.
- Beside it inputs times eight, by SGD at 0.03 and by Adam: all points, k = 10, at random.

The claims, on means over the seeds, inputs as they are: (1) on all points SGD stays at 55 % or
less, at both rates; (2) on filtered points some k and rate of SGD reach 99 % of those learnt from;
(3) some k and rate of SGD reach 10 points more on the points learnt from than on as many at random
at the same rate.  The record holds if (1) and (2) do; each is reported, and Adam beside.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from linearized.keeping import Found, found_once
from linearized.regression import network
from platonic.toys import POINTS, accuracy, checkerboard
from torch import Tensor, nn

from dovetail.core.evidence import Evidence, environment
from dovetail.core.seeds import generator
from dovetail.train.filtering import Filter

STEPS, STUCK, FITTED, MORE = 5000, 55.0, 99.0, 10.0
DESCENTS = {"SGD, 0.1": 0.1, "SGD, 0.03": 0.03, "Adam": 0.001}
NEIGHBOURS = (3, 5, 10, 20)
RANDOM = "random, as k = 10"
RESULT = Path("reproduce/results/filtering_checkerboard.json")


def learnt_from(what: str, x: Tensor, y: Tensor, seed: int) -> Tensor:
    """A mask of the points to learn from."""
    if what == "all":
        return torch.ones(len(x), dtype=torch.bool)
    keep = Filter("inputs", int(what.rpartition(" ")[2])).keep(x, (y[:, 0] > 0).long())
    if what == RANDOM:
        return keep[torch.randperm(len(x), generator=generator(seed, "random"))]
    return keep


def descended(what: str, by: str, scale: float, steps: int, seed: int) -> Found:
    """One training."""
    x, y = (each.float() for each in checkerboard(seed, POINTS))
    new, colours = (each.float() for each in checkerboard(10_000 + seed, POINTS))
    keep = learnt_from(what, x, y, seed)
    net = network(2, 256, 256, 256, 1, activation=nn.ReLU, seed=seed)
    optimiser: torch.optim.Optimizer
    if by == "Adam":
        optimiser = torch.optim.Adam(net.parameters(), lr=DESCENTS[by])
    else:
        optimiser = torch.optim.SGD(net.parameters(), lr=DESCENTS[by], momentum=0.9)
    draw, batches = generator(seed, "batches"), []
    inputs, targets = scale * x[keep], y[keep]
    for _ in range(steps):
        batches = batches or list(torch.randperm(len(inputs), generator=draw).split(128))
        rows = batches.pop()
        optimiser.zero_grad()
        nn.functional.soft_margin_loss(net(inputs[rows]), targets[rows]).backward()
        optimiser.step()
    with torch.no_grad():
        return {
            "kept": int(keep.sum()),
            "learnt": accuracy(net(inputs), targets),
            "all": accuracy(net(scale * x), y),
            "new": accuracy(net(scale * new), colours),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=Path("data/filtering-checkerboard"))
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    protocol = {"steps": args.steps}
    rows: list[dict[str, Any]] = []
    reached: dict[tuple[float, str, str], float] = {}
    for scale in (1.0, 8.0):
        for by in DESCENTS:
            if scale > 1 and by == "SGD, 0.1":
                continue
            several = NEIGHBOURS if scale == 1 else (10,)
            for what in ("all", *(f"k = {k}" for k in several), RANDOM):

                def make(seed: int, what: str = what, by: str = by, scale: float = scale) -> Found:
                    return found_once(
                        args.keep,
                        f"{what} {by} {scale:g} {seed}",
                        protocol,
                        lambda: descended(what, by, scale, args.steps, seed),
                    )

                runs = [make(seed) for seed in range(args.seeds)]
                learnt = [run["learnt"] for run in runs]
                reached[scale, by, what] = mean(learnt)
                rows.append(
                    {"inputs times": scale, "by": by, "learnt from": what}
                    | {"points": mean(run["kept"] for run in runs)}
                    | {"of those, %": mean(learnt), "least": min(learnt), "most": max(learnt)}
                    | {"of all, %": mean(run["all"] for run in runs)}
                    | {"of new, %": mean(run["new"] for run in runs)}
                )
    plain = [by for by in DESCENTS if by != "Adam"]
    stuck = max(reached[1.0, by, "all"] for by in plain)
    best, by, k = max((reached[1.0, by, f"k = {k}"], by, k) for by in plain for k in NEIGHBOURS)
    gain = max(
        reached[1.0, by, f"k = {k}"] - reached[1.0, by, RANDOM] for by in plain for k in NEIGHBOURS
    )
    held = [stuck <= STUCK, best >= FITTED, gain >= MORE]
    adam, other = reached[1.0, "Adam", "all"], reached[8.0, "SGD, 0.03", "all"]
    evidence = Evidence(
        claim=f"on all points of a checkerboard SGD stays at {STUCK:g} % or less ({stuck:.1f} %: "
        f"{held[0]}), and k-filtered it reaches {FITTED:g} % of the points learnt from (at best "
        f"{best:.1f} %, k = {k}, {by}: {held[1]}; {gain:+.1f} points over as many at random: "
        f"{held[2]}); without a filter Adam reaches {adam:.1f} %, and SGD {other:.1f} % where a "
        "square has side one",
        holds=held[0] and held[1],
        rows=tuple(rows),
        command=f"python reproduce/filtering_checkerboard.py --threads {args.threads}",
        settings=environment(threads=args.threads, seeds=args.seeds, steps=args.steps),
    )
    evidence.save(args.output)
    print(evidence.claim)
    if not evidence.holds:
        raise SystemExit("the claim does not hold")


if __name__ == "__main__":
    main()
