"""Both truths of a part on a target: a head on frozen features, and everything fine-tuned."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

import dovetail as dt
from dovetail.core.seeds import derived_seed, generator, seeded
from dovetail.measure.forward import outputs_of, prepare
from dovetail.parts.contract import Contract, Port
from dovetail.parts.norms import recalibrate
from dovetail.parts.part import Part

from .features import Rows, labelled, unseen
from .keeping import Facts, kept_facts
from .parts import Candidate, front_of
from .protocol import Workplace
from .targets import halves, target_task

__all__ = ["can_be_tuned", "fine_tuned", "fine_tuned_once", "frozen", "tuning_seeds"]


def frozen(candidate: Candidate, target: str, place: Workplace) -> Facts:
    """Test accuracy of a logistic head on frozen features, whole and in two halves."""

    def found() -> Facts:
        train, test = labelled(candidate, target, place), unseen(candidate, target, place)
        began = time.process_time()
        head, strength = logistic_head(train, place)
        right = torch.from_numpy(head.predict(test.features.double().numpy())) == test.labels
        seconds = time.process_time() - began
        return _accuracies(right, place) | {"strength": strength, "seconds": seconds}

    return kept_facts(place.file("frozen", target, f"{candidate.name}.json"), found)


def can_be_tuned(candidate: Candidate, place: Workplace) -> bool:
    """Whether the second truth has it: no pixels, and some released ones at the last cut."""
    network, protocol = candidate.network, place.protocol
    last = candidate.at == protocol.lite_cuts[-1] and network.name in protocol.lites_tuned
    return last if network.is_lite else not network.is_pixels


def tuning_seeds(candidate: Candidate, place: Workplace) -> range:
    """The seeds of the second truth."""
    protocol = place.protocol
    is_lite = candidate.network.is_lite
    return range(protocol.lite_tuning_seeds if is_lite else protocol.tuning_seeds)


def fine_tuned_once(candidate: Candidate, target: str, place: Workplace, seed: int) -> Facts:
    """Test accuracy with all weights trained from one seed, whole and in two halves."""

    def found() -> Facts:
        protocol, is_lite = place.protocol, candidate.network.is_lite
        task, front = target_task(target, place), front_of(candidate, place)
        inputs, labels = task.subset("test")
        began = time.process_time()
        epochs = protocol.lite_tuning_epochs if is_lite else protocol.tuning_epochs
        part = tuned(front, task, place, epochs=epochs, seed=seed)
        said = outputs_of(part, inputs, batch_size=100).argmax(1)
        return _accuracies(said == labels, place) | {"seconds": time.process_time() - began}

    file = place.file("fine-tuned", target, f"{candidate.name}-{seed}.json")
    return kept_facts(file, found)


def fine_tuned(candidate: Candidate, target: str, place: Workplace) -> Facts:
    """The mean over the seeds."""
    rows = [
        fine_tuned_once(candidate, target, place, seed) for seed in tuning_seeds(candidate, place)
    ]
    mean = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
    return mean | {"seeds": [row["accuracy"] for row in rows]}


def logistic_head(train: Rows, place: Workplace) -> tuple[Any, float]:
    """Multinomial logistic regression on standardised features, and the chosen strength."""
    protocol = place.protocol
    rows, labels = train.features.double().numpy(), train.labels.numpy()
    folds = StratifiedKFold(protocol.folds, shuffle=True, random_state=protocol.seed)

    def head(strength: float) -> Any:
        # 500 steps: where the classes are separable the likelihood rises for ever, accuracy not
        return make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=500))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = {
            strength: float(cross_val_score(head(strength), rows, labels, cv=folds).mean())
            for strength in protocol.strengths
        }
        best = max(found, key=lambda strength: found[strength])
        return head(best).fit(rows, labels), best


def tuned(front: Part, task: dt.Task, place: Workplace, *, epochs: int, seed: int) -> Part:
    """The part with a fresh linear head, all of it trained on the labelled examples."""
    protocol = place.protocol
    port = front.contract.gives[0]
    assert port.shape is not None  # every candidate is cut from a network with known shapes
    with seeded(protocol.seed, "head", seed):
        head = nn.Linear(port.shape[0], task.outputs)
    pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten()] if len(port.shape) > 1 else []
    start = Part(
        nn.Sequential(front.module, *pool, head),
        Contract(
            takes=front.contract.takes,
            gives=(Port((task.outputs,)),),
            preprocess=front.contract.preprocess,
        ),
    )
    fit = dt.train.end_to_end(
        start,
        task,
        epochs=epochs,
        batch_size=protocol.tuning_batch,
        lr=protocol.tuning_lr,
        seed=derived_seed(protocol.seed, "tuning", seed) % 2**31,
    )
    return _with_own_norms(fit.part, task, protocol.tuning_batch)


def _with_own_norms(part: Part, task: dt.Task, batch: int) -> Part:
    inputs, _ = task.subset("train")
    order = torch.randperm(len(inputs), generator=generator(0, "norms"))
    pieces = [prepare(inputs[rows], part.contract) for rows in order.split(batch)]
    return part.changed(module=recalibrate(part.module, pieces))


def _accuracies(right: Tensor, place: Workplace) -> dict[str, float]:
    mean: Callable[[Tensor], float] = lambda rows: float(rows.double().mean())  # noqa: E731
    first, second = halves(len(right), place)
    return {
        "accuracy": mean(right),
        "first half": mean(right[first]),
        "second half": mean(right[second]),
    }
