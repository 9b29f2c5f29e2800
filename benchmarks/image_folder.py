"""What does reading a folder of images cost beside decoding the same files with Pillow?

Both read every file in one process and take turns; the median of the ratios is reported.  Pillow's
side opens each file, converts it and turns it into an array, and keeps nothing.  Ours also finds
and sorts the files, checks size, colour and orientation, fills one tensor and makes the task.  The
pixels must come out the same, or the comparison would be between different work.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import dovetail as dt
from dovetail.core.evidence import Evidence, environment

LIMIT = 1.5
CLASSES = 10


def write(folder: Path, count: int, mode: str, ending: str) -> list[Path]:
    rng, files = np.random.default_rng(0), []
    ramp = np.linspace(0, 160, 32, dtype=np.uint8)
    for i in range(count):
        file = folder / f"class{i % CLASSES}" / f"{i:06d}.{ending}"
        file.parent.mkdir(parents=True, exist_ok=True)
        # a slope with noise: compresses about as well as a photograph does
        shape = (32, 32) if mode == "L" else (32, 32, 3)
        slope = ramp[:, None] if mode == "L" else ramp[:, None, None]
        Image.fromarray(rng.integers(0, 64, shape, dtype=np.uint8) + slope).save(file)
        files.append(file)
    return sorted(files)


def pillow(files: list[Path], mode: str) -> int:
    total = 0
    for file in files:
        with Image.open(file) as image:
            total += int(np.asarray(image.convert(mode))[0].sum())
    return total


def ours(folder: Path) -> int:
    return int(dt.load_task(folder).inputs[:, :, 0].to(torch.int64).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/image_folder.json"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    rows = []
    for mode, ending in (("RGB", "png"), ("L", "png"), ("RGB", "jpg")):
        times: dict[str, list[float]] = {"pillow": [], "ours": []}
        with tempfile.TemporaryDirectory() as name:
            files = write(Path(name), args.files, mode, ending)
            for turn in range(args.rounds + 1):
                began = time.perf_counter()
                theirs = pillow(files, mode)
                between = time.perf_counter()
                found = ours(Path(name))
                ended = time.perf_counter()
                assert theirs == found, "different pixels"
                if turn:  # the first turn warms up
                    times["pillow"].append(between - began)
                    times["ours"].append(ended - between)
        ratio = statistics.median(
            o / p for o, p in zip(times["ours"], times["pillow"], strict=True)
        )
        case = f"{args.files} files {mode} {ending}, 32x32"
        each = 1e6 * statistics.median(times["pillow"]) / args.files
        rows.append({"case": case, "ours / pillow": ratio, "pillow us a file": each})
        print(f"{case}: ours / pillow = {ratio:.3f} (limit {LIMIT})")
    evidence = Evidence(
        claim=f"reading a folder of small images costs at most {LIMIT} times decoding them",
        holds=max(row["ours / pillow"] for row in rows) <= LIMIT,
        rows=tuple(rows),
        command="python benchmarks/image_folder.py",
        settings=environment(threads=args.threads, rounds=args.rounds),
    )
    evidence.save(args.output)
    if not evidence.holds:
        raise SystemExit("reading a folder costs more than that")


if __name__ == "__main__":
    main()
