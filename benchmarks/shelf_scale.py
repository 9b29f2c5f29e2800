"""Does a shelf of ten thousand parts still feel like a shelf of a thousand?

Parts of four weights are added one by one under different names.  Adding must cost the same at the
end as at the beginning (the median of the last thousand against that of the first), in the time of
the processor, which the disk of a busy machine does not blur, and by the clock.  Then the shelf is
listed in new processes: the entries alone, which must take under a second, and the whole command
``dovetail shelf ls --json``, beside what the same command takes on an empty shelf (that is, loading
Python); of several rounds the quickest counts, since others only ever slow it down.  One
disk write that must outlive a power cut is the yardstick for adding.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import dovetail as dt
from dovetail.core.evidence import Evidence, environment

LIST_LIMIT = 1.0
GROWTH_LIMIT = 1.25

LIST = """
import sys, time
import dovetail as dt
dt.Shelf  # loads its modules, which is not what is measured
began = time.perf_counter()
count = len(dt.Shelf(sys.argv[1]).entries())
print(count, time.perf_counter() - began)
"""


def fill(folder: Path, count: int) -> tuple[list[float], list[float]]:
    """Seconds of the processor and of the clock that each part took to add."""
    shelf, busy, clock = dt.Shelf(folder), [], []
    for i in range(count):
        part = dt.build("mlp", shape=(1,), hidden=(), classes=2, seed=i)
        began = time.process_time(), time.perf_counter()
        shelf.add(part, f"net-{i:05d}")
        busy.append(time.process_time() - began[0])
        clock.append(time.perf_counter() - began[1])
    return busy, clock


def one_sync(folder: Path) -> float:
    """Seconds to write a small file so that it outlives a power cut."""
    times = []
    for i in range(30):
        began = time.perf_counter()
        with open(folder / f"{i}.bin", "wb") as file:
            file.write(bytes(200))
            file.flush()
            os.fsync(file.fileno())
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def entries_seconds(folder: Path, count: int, rounds: int) -> float:
    times = []
    for _ in range(rounds):
        told = subprocess.run(
            [sys.executable, "-c", LIST, str(folder)], check=True, capture_output=True, text=True
        ).stdout.split()
        assert int(told[0]) == count
        times.append(float(told[1]))
    return min(times)


def command_seconds(folder: Path, rounds: int) -> float:
    code = "import sys; from dovetail.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "shelf", "ls", "--json", "--shelf", str(folder)]
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/shelf_scale.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    end = max(1, min(1000, args.parts // 2))

    with tempfile.TemporaryDirectory() as place:
        folder, empty = Path(place) / "shelf", Path(place) / "empty"
        empty.mkdir()
        sync = one_sync(Path(place))
        busy, clock = fill(folder, args.parts)
        first = entries_seconds(folder, args.parts, 1)  # nobody has made an index yet
        listed = entries_seconds(folder, args.parts, args.rounds)
        command = command_seconds(folder, args.rounds)
        nothing = command_seconds(empty, args.rounds)
    growth = statistics.median(busy[-end:]) / statistics.median(busy[:end])
    by_clock = statistics.median(clock[-end:]) / statistics.median(clock[:end])
    rows = (
        {
            "what": f"adding: last {end} / first {end}, processor (limit {GROWTH_LIMIT})",
            "value": growth,
        },
        {"what": f"adding: last {end} / first {end}, clock", "value": by_clock},
        {"what": "adding one, ms of processor", "value": 1000 * statistics.median(busy)},
        {"what": "adding one, ms by the clock", "value": 1000 * statistics.median(clock)},
        {"what": "one file synced to this disk, ms", "value": 1000 * sync},
        {"what": f"entries, with index, s (limit {LIST_LIMIT})", "value": listed},
        {"what": "entries, index made anew, s", "value": first},
        {"what": "dovetail shelf ls --json, s", "value": command},
        {"what": "the same on an empty shelf, s", "value": nothing},
    )
    for row in rows:
        print(f"{row['what']}: {row['value']:.3f}")
    evidence = Evidence(
        claim=f"{args.parts} parts are added in linear processor time and listed in under a second "
        "from Python",
        holds=growth <= GROWTH_LIMIT and listed < LIST_LIMIT,
        rows=rows,
        command="python benchmarks/shelf_scale.py",
        settings=environment(threads=1, parts=args.parts, rounds=args.rounds),
    )
    evidence.save(args.output)
    if not evidence.holds:
        raise SystemExit("a large shelf is slower than that")


if __name__ == "__main__":
    main()
