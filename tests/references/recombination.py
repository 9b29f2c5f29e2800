"""Recombining, read aloud: layer after layer, batch norm by its formula, image by image."""

from __future__ import annotations

import torch
from torch import nn


def layers_of(module):
    """The layers of nested chains, in order."""
    if isinstance(module, nn.Sequential):
        return [layer for child in module for layer in layers_of(child)]
    return [module]


def run(layers, x, statistics):
    """Each layer in turn; ``statistics(layer, x)`` says what a batch norm subtracts and divides."""
    for layer in layers:
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            mean, variance = statistics(layer, x)
            shape = (1, -1) + (1,) * (x.ndim - 2)
            x = (x - mean.reshape(shape)) / (variance.reshape(shape) + layer.eps).sqrt()
            x = x * layer.weight.reshape(shape) + layer.bias.reshape(shape)
        else:
            x = layer(x)
    return x


def stored(layer, x):
    return layer.running_mean, layer.running_var


def of_batch(layer, x):
    values = x.transpose(0, 1).flatten(1)
    return values.mean(1), values.var(1, unbiased=False)


def recalibrated(layers, batches):
    """The plain average over batches of their means and unbiased variances, a layer at a time."""
    seen = {id(layer): [] for layer in layers}

    def note(layer, x):
        values = x.transpose(0, 1).flatten(1)
        seen[id(layer)].append((values.mean(1), values.var(1, unbiased=True)))
        return of_batch(layer, x)

    for x in batches:
        run(layers, x, note)

    def look_up(layer, x):
        means, variances = zip(*seen[id(layer)], strict=True)
        return torch.stack(means).mean(0), torch.stack(variances).mean(0)

    return look_up


@torch.no_grad()
def accuracies(front, head, batches, names, statistics):
    """Masked and unmasked accuracy on ``(inputs, class names)`` batches of common classes.

    ``names`` are the head's classes; the common ones are those that occur.
    """
    layers = [*layers_of(front), *layers_of(head)]
    common = {name for _, labels in batches for name in labels}
    masked = unmasked = count = 0
    for x, labels in batches:
        for outputs, label in zip(run(layers, x, statistics).tolist(), labels, strict=True):
            value = dict(zip(names, outputs, strict=True))
            masked += max(common, key=value.__getitem__) == label
            unmasked += max(names, key=value.__getitem__) == label
            count += 1
    return masked / count, unmasked / count
