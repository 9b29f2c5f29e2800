"""The forty parts: what each is made of, and making it."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import nn

import dovetail as dt
from dovetail.measure.forward import preprocess_for
from dovetail.parts.contract import Preprocess

from .keeping import Facts, kept_facts
from .protocol import Protocol, Workplace
from .sources import SOURCES, source_task

__all__ = ["Candidate", "Network", "candidates", "facts_of", "front_of", "network_of"]

_LITES = {"efficientnet-lite0": 0.751, "efficientnet-lite1": 0.768, "efficientnet-lite2": 0.776}
"""Released networks and their published accuracy on ImageNet (at full size)."""


@dt.builder("shelf-net", takes=lambda channels, size: (channels, size, size))
def shelf_net(*, channels: int = 1, size: int = 28, width: int = 1) -> nn.Module:
    """Two convolutions of 8w and 16w channels, a hidden layer of 64w, ten classes."""
    side = (size // 2 - 4) // 2

    def conv(inputs: int, outputs: int, padding: int) -> nn.Module:
        return nn.Sequential(
            OrderedDict(
                conv=nn.Conv2d(inputs, outputs, 5, padding=padding),
                norm=nn.BatchNorm2d(outputs),
                act=nn.ReLU(),
                pool=nn.MaxPool2d(2),
            )
        )

    hidden = nn.Linear(16 * width * side * side, 64 * width)
    return nn.Sequential(
        OrderedDict(
            conv1=conv(channels, 8 * width, padding=2),
            conv2=conv(8 * width, 16 * width, padding=0),
            flatten=nn.Flatten(),
            hidden=nn.Sequential(OrderedDict(linear=hidden, act=nn.ReLU())),
            head=nn.Linear(64 * width, 10),
        )
    )


@dt.builder("pixels", takes=lambda size: (1, size, size))
def pixels(*, size: int = 8) -> nn.Module:
    """Nothing but the grey pixels, as a row."""
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), same=nn.Identity()))


@dataclass(frozen=True)
class Network:
    """A whole network: where its weights come from."""

    name: str
    source: str | None = None
    width: int = 1
    epochs: int = 0
    noise: float = 0.0

    @property
    def is_lite(self) -> bool:
        """Whether its weights are released ones."""
        return self.name in _LITES

    @property
    def is_pixels(self) -> bool:
        """Whether it has no weights at all."""
        return self.name == "pixels"


@dataclass(frozen=True)
class Candidate:
    """A part to be ranked: a network, cut at a point."""

    network: Network
    at: str

    @property
    def name(self) -> str:
        """Such as ``"mnist-w1-e6-n0@hidden"``."""
        return f"{self.network.name}@{self.at}"


def candidates(protocol: Protocol) -> tuple[Candidate, ...]:
    """All parts, in a fixed order, the quick ones first."""
    found = [Candidate(Network("pixels"), "flatten")]
    for source, width in (("mnist", 1), ("mnist", 2), ("cifar10", 2)):
        kind = "colour" if source == "cifar10" else "grey"
        found.append(Candidate(Network(f"random-{kind}-w{width}", source, width), "hidden"))
    grid = product(SOURCES, protocol.widths, protocol.epochs, protocol.noises)
    trained = [
        Network(f"{source}-w{width}-e{epochs}-n{noise:g}", source, width, epochs, noise)
        for source, width, epochs, noise in grid
    ]
    found += [Candidate(network, "hidden") for network in trained]
    best = (max(protocol.widths), max(protocol.epochs), min(protocol.noises))
    found += [
        Candidate(network, "conv2")
        for network in trained
        if (network.width, network.epochs, network.noise) == best
    ]
    lites = [Network(name, "imagenet") for name in _LITES]
    found += [Candidate(network, at) for network in lites for at in protocol.lite_cuts]
    return tuple(found)


def network_of(network: Network, place: Workplace) -> dt.Part:
    """The whole network with its head; a trained one is trained once and kept."""
    protocol = place.protocol
    if network.is_pixels:
        part = dt.build("pixels", size=protocol.pixels)
        how = Preprocess(size=(protocol.pixels, protocol.pixels), channels=1)
        return part.changed(contract=replace(part.contract, preprocess=how))
    if network.is_lite:
        part = dt.adopt(network.name, args={"size": protocol.lite_size})
    else:
        folder = place.file("parts", network.name)
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            _made(network, place).save_pretrained(folder)
        part = dt.from_pretrained(folder)
    part.module.to(memory_format=torch.channels_last)  # a third less time on a CPU
    return part


def front_of(candidate: Candidate, place: Workplace) -> dt.Part:
    """The part itself: the network up to the cut."""
    front, _ = dt.cut(network_of(candidate.network, place), at=candidate.at)
    return front


def facts_of(candidate: Candidate, place: Workplace) -> Facts:
    """What is known of a part before any target: the static baselines."""
    network = candidate.network

    def measured() -> Facts:
        whole = network_of(network, place)
        front = front_of(candidate, place)
        shape = front.contract.gives[0].shape or ()
        return {
            "source": network.source,
            "source accuracy": _source_accuracy(network, whole, place),
            "features": shape[0],
            "weights": sum(p.numel() for p in front.module.parameters()),
            "activation": front.contract.gives[0].activation,
        }

    return kept_facts(place.file("facts", f"{candidate.name}.json"), measured)


def _source_accuracy(network: Network, whole: dt.Part, place: Workplace) -> float | None:
    """On held-out training images of the source, never on its test images."""
    if network.is_pixels or network.source is None:
        return None
    if network.is_lite:
        return _LITES[network.name]
    return dt.evaluate(whole, source_task(network.source, place), split="validation").accuracy


def _made(network: Network, place: Workplace) -> dt.Part:
    protocol = place.protocol
    task = source_task(network.source or "", place, network.noise)
    channels, size, _ = task.input_shape
    net = dt.build(
        "shelf-net", channels=channels, size=size, width=network.width, seed=protocol.seed
    )
    if network.epochs == 0:
        how = preprocess_for(task)
        return net.changed(
            contract=replace(net.contract, preprocess=how, classes=task.classes),
        )
    began = time.perf_counter()
    fit = dt.train.end_to_end(
        net,
        task,
        epochs=network.epochs,
        batch_size=protocol.source_batch,
        lr=protocol.source_lr,
        seed=protocol.seed,
    )
    seconds = time.perf_counter() - began
    accuracy = fit.record.final["validation accuracy"]
    print(f"{network.name}: {accuracy:.3f} on its source ({seconds:.0f} s)", flush=True)
    return fit.part
