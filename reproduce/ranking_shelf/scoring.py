"""Every score of every part on every target, from the labelled examples alone."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from dovetail.core.errors import DovetailError
from dovetail.core.seeds import generator
from dovetail.ranking.scores import SCORES, score
from dovetail.ranking.task2vec import task_distance, task_embedding

from .features import Rows, labelled, source_probs
from .keeping import kept_tensors
from .parts import Candidate, Network, facts_of, front_of
from .protocol import Workplace
from .sources import SOURCES, source_task
from .targets import target_task

__all__ = ["STATIC", "budgeted", "score_names", "scores_of"]

STATIC = ("width", "weights", "source accuracy")
"""What is known of a part before any target, used as if it were a score."""


def score_names() -> tuple[str, ...]:
    """Every name that can be judged: the scores, the static baselines, Task2Vec, and chance."""
    return (*SCORES, *STATIC, "task2vec", "chance")


def scores_of(
    candidate: Candidate, target: str, place: Workplace, labels: int
) -> dict[str, float | None]:
    """Each score of a part on a target; ``None`` where it has no value for this part."""
    train = labelled(candidate, target, place)
    chosen = budgeted(train.labels, labels)
    rows = Rows(train.features[chosen], train.labels[chosen])
    probs = source_probs(candidate, target, place)
    said = None if probs is None else probs[chosen]
    return {name: _value(name, candidate, target, rows, said, place) for name in score_names()}


def budgeted(labels: Tensor, count: int, draw: int = 0) -> Tensor:
    """``count`` of the labelled examples, of each class the same number; other draws are disjoint.

    >>> budgeted(torch.tensor([0, 1] * 4), 4, draw=1).shape
    torch.Size([4])
    """
    if count >= len(labels):
        return torch.arange(len(labels))
    order = torch.randperm(len(labels), generator=generator(0, "budget"))
    classes = labels.unique().tolist()
    chosen = []
    for number, label in enumerate(classes):
        members = order[labels[order] == label]
        share = count // len(classes) + (number < count % len(classes))
        chosen.append(members[draw * share : (draw + 1) * share])
    return torch.cat(chosen).sort().values


def _value(
    name: str,
    candidate: Candidate,
    target: str,
    rows: Rows,
    probs: Tensor | None,
    place: Workplace,
) -> float | None:
    facts = facts_of(candidate, place)
    if name == "chance":
        return 0.0
    if name == "task2vec":
        return _nearness(candidate.network, target, place)
    if name in STATIC:
        known = facts["features" if name == "width" else name]
        return None if known is None else float(known)
    if SCORES[name].needs_probs and probs is None:
        return None
    try:
        value = score(
            rows.features,
            rows.labels,
            by=name,
            activation=facts["activation"],
            source_probs=probs if SCORES[name].needs_probs else None,
        )
    except DovetailError:  # the score is not defined here, such as al-neo after a relu
        return None
    return value if math.isfinite(value) else None


def _nearness(network: Network, target: str, place: Workplace) -> float | None:
    """Minus the Task2Vec distance from the source to the target; no weights, no source."""
    if network.source not in SOURCES or network.epochs == 0:
        return None
    return -task_distance(_embedded(network.source, place), _embedded(target, place, True))


@cache
def _embedded(name: str, place: Workplace, is_target: bool = False) -> Tensor:
    """A task in the space of one probe: the best network of the shelf that saw colours."""
    kind = "target" if is_target else "source"

    def embedding() -> dict[str, Tensor]:
        protocol = place.protocol
        width, epochs = max(protocol.widths), max(protocol.epochs)
        probe = Network(f"cifar10-w{width}-e{epochs}-n0", "cifar10", width, epochs)
        task = target_task(name, place) if is_target else source_task(name, place)
        front = front_of(Candidate(probe, "hidden"), place)
        return {"embedding": task_embedding(front, task, limit=protocol.labels)}

    return kept_tensors(place.file("task2vec", f"{kind}-{name}.safetensors"), embedding)[
        "embedding"
    ]
