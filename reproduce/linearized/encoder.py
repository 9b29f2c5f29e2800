"""An encoder that never saw a label, and its outputs projected to one number a class."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import dovetail as dt
from dovetail.core.seeds import generator, seeded
from dovetail.parts.norms import recalibrate
from linearized.keeping import trained_once

LAYERS = 5
NORMS = 5000  # upright images from which batch norms take their statistics


@dataclass(frozen=True)
class Protocol:
    """One scale of the experiment; ``None`` takes all images of a split."""

    scale: str
    unlabelled: int | None
    labels: int
    validation: int | None
    test: int | None
    pixels: int
    width: int
    epochs: int
    steps: int
    batch_size: int = 128
    draws: int = 16


TINY = Protocol("tiny", 200, 100, 50, 50, 8, 4, 1, 3, 32, 2)
SMALL = Protocol("small", 10_000, 2000, 500, 2000, 16, 16, 8, 200, 128, 12)
PAPER = Protocol("paper", None, 45_000, None, None, 32, 64, 100, 10_000)


def encoder(width: int, seed: int) -> nn.Sequential:
    """Five convolutions of 1, 2, 3, 4 and 4 times ``width`` maps; the second and fourth halve."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    inputs = 3
    with seeded(seed, "encoder"):
        for i, (factor, stride) in enumerate(((1, 1), (2, 2), (3, 1), (4, 2), (4, 1)), start=1):
            maps = width * factor
            layers[f"conv{i}"] = nn.Conv2d(inputs, maps, 3, stride=stride, padding=1, bias=False)
            layers[f"norm{i}"] = nn.BatchNorm2d(maps)
            layers[f"act{i}"] = nn.ReLU()
            inputs = maps
        layers["pool"] = nn.AdaptiveAvgPool2d(2)
        layers["flatten"] = nn.Flatten()
        layers["head"] = nn.Linear(4 * inputs, 10)
    return nn.Sequential(layers)


def pretrained(
    task: dt.Task, upright: Tensor, seed: int, protocol: Protocol, kept: Path
) -> nn.Sequential:
    """The encoder after it learnt to tell rotations, with the norms of upright images, no head."""
    net = encoder(protocol.width, seed)

    def train() -> nn.Module:
        found = dt.train.self_supervised(
            net,
            task,
            by="rotation",
            at="flatten",
            epochs=protocol.epochs,
            batch_size=protocol.batch_size,
            seed=seed,
            show=False,
        )
        print("rotations", seed, found.record.final, flush=True)
        return recalibrate(found.part.module, upright[:NORMS].split(500))

    trained = trained_once(kept, f"{protocol.scale} encoder {seed}", net, train)
    assert isinstance(trained, nn.Sequential)
    return trained[:-1]


def projected(features: nn.Sequential, seed: int) -> nn.Sequential:
    """The encoder and a fixed random projection of what it gives to ten numbers."""
    width = _width(features)
    projection = nn.Linear(width, 10, bias=False)
    with torch.no_grad():
        draw = torch.randn(10, width, generator=generator(seed, "projection"))
        projection.weight.copy_(draw / width**0.5)
    named = OrderedDict([*features.named_children(), ("projection", projection)])
    return nn.Sequential(named)


def top(layers: int) -> list[str]:
    """Patterns of the parameters of the last so many layers."""
    return [f"{kind}{LAYERS - i}" for i in range(layers) for kind in ("conv", "norm")]


def _width(features: nn.Sequential) -> int:
    last = features.get_submodule(f"conv{LAYERS}")
    assert isinstance(last, nn.Conv2d)
    return 4 * last.out_channels
