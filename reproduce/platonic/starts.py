"""A network in closed form as the start of a training by gradients."""

from __future__ import annotations

import time
from typing import Any

import torch
from linearized.keeping import Found
from torch import Tensor
from torch.nn.functional import cross_entropy

from dovetail.closed_form.layers import Layer
from dovetail.measure.evaluate import evaluate
from dovetail.parts.part import Part, build
from dovetail.tasks.task import Task
from dovetail.train.end_to_end import end_to_end

SHARPER = tuple(2.0 ** (step / 2) for step in range(13))
"""What the outputs are multiplied by, to be logits: least squares gives shares, from 0 to 1."""


def started(layers: list[Layer], x: Tensor, labels: Tensor, shape: tuple[int, ...]) -> Part:
    """The layers as an ``mlp``, with the sharpest outputs that the training rows bear.

    Sizes are spread evenly: each layer's weights get the same mean square times their inputs as
    the others' (a ReLU lets a factor through), so that one learning rate suits all.
    """
    said = x
    for layer in layers:
        said = layer(said)
    losses = {by: float(cross_entropy(by * said, labels)) for by in SHARPER}
    sharp = min(losses, key=lambda by: losses[by])
    sizes = [float(layer.weights.square().sum(0).mean().sqrt()) for layer in layers]
    even = (sharp * torch.tensor(sizes).prod().item()) ** (1 / len(layers))
    state: dict[str, Tensor] = {}
    before = 1.0
    for i, (layer, size) in enumerate(zip(layers, sizes, strict=True), start=1):
        last = i == len(layers)
        factor = sharp / before if last else even / size
        after = sharp if last else before * factor
        name = "head" if last else f"hidden{i}.linear"
        state[f"{name}.weight"] = (factor * layer.weights).T.float()
        state[f"{name}.bias"] = (after * layer.bias).float()
        before = after
    hidden = tuple(layer.weights.shape[1] for layer in layers[:-1])
    part = build("mlp", shape=shape, classes=said.shape[1], hidden=hidden)
    part.module.load_state_dict(state)
    return part


def trained(start: Part, task: Task, seed: int, **options: Any) -> Found:
    """Validation and test accuracy after a training."""
    began = time.process_time()
    part = end_to_end(start, task, seed=seed, show=False, **options).part
    seconds = time.process_time() - began
    found = {
        split: 100 * float(evaluate(part, task, split=split).accuracy)
        for split in ("validation", "test")
    }
    return {**found, "seconds": seconds}
