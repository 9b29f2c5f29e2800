"""The protocol of the ranking shelf, fixed before any score was computed.

**Targets** (10).  ``digits``; ``mnist``; ``mnist`` turned by 90 degrees; ``mnist`` inverted;
``fashion-mnist``; its tops (T-shirt/top, Pullover, Coat, Shirt) and the other six classes;
``cifar10``; its six animals and its four vehicles.  500 labelled training examples are at hand, the
same number of each class; up to 2000 test examples are for the truths alone, in two random halves
whose agreement says how well the truth itself is known.  Nothing is ever scored on test examples.

**Parts** (40).  A small convolutional network (two 5×5 convolutions with batch norm, one hidden
layer) trained end to end on 10 000 images of ``mnist``, ``fashion-mnist`` or ``cifar10``: width 1
or 2, 1 or 6 epochs, 0 or 50 % of the labels drawn anew at random; cut at the hidden layer (24).
The three widest, longest and cleanest cut at the second convolution too (3).  Random weights (3),
pixels at 8×8 in grey (1).  EfficientNet-Lite0, 1 and 2 with their released weights at 64 pixels,
cut after stage 3, after stage 5 and before the head (9).  The training images of a source are never
among the labelled examples of a target: a part has not seen what it is scored on.

**Truth "frozen"**.  Test accuracy of a head on the part's features of the 500 examples:
multinomial logistic regression on standardised features, its penalty among four chosen by five-fold
cross-validation on the 500.  It is the primary truth, since no score is made of it.  Beside it the
ridge head of :func:`dovetail.ranking.expected.fit_head`, of which expected accuracy speaks.

**Truth "fine-tuned"**.  The part and a fresh linear head, all weights trained on the 500: SGD with
momentum 0.9, batch 50, one-cycle rate with peak 0.02, 15 epochs, mean of two seeds.  Of the
EfficientNets only the last cut of Lite0 and Lite1, with 4 epochs and one seed, for their cost
(Lite2 would take half as long again); pixels have nothing to tune.  Batch-norm statistics are
estimated anew on the 500 at the end, since a short training leaves those of the source.

Two things were settled by a trial first: batch norm in the small network, since without it some
sources did not learn (seen on held-out training images of ``cifar10``); and Lite2 left out of
fine-tuning, for the time a trial of it took.  All small networks of one shape share their initial
weights: there is one seed a source.

What came out of it, and was left as it is: the short schedule does not suffice for a fresh head on
averaged maps.  Fine-tuned, the three cuts at the second convolution lose 13 points against their
frozen truth, and the EfficientNets 5 to 12 on ``cifar10`` and its halves, where the parts cut at
the hidden layer gain 10 on average.  Over all parts the second truth therefore also measures how
fast a head learns; the rows "small networks" of the records, of one cut and one schedule, do not.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from dovetail.core.plain import dumps

__all__ = ["PROTOCOL", "Protocol", "Workplace"]


@dataclass(frozen=True)
class Protocol:
    """Every number that decides a truth."""

    labels: int = 500
    test_examples: int = 2000
    source_images: int = 10_000
    source_validation: int = 2000
    source_batch: int = 128
    source_lr: float = 0.1
    widths: tuple[int, ...] = (1, 2)
    epochs: tuple[int, ...] = (1, 6)
    noises: tuple[float, ...] = (0.0, 0.5)
    pixels: int = 8
    lite_size: int = 64
    lite_cuts: tuple[str, ...] = ("stage3", "stage5", "flatten")
    folds: int = 5
    strengths: tuple[float, ...] = (1e-3, 1e-2, 1e-1, 1.0)
    tuning_epochs: int = 15
    tuning_batch: int = 50
    tuning_lr: float = 0.02
    tuning_seeds: int = 2
    lites_tuned: tuple[str, ...] = ("efficientnet-lite0", "efficientnet-lite1")
    lite_tuning_epochs: int = 4
    lite_tuning_seeds: int = 1
    seed: int = 0

    @property
    def digest(self) -> str:
        """A short name that another protocol does not share."""
        return hashlib.sha256(dumps(self).encode()).hexdigest()[:8]


PROTOCOL = Protocol()


@dataclass(frozen=True)
class Workplace:
    """Where the data sets are and where results are kept, a folder for each protocol."""

    data: Path
    protocol: Protocol = PROTOCOL

    @property
    def folder(self) -> Path:
        """The folder of everything computed under this protocol."""
        return self.data / "ranking-shelf" / self.protocol.digest

    def file(self, room: str, *names: str) -> Path:
        """A file of a room, such as ``file("frozen", "digits", "pixels.json")``."""
        return self.folder.joinpath(room, *names)
