"""Callbacks of a training: the networks of earlier epochs, and what becomes of the weights."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from dovetail.core.errors import FormatError, SettingsError, first_line
from dovetail.core.files import read_plain, write_whole
from dovetail.core.plain import from_plain
from dovetail.core.records import Record
from dovetail.core.settings import need_least
from dovetail.core.views import Figure, Series, Table, Text, View
from dovetail.dist.averaging import AS_USUAL
from dovetail.dist.packed_mean import packed
from dovetail.measure.weights import (
    root_mean_square,
    stable_rank,
    weight_deviation,
    weight_entropy,
)
from dovetail.parts.cutting import cut
from dovetail.parts.part import Part
from dovetail.train.frame import HEAD
from dovetail.train.options import Moment

ENTROPY, RANK, BITS, ERROR, GRADIENT, DEVIATION = (
    "entropy",
    "stable rank",
    "bits a weight",
    "relative error",
    "rms gradient",
    "deviation",
)


@dataclass(frozen=True, kw_only=True)
class WeightsOverTraining(Record, kind="weights-over-training"):
    r"""One row an epoch and layer.

    ``"entropy"`` in bits, ``"stable rank"``, ``"bits a weight"`` after packing, the
    ``"relative error"`` :math:`\lVert w - \hat w\rVert / \lVert w\rVert` of what was packed, and
    ``"rms gradient"`` :math:`G`; with a start, the ``"deviation"`` from it,
    :math:`\lVert W - W_0\rVert_F / \sqrt n`.

    >>> rows = tuple(
    ...     {"epoch": e, "layer": "a", "entropy": 3.0 - e, "rms gradient": 2.0 ** (3 - e) - 1}
    ...     for e in (1, 2, 3)
    ... )
    >>> WeightsOverTraining(rows=rows).correlation("a")
    1.0
    """

    rows: tuple[dict[str, Any], ...]

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """Their names, from the input up."""
        return tuple(self._by_layer)

    def curve(self, layer: str, measure: str) -> tuple[float | None, ...]:
        """A measure of one layer, epoch by epoch."""
        values = (row.get(measure) for row in self._by_layer.get(layer, ()))
        return tuple(
            None if value is None else from_plain(float, value, measure) for value in values
        )

    @cached_property
    def _by_layer(self) -> dict[str, list[dict[str, Any]]]:
        rows: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows:
            rows.setdefault(row["layer"], []).append(row)
        return rows

    def correlation(self, layer: str) -> float | None:
        r"""Pearson's, of :math:`\log_2(G + 1)` and the entropy over the epochs; None if flat."""
        curves = zip(self.curve(layer, GRADIENT), self.curve(layer, ENTROPY), strict=True)
        both = [(gradient, entropy) for gradient, entropy in curves if gradient is not None]
        if len(both) < 3:
            return None
        pairs = torch.tensor(both, dtype=torch.float64).T
        pairs[0] = (pairs[0] + 1).log2()
        pairs -= pairs.mean(1, keepdim=True)
        spread = pairs.norm(dim=1).prod()
        return None if spread == 0 else round(float(pairs[0] @ pairs[1] / spread), 12)

    def view(self) -> View:
        """Curves of every measure, a line a layer; first and last values."""
        if not self.rows:
            return (Text("No epoch has ended yet."),)
        epochs = tuple(row["epoch"] for row in self._by_layer[self.layers[0]])
        figures = (
            Figure(
                "line",
                measure[0].upper() + measure[1:],
                tuple(Series(name, epochs, self.curve(name, measure)) for name in self.layers),
                "epoch",
                log_y=measure == GRADIENT,
            )
            for measure in (ENTROPY, RANK, BITS, ERROR, GRADIENT, DEVIATION)
            if measure != DEVIATION or any(DEVIATION in row for row in self.rows)
        )
        ends = tuple(
            (
                layer,
                *(self.curve(layer, name)[at] for name in (ENTROPY, RANK, BITS) for at in (0, -1)),
                self.correlation(layer),
            )
            for layer in self.layers
        )
        columns = (
            "layer",
            *(f"{name}, {when}" for name in (ENTROPY, RANK, BITS) for when in ("first", "last")),
            "correlation of entropy and log gradient",
        )
        return (Table(columns, ends, ("", *(".3g",) * 7)), *figures)


