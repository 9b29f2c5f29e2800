"""A training that is killed at random moments, and started again, ends with the same bytes."""

import hashlib
import multiprocessing
import os
import random
import signal
import subprocess
import time
from subprocess import DEVNULL

import pytest
from cli.console import COMMAND, environment, main_in, spawn

TRAIN = [
    *("train", "digits", "--net", "mlp", "--set", "hidden=[64]", "--set", "norm=batch"),
    *("--epochs", "35", "--batch-size", "16", "--augment", "shift:1", "--patience", "30"),
    *("--checkpoint-seconds", "0.02", "--name", "net", "--json"),
]


def sha256(folder):
    weights = folder / "shelf" / "net" / "1" / "model.safetensors"
    return hashlib.sha256(weights.read_bytes()).hexdigest()


def in_a_new_process(folder):
    process = subprocess.Popen([*COMMAND, *TRAIN], cwd=folder, env=environment(), stdout=DEVNULL)
    return process.pid, lambda: process.poll() is None, process.wait


def forked(folder):
    """From a server that has imported torch already: a real process, there at once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dovetail.flows.train", "sklearn.datasets"])
    process = context.Process(target=main_in, args=(str(folder), TRAIN))
    process.start()
    return process.pid, process.is_alive, process.join


def killed(folder, pause, start):
    """Start, wait until a checkpoint is written and a while longer, kill; whether it was alive."""
    before = [path.stat().st_mtime_ns for path in checkpoints(folder)]
    pid, alive, wait = start(folder)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and alive():
        now = [path.stat().st_mtime_ns for path in checkpoints(folder)]
        if now and now != before:
            break
        time.sleep(0.002)
    time.sleep(pause)
    was_alive = alive()
    if was_alive:
        os.kill(pid, signal.SIGKILL)
    wait()
    return was_alive


def checkpoints(folder):
    return [path for path in folder.glob(".dovetail-runs/*.safetensors") if path.exists()]


def story(tmp_path, kills, longest, start):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    expected = spawn(*TRAIN, folder=whole)
    assert expected.code == 0, expected.err
    draw = random.Random(8)
    died = sum(killed(broken, draw.uniform(0, longest), start) for _ in range(kills))
    assert died == kills  # else the training was over before it could be killed
    assert checkpoints(broken)
    finished = spawn(*TRAIN, folder=broken)
    assert finished.code == 0, finished.err
    assert finished.json["resumed"]
    assert sha256(broken) == sha256(whole)
    assert {**finished.json, "resumed": False} == expected.json


def test_five_kills(tmp_path):
    story(tmp_path, 5, 0.2, forked)


@pytest.mark.slow
def test_twenty_kills(tmp_path):
    story(tmp_path, 20, 0.02, in_a_new_process)
