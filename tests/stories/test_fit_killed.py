"""``dovetail fit``, killed at many moments and given again, ends with the same model."""

from __future__ import annotations

import json
import random
import subprocess
import time

import numpy as np
import pytest
from cli.console import COMMAND, environment, spawn
from forked import PATIENCE

KILLS = 20


def digest(folder):
    return json.loads((folder / "model" / "manifest.json").read_text())["digest"]


@pytest.mark.slow
def test_killed_twenty_times_it_gives_the_same_model(tmp_path):
    draw = np.random.default_rng(0)
    y = np.arange(600) % 3
    x = draw.integers(0, 200, (600, 8, 8), np.uint8) + (y * 20).astype(np.uint8)[:, None, None]
    words = ["fit", "bars.npz", "--no-released", "--minutes", "60", "--shelf", "shelf"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
        np.savez(folder / "bars.npz", x=x, y=y)
        made = spawn(
            "train",
            "bars.npz",
            "--set",
            "norm=batch",
            "--epochs",
            3,
            "--name",
            "net",
            folder=folder,
        )
        assert made.code == 0, made.err
    began = time.monotonic()
    assert spawn(*words, folder=whole).code == 0
    lasts = time.monotonic() - began
    moments, kills = random.Random(0), 0
    while kills < KILLS and not (killed / "model").exists():
        run = subprocess.Popen(
            [*COMMAND, *words],
            cwd=killed,
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            run.wait(timeout=moments.uniform(0.05, 0.6) * lasts)
        except subprocess.TimeoutExpired:
            run.kill()
            run.wait(timeout=PATIENCE)
            kills += 1
    assert kills, "it was never killed"
    if not (killed / "model").exists():
        said = spawn(*words, folder=killed)
        assert said.code == 0, said.err
    assert digest(killed) == digest(whole)
    assert (killed / "report.html").is_file()
