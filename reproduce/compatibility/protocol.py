"""The protocol, fixed before any comparison: how much data, which network, cut where, how long."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from dovetail.core.files import write_whole

Found = dict[str, float]


@dataclass(frozen=True)
class Protocol:
    """One scale of the experiments.

    ``per_class`` and ``validation`` limit the training and validation images of each task and
    ``test`` the test images; ``None`` takes all.
    """

    scale: str
    per_class: int | None
    validation: int | None
    test: int | None
    net: str
    at: str
    epochs: int
    batch_size: int
    lr: float


SMALL = Protocol("small", 300, 500, 3000, "lenet5", "conv2", 5, 128, 0.1)
PAPER = Protocol("paper", None, None, None, "resnet56", "layer2", 200, 512, 0.1)


@dataclass(frozen=True)
class Workplace:
    """Where a script works: its protocol, the data, and the folder that keeps finished runs."""

    protocol: Protocol
    seeds: int
    data: Path | None
    kept: Path

    def once(self, key: str, make: Callable[[], Found]) -> Found:
        """What ``make`` found, from disk if it was found before under the same protocol."""
        file = self.kept / f"{self.protocol.scale}, {key}.json".replace("/", "-").replace(" ", "_")
        protocol = asdict(self.protocol)
        if not file.exists():
            found = make()
            file.parent.mkdir(parents=True, exist_ok=True)
            kept = {"protocol": protocol, "found": found}
            write_whole(file, json.dumps(kept, indent=1).encode())
            print(key, {name: round(value, 3) for name, value in found.items()}, flush=True)
        kept = json.loads(file.read_text())
        if kept["protocol"] != protocol:
            raise SystemExit(f"{file} was found under another protocol; delete it to run it again")
        return {name: float(value) for name, value in kept["found"].items()}


def arguments(description: str | None, name: str) -> tuple[argparse.Namespace, Workplace]:
    """The options that all scripts have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--scale", choices=("small", "paper"), default="small")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--kept", type=Path, default=Path("data/compatibility"))
    parser.add_argument(
        "--pairs", nargs="+", help="only these pairs of tasks; no record is written"
    )
    parser.add_argument("--output", type=Path, default=Path(f"reproduce/results/{name}.json"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    protocol = SMALL if args.scale == "small" else PAPER
    return args, Workplace(protocol, args.seeds, args.data, args.kept)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def spread(values: list[float]) -> float:
    """The standard deviation over the seeds."""
    middle = mean(values)
    if len(values) < 2:
        return 0.0
    return float((sum((value - middle) ** 2 for value in values) / (len(values) - 1)) ** 0.5)
