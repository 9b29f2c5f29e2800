"""A part's features on a target, kept: the labelled examples apart from the truth's."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

import dovetail as dt
from dovetail.measure.features import features_along
from dovetail.tasks.splits import Split

from .keeping import kept_tensors
from .parts import Candidate, candidates, network_of
from .protocol import Workplace
from .targets import target_task

__all__ = ["Rows", "labelled", "source_probs", "unseen"]


@dataclass(frozen=True)
class Rows:
    """Features ``[n, d]`` in float32 and labels ``[n]``."""

    features: Tensor
    labels: Tensor


def labelled(candidate: Candidate, target: str, place: Workplace) -> Rows:
    """The examples that a score may see."""
    return _rows(candidate, target, place, "train")


def unseen(candidate: Candidate, target: str, place: Workplace) -> Rows:
    """The examples that only a truth may see."""
    return _rows(candidate, target, place, "test")


def source_probs(candidate: Candidate, target: str, place: Workplace) -> Tensor | None:
    """What the whole source network says of the labelled examples ``[n, source classes]``."""
    network = candidate.network
    if network.is_pixels:
        return None

    def said() -> dict[str, Tensor]:
        inputs, _ = target_task(target, place).subset("train")
        whole = network_of(network, place)
        return {"probabilities": dt.predict(whole, inputs, batch_size=100).probabilities}

    file = place.file("source-probs", target, f"{network.name}.safetensors")
    return kept_tensors(file, said)["probabilities"]


def _rows(candidate: Candidate, target: str, place: Workplace, split: Split) -> Rows:
    """One pass of a network gives the features at all its cuts."""
    network = candidate.network
    cuts = [c.at for c in candidates(place.protocol) if c.network == network]

    def made() -> dict[str, Tensor]:
        whole, task = network_of(network, place), target_task(target, place)
        order = [str(point) for point in dt.cut_points(whole) if str(point) in cuts]
        found = features_along(whole, order, task, split=split, batch_size=100)
        _, labels = task.subset(split)
        return {"labels": labels} | {at: rows.values for at, rows in found.items()}

    kept = kept_tensors(place.file(split, target, f"{network.name}.safetensors"), made)
    return Rows(kept[candidate.at], kept["labels"])
