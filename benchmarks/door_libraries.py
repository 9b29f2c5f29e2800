"""What would it cost to let a library make the command line from signatures?

Each library is imported in a new process, and its processor time (user and system) is told in
units of a bare ``python -c pass`` of the same environment.  Rounds alternate between the two, and
the medians are compared.  The libraries are none of ours, so they live in an environment of their
own: ``python -m venv doors && doors/bin/pip install jsonargparse tyro cyclopts``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
from pathlib import Path

from dovetail.core.evidence import Evidence, environment

LIMIT = 3.0
LIBRARIES = ("argparse", "jsonargparse", "tyro", "cyclopts")


def seconds(python: str, code: str) -> float:
    """Processor time of a new process."""
    child = subprocess.Popen([python, "-c", code])
    used = os.wait4(child.pid, 0)[2]
    child.returncode = 0  # so that nobody waits for it again
    return used.ru_utime + used.ru_stime


def version(python: str, library: str) -> str:
    """Of an installed package; the standard library's have Python's."""
    code = f"from importlib.metadata import version; print(version({library!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    return done.stdout.strip() or "of Python"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", help="of the environment that has the libraries")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument(
        "--output", type=Path, default=Path("benchmarks/results/door_libraries.json")
    )
    args = parser.parse_args()
    rows = []
    for library in LIBRARIES:
        code = f"import {library}"
        seconds(args.python, code)  # compiles
        pairs = [
            (seconds(args.python, "pass"), seconds(args.python, code)) for _ in range(args.rounds)
        ]
        bare, full = (statistics.median(each) for each in zip(*pairs, strict=True))
        row = {"library": library, "version": version(args.python, library)}
        row |= {"times bare Python": full / bare, "ms": 1000 * full, "bare Python, ms": 1000 * bare}
        rows.append(row)
        print(f"{full / bare:6.2f}  import {library}", flush=True)
    others = [row["times bare Python"] for row in rows[1:]]
    Evidence(
        claim=f"argparse alone leaves room under {LIMIT:.0f} times the start of Python",
        holds=rows[0]["times bare Python"] < LIMIT < min(others),
        rows=tuple(rows),
        command="python benchmarks/door_libraries.py doors/bin/python",
        settings=environment(rounds=args.rounds),
    ).save(args.output)


if __name__ == "__main__":
    main()
