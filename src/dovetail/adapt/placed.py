"""A classifier that is linearised around a network with a head for the classes.

Its mean is what the network says.  The posterior is Laplace's there (:mod:`dovetail.adapt.around`),
and is computed when it is first asked for: predictions do without its Gram matrices.
"""

from __future__ import annotations

import math
import time
import warnings
from functools import cached_property
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from dovetail.adapt.around import HEAD, Placed, posterior_at
from dovetail.adapt.linearized import LinearizedEstimator
from dovetail.adapt.networks import prepared_by
from dovetail.adapt.plan import Plan
from dovetail.adapt.priors import Chosen
from dovetail.parts.heads import with_temperature
from dovetail.parts.part import Part

LOST = 0.95
"""Labels held out that cost more than this share of guessing are hardly told apart; nor are labels
whose probabilities have a larger share of the entropy of guessing."""

LOOKED_AT = 64
"""So many labels are looked at for that."""

UNSURE = "of the labels fitted to"
"""How the warning begins that probabilities are near uniform."""


class Placeable(LinearizedEstimator):
    """What a fitted classifier is, once its network is placed; ``around_`` says where."""

    around_: str
    chosen_: str
    classes_: np.ndarray[Any, Any]
    labels_: Tensor
    means_: Tensor
    temperature_: float
    mean_temperature_: float

    def _settle_placed(self, placed: Placed, raw: Tensor, codes: Tensor, began: float) -> None:
        """The mean is the network's own; the posterior is computed when it is asked for."""
        guarded = placed.guarded
        self.labels_, self.mean_ = codes, "network"
        self.temperature_ = self.mean_temperature_ = 1.0
        self._prepare = prepared_by(placed.part)
        self._take(placed.part, len(self.classes_), None, [f"body.{name}" for name in placed.moved])
        x = self._prepare(raw)
        self._example = x[:1]
        self._placed_at = (x, placed.moved)
        self.follows_network_, self.rows_ = True, len(codes) * len(self.classes_)
        self.direction_ = torch.zeros(self.linear_.size, dtype=torch.float64)
        self.constant_ = torch.zeros(len(self.classes_), dtype=torch.float64)
        self.chosen_ = "moved" if guarded.chosen == "fine-tuned" else guarded.chosen
        self.around_ = "again" if guarded.chosen == "fine-tuned" else "head"
        self.diagnostics_ = {
            "method": "laplace",
            "rows": self.rows_,
            "chosen": self.chosen_,
            **guarded.diagnostics,
            "seconds": time.perf_counter() - began,
        }

    @cached_property
    def posterior_(self) -> Any:
        """Laplace's posterior at the network; its Gram matrices are first needed for spreads."""
        if not hasattr(self, "_placed_at"):
            raise AttributeError("posterior_")
        x, moved = self._placed_at
        moved = {f"body.{name}": tensor for name, tensor in moved.items()}
        head = [name for name in moved if name.startswith(f"body.{HEAD}")]
        rest = [name for name in moved if name not in head]
        logits = self.linear_.outputs(x)
        posterior = posterior_at(
            self.linear_.features(x), logits, self.labels_, moved, [head, *([rest] if rest else [])]
        )
        self.means_ = logits
        return posterior

    @cached_property
    def plan_(self) -> Plan:
        """What the posterior takes."""
        return self._planned(self._example, len(self.labels_))

    @cached_property
    def prior_(self) -> Chosen:
        """The prior's variances, by parameter."""
        return Chosen(dict(self.posterior_.scales))

    @cached_property
    def scales_(self) -> dict[str, float]:
        """The prior's variances, by layer."""
        return self.prior_.named(self.linear_)

    @cached_property
    def log_evidence_(self) -> float | None:
        """Of the labels under the prior; None where only the most probable weights are known."""
        evidence: float = self.posterior_.log_evidence
        return evidence

    @cached_property
    def _scales(self) -> dict[str, float]:
        return self.prior_.scales

    def _logits_at_start(self, raw: Tensor) -> Tensor:
        return self._posterior_mean(self._prepare(raw[:LOOKED_AT]))

    def _warn_if_lost(self, held_out: float | None, logits: Tensor) -> None:
        """Where labels held out cost what guessing does, or the ``logits`` of labels fitted to say
        nothing of them."""
        guessing = math.log(len(self.classes_))
        chances = logits.double().softmax(1)
        entropy = float(torch.special.entr(chances).sum(1).mean())
        said = ""
        if held_out is not None and held_out > LOST * guessing:
            said = f"labels held out cost {held_out:.2f} nats each, guessing {guessing:.2f}: these "
            said += "features hardly tell the classes apart. Give more labels, or another network"
            said += " or cut point (at=)."
        elif entropy > LOST * guessing:
            said = f"{UNSURE} even, the most probable class has {float(chances.amax(1).mean()):.1%}"
            said += f" on average, by guessing {1 / len(self.classes_):.1%}: this model says next "
            said += "to nothing. Leave around= and prior= to their defaults, or give more labels, "
            said += "another network or cut point (at=)."
        if said:
            warnings.warn(said, stacklevel=3)

    def to_part(self) -> Part:
        """The mean as a part that knows its classes: a network like any other, unless around its
        start, where it is a network and a direction of its weights."""
        check_is_fitted(self)
        if self.around_ == "start":
            return super().to_part()
        body = self.body_
        if self.mean_temperature_ == 1.0:
            return body
        return with_temperature(body, self.mean_temperature_)