class WeightHistory:
    """A callback that looks at every weight matrix after each epoch.

    Args:
        probe_bits: Of the histogram whose entropy is taken, :math:`2^M` bins.
        sample: The share of the weights in it; ``None`` for all.
        packing: Arguments of ``pack.compress`` for bits and error; ``None`` measures neither.
        loss: Of a module, such as its mean loss on all of the training data, for the gradient.  By
            default it is the one that the last step of the epoch left: that of one batch.
        seed: For the sample.
        start: The network before training; each row then has the layer's deviation from it.
        examples: How many the training has, for the deviation.

    A training that is resumed begins a new history.

    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.load import load_task
    >>> from dovetail.train.end_to_end import end_to_end
    >>> history = WeightHistory()
    >>> _ = end_to_end(build("mlp"), load_task("digits"), epochs=2, callbacks=(history,))
    >>> history.record().layers
    ('hidden1.linear.weight', 'hidden2.linear.weight', 'head.weight')
    """

    def __init__(
        self,
        probe_bits: int = 4,
        sample: float | None = None,
        packing: Mapping[str, Any] | None = AS_USUAL,
        loss: Callable[[nn.Module], Tensor] | None = None,
        seed: int = 0,
        start: Part | nn.Module | None = None,
        examples: int = 1,
    ) -> None:
        need_least("examples", examples, 1)
        before = start.module if isinstance(start, Part) else start
        self._start = {
            name: weight.detach().cpu().clone()
            for name, weight in (before.named_parameters() if before is not None else ())
        }
        self._examples = examples
        self._bits, self._sample, self._seed = probe_bits, sample, seed
        self._packing, self._loss = packing, loss
        self._rows: list[dict[str, Any]] = []

    def __call__(self, moment: Moment) -> None:
        """Add the rows of this epoch."""
        self.look(moment.module, moment.epoch)

    def look(self, module: nn.Module, epoch: int) -> None:
        """Add the rows of an epoch: a row for each weight matrix; for a loop of one's own."""
        weights = {n: p for n, p in module.named_parameters() if p.ndim >= 2 and p.numel()}
        gradients = self._gradients(module, weights)
        for name, weight in weights.items():
            row: dict[str, Any] = {
                "epoch": epoch,
                "layer": name,
                "weights": weight.numel(),
                ENTROPY: weight_entropy(weight, self._bits, self._sample, seed=self._seed),
                RANK: stable_rank(weight),
                GRADIENT: gradients.get(name),
            }
            if (first := self._start.get(name)) is not None and first.shape == weight.shape:
                row[DEVIATION] = weight_deviation(weight, first, self._examples)
            if self._packing is not None:
                message = packed({name: weight}, {}, self._packing)
                row |= {BITS: message.bits / weight.numel(), ERROR: message.error}
            self._rows.append(row)

    def record(self) -> WeightsOverTraining:
        """What was seen so far."""
        return WeightsOverTraining(
            rows=tuple(dict(row) for row in self._rows),
            settings={
                "probe_bits": self._bits,
                "sample": self._sample,
                "packing": None if self._packing is None else str(dict(self._packing)),
                "gradient": "of the last batch" if self._loss is None else "of a loss",
                "seed": self._seed,
                **({"examples": self._examples} if self._start else {}),
            },
        )

    def _gradients(
        self, module: nn.Module, weights: Mapping[str, nn.Parameter]
    ) -> dict[str, float]:
        if self._loss is None:
            left = {n: p.grad for n, p in weights.items() if p.grad is not None}
        else:
            trained = {n: p for n, p in weights.items() if p.requires_grad}
            gradients = torch.autograd.grad(
                self._loss(module), list(trained.values()), allow_unused=True
            )
            left = {n: g for n, g in zip(trained, gradients, strict=True) if g is not None}
        return {name: root_mean_square(gradient) for name, gradient in left.items()}


