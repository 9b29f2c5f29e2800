"""Are partitions faster than data parallelism where the link is no limit?

Two processes with a thread each on one machine, gloo.  Examples a second of: two partitions
(``dt.train.partitioned(parallel=True)``, the cut that the balancer chose in this run), torch's
DistributedDataParallel, and one process.  All train the same network with SGD and momentum on the
same random data, 64 examples a step in all.  VGG-13 of width 16 on 32×32 images is what the claim
is about; its decision block averages four by four first (``decision_pool=4``).  A perceptron,
784-1024-1024-1024-10, is beside it.  Five repeats, the ways interleaved, medians; the machine must
have nothing else to do.  An epoch has 32 steps (64 of the perceptron).  The second partition waits
for one step at the beginning of each; a first run, with epochs of 8 steps, had 1.02 times DDP's
examples a second for that.

The claim holds if the partitions' median is at least 1.05 times DDP's on VGG-13.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from dovetail.core.evidence import Evidence, environment

WORKER = Path(__file__).parent / "partitions" / "ways.py"
NEEDED, BATCH, REPEATS = 1.05, 64, 5
WAYS = {
    "vgg13": {
        "partitions": ("partitions", {"steps": 32, "epochs": 2, "decision_pool": 4}),
        "DDP": ("DDP", {"steps": 24}),
        "one process": ("one", {"steps": 16}),
    },
    "mlp": {
        "partitions": ("partitions", {"steps": 64, "epochs": 2}),
        "DDP": ("DDP", {"steps": 60}),
        "one process": ("one", {"steps": 40}),
    },
}


def free_port() -> int:
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return int(some.getsockname()[1])


def run(wanted: dict[str, Any]) -> list[dict[str, Any]]:
    """Two processes; the rows that the first prints."""
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    started = [
        subprocess.Popen(
            [sys.executable, str(WORKER), json.dumps(wanted)],
            env={**os.environ, **group, **threads, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=3600)[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit("a process failed")
    return [json.loads(line) for line in said[0].splitlines() if line.startswith("{")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument(
        "--output", type=Path, default=Path("benchmarks/results/partitions_ddp.json")
    )
    args = parser.parse_args()
    rows = []
    for network, ways in WAYS.items():
        found = run({"network": network, "batch": BATCH, "repeats": args.repeats, "ways": ways})
        speeds = {
            way: median(row["examples a second"] for row in found if row["way"] == way)
            for way in ways
        }
        pairs = [
            row["examples a second"] / other["examples a second"]
            for row in found
            for other in found
            if row["way"] == "partitions"
            and other["way"] == "DDP"
            and row["repeat"] == other["repeat"]
        ]
        rows.append(
            {
                "network": network,
                "cut": next(row["at"] for row in found if row["way"] == "partitions"),
                **{f"{way}, examples a second": speed for way, speed in speeds.items()},
                "partitions / DDP": speeds["partitions"] / speeds["DDP"],
                "least of a repeat": min(pairs),
                "most of a repeat": max(pairs),
                "partitions / one process": speeds["partitions"] / speeds["one process"],
            }
        )
        print(rows[-1], flush=True)
    Evidence(
        claim="two partitions are at least 1.05 times as fast as data parallelism on two cores",
        holds=rows[0]["partitions / DDP"] >= NEEDED,
        rows=tuple(rows),
        command="python benchmarks/partitions_ddp.py",
        settings=environment(threads=1, processes=2, batch=BATCH, repeats=args.repeats),
    ).save(args.output)


if __name__ == "__main__":
    main()
