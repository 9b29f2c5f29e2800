"""Is what needs no network answered about as fast as Python starts?

Help, a list, a misspelt task: each command is a new process, and its processor time (user and
system) is told in units of a bare ``python -c pass`` of the same environment.  Rounds alternate
between the two, and the medians are compared, so that a busy machine slows both.  The byte code is
compiled beforehand, as it is in an installed package.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import dovetail as dt
from dovetail.core.evidence import Evidence, environment

LIMIT = 3.0
COMMANDS = (
    *("--version", "--help", "train --help", "shelf ls --help", "fly", "train", "cut net --fly"),
    *("shelf ls", "shelf ls --json", "shelf ls --shelf empty", "shelf ls --shelf nowhere"),
    *("shelf show net1", "shelf show nosuch", "data ls --data nowhere", "cut nosuch"),
    *(
        "train digts",
        "train 'digits~invertd'",
        "train digits --epochs 0",
        "train digits --how magic",
    ),
    *("rank nosuchtask", "adapt net1 digts", "predict net1 nosuch.npy", "pack nosuch"),
    *("join net1 nosuch", "report nosuch.json"),
)


def furnish(folder: Path) -> None:
    """A shelf of twelve parts, and an empty one."""
    shelf = dt.Shelf(folder / "shelf")
    for seed in range(4):
        net = dt.build("lenet5", size=8, classes=3, seed=seed)
        front, back = dt.cut(net, at="conv2")
        for name, part in {"": net, ".front": front, ".back": back}.items():
            shelf.add(part, f"net{seed}{name}")
    (folder / "empty").mkdir()


def seconds(words: list[str], folder: Path, settings: dict[str, str]) -> float:
    """Processor time of a new process."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    child = subprocess.Popen(words, cwd=folder, env=settings, **quiet)
    used = os.wait4(child.pid, 0)[2]
    child.returncode = 0  # so that nobody waits for it again
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/cold_start.json"))
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        furnish(folder)
        settings = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
        settings |= {"PYTHONPATH": str(Path(dt.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
        settings.pop("PYTHONDONTWRITEBYTECODE", None)
        bare = [sys.executable, "-c", "pass"]
        rows = []
        for command in COMMANDS:
            words = [sys.executable, "-m", "dovetail", *shlex.split(command)]
            seconds(words, folder, settings)  # compiles, and lets the shelf remember its list
            pairs = [
                (seconds(bare, folder, settings), seconds(words, folder, settings))
                for _ in range(args.rounds)
            ]
            empty, full = (statistics.median(each) for each in zip(*pairs, strict=True))
            row = {"command": f"dovetail {command}", "times bare Python": full / empty}
            rows.append({**row, "ms": 1000 * full, "bare Python, ms": 1000 * empty})
            print(f"{full / empty:6.2f}  dovetail {command}", flush=True)
    worst = max(row["times bare Python"] for row in rows)
    evidence = Evidence(
        claim=f"what needs no network is answered in under {LIMIT:.0f} times the start of Python",
        holds=worst < LIMIT,
        rows=tuple(rows),
        command="python benchmarks/cold_start.py",
        settings=environment(rounds=args.rounds),
    )
    evidence.save(args.output)
    if not evidence.holds:
        raise SystemExit(f"the slowest takes {worst:.2f} times the start of Python")


if __name__ == "__main__":
    main()
