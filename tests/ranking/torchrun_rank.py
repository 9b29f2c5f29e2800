"""Run by test_distributed.py in several processes: rank, and write down what was found."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

import dovetail as dt
from dovetail.ranking.ranker import rank


def main(folder: Path, by: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    digits = dt.load_task("digits")
    nets = {f"{width} wide": dt.build("mlp", hidden=(width,)) for width in (3, 32)}
    ranking = rank(nets, digits, by=by, at="hidden1", samples=201)
    ranking.save(folder / f"{by}-{dist.get_rank()}.json")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
