"""A training that is killed at any moment, and started again, ends with the same bytes."""

import hashlib
import os
import random
import signal
import subprocess
import time
from subprocess import DEVNULL

import pytest
import torch
from cli.console import COMMAND, call, environment
from forked import PATIENCE, start
from torch.optim.optimizer import register_optimizer_step_post_hook

from dovetail.cli.main import main

TRAIN = [
    *("train", "digits", "--net", "mlp", "--set", "hidden=[64]", "--set", "norm=batch"),
    *("--batch-size", "16", "--augment", "shift:1", "--patience", "30"),
    *("--checkpoint-seconds", "0.02", "--name", "net", "--json"),
]

BY_LAYERS = [
    *("train", "digits", "--how", "layerwise", "--net", "mlp", "--set", "hidden=[32,32,16]"),
    *("--set", "norm=batch", "--batch-size", "16", "--augment", "shift:1"),
    *("--memory-budget", "0.9", "--forward-dropout", "0.3", "--backward-dropout", "0.3"),
    *("--checkpoint-seconds", "0.02", "--name", "net", "--json"),
]


def sha256(folder):
    weights = folder / "shelf" / "net" / "1" / "model.safetensors"
    return hashlib.sha256(weights.read_bytes()).hexdigest()


def checkpoints(folder):
    return [path for path in folder.glob(".dovetail-runs/*.safetensors") if path.exists()]


def written(folder):
    """When; a checkpoint may be replaced while one looks."""
    try:
        return [path.stat().st_mtime_ns for path in checkpoints(folder)]
    except FileNotFoundError:
        return written(folder)


def train_and_die(folder, words, threads, steps):
    """Train in that folder; so many steps after the next checkpoint, be killed."""
    before, left = written(folder), [steps]

    def count(*_):
        if written(folder) != before:
            left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    torch.set_num_threads(threads)  # another count gives other last digits
    register_optimizer_step_post_hook(count)
    os.chdir(folder)
    main(words)


def killed_after_steps(folder, words, draw):
    """In a process that was forked for it."""
    args = (folder, words, torch.get_num_threads(), draw.randrange(25))
    process = start(train_and_die, *args)
    process.join(PATIENCE)
    return process.exitcode == -signal.SIGKILL


def killed_after_a_while(folder, words, draw):
    """In a process of its own, from outside, at whatever it was doing."""
    before = written(folder)
    process = subprocess.Popen([*COMMAND, *words], cwd=folder, env=environment(), stdout=DEVNULL)
    while written(folder) == before and process.poll() is None:
        time.sleep(0.002)
    time.sleep(draw.uniform(0, 0.02))
    process.kill()
    return process.wait(PATIENCE) == -signal.SIGKILL


def story(tmp_path, capsys, monkeypatch, kills, epochs, killed, words=TRAIN):
    words = [*words, "--epochs", str(epochs)]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    monkeypatch.chdir(whole)
    expected = call(capsys, *words)
    assert expected.code == 0, expected.err
    draw = random.Random(8)
    died = sum(killed(broken, words, draw) for _ in range(kills))
    assert died == kills  # else the training was over before it could be killed
    assert checkpoints(broken)
    monkeypatch.chdir(broken)
    finished = call(capsys, *words)
    assert finished.code == 0, finished.err
    assert finished.json["resumed"]
    assert sha256(broken) == sha256(whole)
    assert {**finished.json, "resumed": False} == expected.json


def test_two_kills(tmp_path, capsys, monkeypatch):
    story(tmp_path, capsys, monkeypatch, 2, 6, killed_after_steps)


def test_two_kills_layer_by_layer(tmp_path, capsys, monkeypatch):
    story(tmp_path, capsys, monkeypatch, 2, 3, killed_after_steps, BY_LAYERS)


@pytest.mark.slow
def test_twenty_kills(tmp_path, capsys, monkeypatch):
    story(tmp_path, capsys, monkeypatch, 20, 100, killed_after_a_while)


@pytest.mark.slow
def test_twenty_kills_layer_by_layer(tmp_path, capsys, monkeypatch):
    story(tmp_path, capsys, monkeypatch, 20, 40, killed_after_a_while, BY_LAYERS)
