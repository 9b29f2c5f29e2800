"""How do partitions compare with data parallelism on slow links?

Two processes with a thread each in two network namespaces of one machine, joined by a pair of
virtual devices whose rate ``tc`` limits (token bucket, both ways) to 1 Gbit/s, 100 and 10 Mbit/s.
The network is heavy in parameters: a perceptron, 784-1024-1024-1024-10, 2.9 million weights, 64
random examples a step, SGD with momentum.  Examples a second of: two partitions (the cut that the
balancer chose in the run), the same with activations as float16 and packed (8 bits), torch's
DistributedDataParallel, and torch's own pipeline (1F1B, four pieces, the same cut, exact
gradients).  Two repeats at each rate, interleaved, medians.

The claim holds if two partitions as they are have at least twice DDP's examples a second at
100 Mbit/s.  Where namespaces are not allowed, nothing is measured and that is said.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from partitions.hosts import Host, limit, two_hosts

from dovetail.core.evidence import Evidence, environment

WORKER = Path(__file__).parent / "partitions" / "ways.py"
NEEDED, AT, BATCH, REPEATS = 2.0, "100 Mbit/s", 64, 2
RATES = {"1 Gbit/s": "1gbit", "100 Mbit/s": "100mbit", "10 Mbit/s": "10mbit"}
PORT = "29577"
STEPS = {"1 Gbit/s": (12, 20), "100 Mbit/s": (10, 5), "10 Mbit/s": (4, 3)}


def run(hosts: tuple[Host, Host], wanted: dict[str, Any]) -> list[dict[str, Any]]:
    group = {"MASTER_ADDR": hosts[0].address, "MASTER_PORT": PORT, "WORLD_SIZE": "2"}
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            host.command(sys.executable, str(WORKER), json.dumps(wanted)),
            env={
                **os.environ,
                **group,
                **threads,
                "RANK": str(rank),
                "GLOO_SOCKET_IFNAME": host.device,
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, host in enumerate(hosts)
    ]
    said = [process.communicate(timeout=3600)[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit("a process failed")
    return [json.loads(line) for line in said[0].splitlines() if line.startswith("{")]


def measured(hosts: tuple[Host, Host], rate: str, repeats: int) -> dict[str, Any]:
    limit(hosts, RATES[rate])
    steps, few = STEPS[rate]
    own = {"steps": steps, "epochs": 3, "timeout": 300}
    ways = {
        "partitions": ("partitions", own),
        "float16": ("partitions", {**own, "packing": "float16"}),
        "packed": ("partitions", {**own, "packing": {"bits": 8}}),
        "DDP": ("DDP", {"steps": few}),
        "pipelining": ("pipelining", {"steps": steps, "pieces": 4}),
    }
    found = run(hosts, {"network": "mlp", "batch": BATCH, "repeats": repeats, "ways": ways})
    row: dict[str, Any] = {
        "link": rate,
        "cut": next(each["at"] for each in found if each["way"] == "partitions"),
    }
    for way in ways:
        speeds = [
            each["examples a second"]
            for each in found
            if each["way"] == way and "examples a second" in each
        ]
        row[way] = median(speeds) if speeds else None
        if not speeds:
            print(next(each.get("failed") for each in found if each["way"] == way))
    row["partitions / DDP"] = row["partitions"] / row["DDP"]
    for way in ("partitions", "float16", "packed", "DDP"):
        row[f"{way}, MB a step"] = next(each["MB a step"] for each in found if each["way"] == way)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument(
        "--output", type=Path, default=Path("benchmarks/results/partitions_link.json")
    )
    args = parser.parse_args()
    rows = []
    with two_hosts("link") as hosts:
        if hosts is None:
            print("skipped: this needs root, ip and tc (iproute2), and network namespaces")
            return
        for rate in RATES:
            rows.append(measured(hosts, rate, args.repeats))
            print(rows[-1], flush=True)
    Evidence(
        claim="two partitions are at least twice as fast as data parallelism at 100 Mbit/s",
        holds=next(row for row in rows if row["link"] == AT)["partitions / DDP"] >= NEEDED,
        rows=tuple(rows),
        command="python benchmarks/partitions_link.py",
        settings=environment(threads=1, processes=2, batch=BATCH, repeats=args.repeats),
    ).save(args.output)


if __name__ == "__main__":
    main()
