"""Load mutated files, one after the other, and print what was not refused in our words, as JSON.

Started as a script by ``test_mutations``, so that memory can be limited and measured.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import time
import traceback
import warnings
from pathlib import Path

import numpy as np
import torch
from hostile.liar import CONFIG, MANIFEST, PROBE, WEIGHTS, pack_folder, vouch
from hostile.measured import Work, limited
from hostile.mutating import json_file, tensor_file
from torch import nn

from dovetail.adapt import LinearizedClassifier, LinearizedRegressor
from dovetail.core.errors import DovetailError
from dovetail.parts.cutting import cut
from dovetail.parts.joining import join
from dovetail.parts.part import Part, build
from dovetail.shelf.entry import read_entry
from dovetail.train.loop import run_loop
from dovetail.train.options import Options
from dovetail.train.supervision import Batches

X = np.linspace(-2, 2, 8)[:, None]


# Honest folders, what may be changed in each, and how it is read ---------------------------------


def small(**args):
    return build("mlp", **{"shape": (1,), "hidden": (3,), "classes": 2, **args})


def plain_part(folder):
    small().save_pretrained(folder)


def joined_part(folder):
    front, back = cut(small(hidden=(3, 3), norm="batch"), at="hidden1")
    join(front, back, norms="batch").save_pretrained(folder)


def linearised_part(folder):
    regressor = LinearizedRegressor(small(classes=1), prior=1.0, noise=0.1)
    regressor.fit(X, X[:, 0]).to_part().save_pretrained(folder)


def packed_part(folder):
    plain_part(folder)
    pack_folder(folder)


def load_part(folder):
    read_entry("part", 1, folder)
    Part.from_pretrained(folder, verify=True)


def regressor(folder, **options):
    LinearizedRegressor(small(classes=1), prior=1.0, noise=0.1, **options).fit(X, X[:, 0]).save(
        folder
    )


def classifier(folder):
    LinearizedClassifier(small(), prior=1.0).fit(X, np.arange(8) % 2).save(folder)


def load_estimator(kind):
    def load(folder):
        estimator = kind.load(folder)
        estimator.predict(X[:2])

    return load


class Stopped(Exception):
    pass


def training(file, *, stop=False, **options):
    torch.manual_seed(0)
    net, x = nn.Linear(1, 1), torch.linspace(-1, 1, 8)[:, None]
    steps = [0]

    def step(batch):
        steps[0] += 1
        if stop and steps[0] > 3:
            raise Stopped
        return (net(batch[0]) - batch[1]).square().mean()

    asked = {"epochs": 2, "optimiser": "adam", "patience": 1, "checkpoint_seconds": 0, **options}
    run_loop(
        net,
        Batches(x, 3 * x, 4),
        step,
        Options(**asked, checkpoint=file),
        validate=lambda: {"validation loss": float(net.weight.detach())},
    )


def checkpoint(folder):
    folder.mkdir()
    try:
        training(folder / "c.safetensors", stop=True)
    except Stopped:
        return
    raise AssertionError("the training was over")


def resume(folder):
    training(folder / "c.safetensors")


PART = {CONFIG: json_file, MANIFEST: json_file, WEIGHTS: tensor_file, PROBE: tensor_file}
KEPT = {"estimator.json": json_file, "contents.json": json_file, "state.safetensors": tensor_file}
TARGETS = {
    "part": (plain_part, PART, load_part, 3),
    "joined part": (joined_part, PART, load_part, 2),
    "linearised part": (linearised_part, {CONFIG: json_file, WEIGHTS: tensor_file}, load_part, 1),
    "packed part": (packed_part, {CONFIG: json_file, MANIFEST: json_file}, load_part, 1),
    "checkpoint": (checkpoint, {"c.safetensors": tensor_file}, resume, 3),
    "regressor": (regressor, KEPT, load_estimator(LinearizedRegressor), 2),
    "regressor by cg": (
        lambda folder: regressor(folder, method="cg"),
        KEPT,
        load_estimator(LinearizedRegressor),
        1,
    ),
    "classifier": (classifier, KEPT, load_estimator(LinearizedClassifier), 2),
}
"""By name: who makes it, which files are changed and how, who reads it, and its share."""


def consistent(folder, name):
    """Let the hashes be right, or the changes would never be looked at."""
    if name in (CONFIG, WEIGHTS, PROBE):
        vouch(folder)
    elif name in ("estimator.json", "state.safetensors"):
        (folder / MANIFEST).write_bytes((folder / "contents.json").read_bytes())
        vouch(folder)
        (folder / MANIFEST).rename(folder / "contents.json")


def main(place, count, seed):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    honest = {}
    for name, (make, _, load, _) in TARGETS.items():
        honest[name] = place / name.replace(" ", "-")
        make(honest[name])
        twin = shutil.copytree(honest[name], place / "twin")
        load(twin)  # what is imported and cached on first use is not a mutation's doing
        shutil.rmtree(twin)
    limited()
    names = [name for name, (*_, share) in TARGETS.items() for _ in range(share)]
    strange, loaded, worst = [], 0, (0.0, "")
    work, most = Work(), 0
    for number in range(seed, seed + count):
        dice = random.Random(number)
        name = names[number % len(names)]
        _, files, load, _ = TARGETS[name]
        folder = shutil.copytree(honest[name], place / "mutated")
        file = dice.choice(list(files))
        (folder / file).write_bytes(files[file]((folder / file).read_bytes(), dice))
        consistent(folder, file)
        before, began = work.pieces, time.process_time()
        try:
            load(folder)
            loaded += 1
        except DovetailError:
            pass
        except Exception:
            strange.append([number, name, file, traceback.format_exc()[-1500:]])
        worst = max(worst, (time.process_time() - began, f"{number} {name} {file}"))
        most = max(most, work.pieces - before)
        shutil.rmtree(folder)
    found = {"strange": strange, "loaded": loaded, "worst": worst, "most pieces": most}
    json.dump(found | work.done(), sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