# The networks of earlier epochs -------------------------------------------------------------------


_FILE = re.compile(r"epoch(\d+)(?:\.module(\d+))?\.safetensors")
_STAGE = re.compile(r"module(\d+)")
_MOST_BYTES = 1 << 34


class Snapshots:
    """A callback that keeps the weights of every ``every``-th epoch.

    Of a training in modules it keeps those of the body's epochs, counted on from module to module
    (while the output module learns, the body is what it was), and its parts end where the module
    ends that was being trained: what lies behind it had not learnt anything yet.

    Args:
        every: Keep each how manieth epoch.
        folder: Keep them in files there, so that a run that was killed and resumed has them all.

    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.load import load_task
    >>> from dovetail.train.end_to_end import end_to_end
    >>> kept = Snapshots(every=2)
    >>> fit = end_to_end(build("mlp"), load_task("digits"), epochs=4, callbacks=(kept,))
    >>> list(kept.parts(fit.part))
    ['epoch 2', 'epoch 4']
    """

    def __init__(self, every: int = 1, folder: str | Path | None = None) -> None:
        need_least("every", every, 1)
        self._every = every
        self._folder = None if folder is None else Path(folder)
        self._in_memory: dict[int, tuple[dict[str, Tensor] | Path, int | None]] = {}

    def __call__(self, moment: Moment) -> None:
        """Keep the network of this epoch, if it is its turn."""
        if moment.epoch % self._every or moment.stage == HEAD:
            return
        state = {
            name: tensor.detach().cpu().contiguous().clone()
            for name, tensor in moment.module.state_dict().items()
        }
        number = _STAGE.fullmatch(moment.stage)
        if self._folder is None:
            self._in_memory[moment.epoch] = state, int(number[1]) if number else None
        else:
            module = f".{moment.stage}" if number else ""
            write_whole(self._folder / f"epoch{moment.epoch}{module}.safetensors", save(state))

    @property
    def epochs(self) -> tuple[int, ...]:
        """The epochs that were kept, in order."""
        return tuple(sorted(self._kept()))

    def parts(self, trained: Part) -> dict[str, Part]:
        """The network of each kept epoch, by name, in the contract of the finished part.

        What they give is in no space: nothing has been trained to agree with them.  Of a training
        in modules, the body up to the module of that epoch.
        """
        epochs = sorted(self._kept().items())
        return {f"epoch {epoch}": _part(trained, epoch, *each) for epoch, each in epochs}

    def _kept(self) -> dict[int, tuple[dict[str, Tensor] | Path, int | None]]:
        """Of each kept epoch the weights or their file, and which module was being trained."""
        if self._folder is None:
            return self._in_memory
        matches = ((path, _FILE.fullmatch(path.name)) for path in self._folder.glob("*"))
        return {
            int(match[1]): (path, int(match[2]) if match[2] else None)
            for path, match in matches
            if match
        }


def _part(trained: Part, epoch: int, weights: dict[str, Tensor] | Path, number: int | None) -> Part:
    """The network of an epoch, or the body up to the module of that number."""
    module = copy.deepcopy(trained.module)
    try:
        module.load_state_dict(_read(weights) if isinstance(weights, Path) else weights)
    except RuntimeError as error:
        raise SettingsError(
            f"the weights of epoch {epoch} are not of this network: {first_line(error)}"
        ) from None
    settings: dict[str, Any] = {**trained.origin.settings, "kept_epoch": epoch}
    origin = replace(trained.origin, settings=settings, measured={})
    contract = trained.contract.in_space(None)
    whole = trained.changed(module=module, contract=contract, origin=origin)
    if number is None:
        return whole
    front, _ = cut(whole, at=trained.origin.settings["at"][number - 1])
    return front.changed(origin=origin)


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load(read_plain(path, most_bytes=_MOST_BYTES))
    except (SafetensorError, OSError) as error:
        raise FormatError(f"{path} cannot be read ({first_line(error)})") from None
