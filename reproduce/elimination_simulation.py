"""Of candidates that are equally good, how often does each fall out of a growing sample?

Simulation, where the truth is known: 2 or 12 candidates, each right on 85 % of the examples, that
err independently or alike (a latent correlation of 0.8); 500 examples, looked at when there are
62, 125, 250 and 500, as ``dt.rank(..., anytime=True)`` does.  Candidates may fall at the second and
the third look, each at half of the nominal 10 %.  A verdict does not change here as labels are
added, so that the guard for learning curves (:mod:`dovetail.ranking.elimination`) has nothing to
do.  400 runs a row; ``error`` is the standard error over runs.

Claim, fixed before the run: each falls in at most 10 % of the runs, in every row.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

from dovetail.core.evidence import Evidence, environment
from dovetail.core.seeds import generator
from dovetail.ranking.elimination import falls, look_sizes, still_to_come, thresholds

SHARE, EXAMPLES, NOMINAL = 0.85, 500, 0.1


def verdicts_of(many: int, alike: float, draw: torch.Generator) -> Tensor:
    """Whether each candidate is right on each example ``[m, n]``."""
    common = torch.randn(EXAMPLES, generator=draw)
    own = torch.randn(many, EXAMPLES, generator=draw)
    latent = alike**0.5 * common + (1 - alike) ** 0.5 * own
    return (torch.special.ndtr(latent) < SHARE).double()


def fallen(verdicts: Tensor) -> float:
    """The share of the candidates that fall."""
    looks = look_sizes(EXAMPLES)
    left = torch.arange(len(verdicts))
    far = torch.zeros(len(verdicts), dtype=torch.float64)
    for before, n in pairwise(looks[:-1]):
        now = verdicts[left, :n]
        far = torch.maximum(far, thresholds(now, level=NOMINAL / (len(looks) - 2)))
        ahead = still_to_come(before, n, EXAMPLES)
        gone = [fall.candidate for fall in falls(now, now[:, :before], far, ahead=ahead)]
        stays = torch.ones(len(left), dtype=torch.bool)
        stays[gone] = False
        left, far = left[stays], far[stays]
    return 1 - len(left) / len(verdicts)


def row_of(many: int, alike: float, runs: int) -> dict[str, Any]:
    """How many fall on average, and how sure that is."""
    found = []
    for run in range(runs):
        draw = generator(run, "elimination", many, str(alike))
        found.append(fallen(verdicts_of(many, alike, draw)))
    return {
        **{"candidates": many, "alike": alike, "runs": runs},
        **{"fell": mean(found), "error": stdev(found) / runs**0.5},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument(
        "--output", type=Path, default=Path("reproduce/results/elimination_simulation.json")
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row_of(many, alike, args.runs) for many in (2, 12) for alike in (0.0, 0.8)]
    for row in rows:
        print(row)
    evidence = Evidence(
        claim="of equally good candidates each falls in at most 10 % of the runs",
        holds=all(row["fell"] <= NOMINAL for row in rows),
        rows=tuple(rows),
        command="python reproduce/elimination_simulation.py",
        settings=environment(threads=1, share=SHARE, examples=EXAMPLES, nominal=NOMINAL),
    )
    evidence.save(args.output)
    print(evidence.verdict)


if __name__ == "__main__":
    main()
