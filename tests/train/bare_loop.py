"""The training loop as anyone would write it in PyTorch, to compare ours with."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F

from dovetail.core.seeds import derived_seed
from dovetail.measure.forward import prepare, preprocess_for
from dovetail.train.supervision import Batches


def cosine_between(start, end, done):
    """From ``start`` to ``end`` along half a cosine."""
    return end + (start - end) * (1 + math.cos(math.pi * done)) / 2


def rate(schedule, step, steps):
    """The factor on the learning rate, from the published descriptions of the schedules."""
    done = step / steps
    if schedule == "constant":
        return 1.0
    if schedule == "cosine":
        return cosine_between(1.0, 0.0, done)
    if done < 0.3:
        return cosine_between(1 / 25, 1.0, done / 0.3)
    return cosine_between(1.0, 1 / 25 / 1e4, (done - 0.3) / 0.7)


def train_barely(
    model,
    task,
    make_optimiser,
    *,
    epochs,
    batch_size=64,
    seed=0,
    schedule=None,
    loss=None,
    clip=None,
):
    """A trained copy of the module, and the mean loss of each epoch.

    ``schedule`` names one of ours; ``None`` leaves the rate to whoever made the optimiser.
    """
    contract = model.contract.__class__(preprocess=preprocess_for(task))
    inputs, targets = task.subset("train")
    batches = Batches(prepare(inputs, contract), targets, batch_size, seed=seed)
    net = copy.deepcopy(model.module)
    net.train()
    optimiser = make_optimiser(net.parameters())
    peak = optimiser.param_groups[0]["lr"]
    losses = []
    for epoch in range(epochs):
        torch.manual_seed(derived_seed(seed, "epoch", epoch))
        total = 0.0
        for i, (x, y) in enumerate(batches.epoch(epoch)):
            if schedule is not None:
                factor = rate(schedule, epoch * len(batches) + i, epochs * len(batches))
                optimiser.param_groups[0]["lr"] = peak * factor
            value = (loss or F.cross_entropy)(net(x), y)
            optimiser.zero_grad()
            value.backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimiser.step()
            total += value.item()
        losses.append(total / len(batches))
    return net, losses
