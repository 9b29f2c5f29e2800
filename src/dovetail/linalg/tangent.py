r"""A network's tangent features, the rows of its Jacobian, and their Gram matrix (finite NTK).

For inputs :math:`x_1 \dots x_n` and the chosen parameters :math:`\theta` the Jacobian
:math:`J = \partial f_\theta(x) / \partial\theta` has :math:`n o` rows of :math:`p` numbers.  The
tangent kernel of two sets of inputs, of one network or of two with the same parameters, is

.. math::
    K_{ic,jd} = \sum_p \frac{\partial f_c(x_i)}{\partial \theta_p}
                       \frac{\partial f'_d(x'_j)}{\partial \theta'_p} .

One forward pass and one backward pass for each output give what went into every place a parameter
is used and what came back to it; :mod:`dovetail.linalg.gradient_rules` reads the gradients of
single samples off those, :mod:`dovetail.linalg.gradient_factors` multiplies them.  For a matrix of
:math:`a \times b` numbers a pair of samples costs :math:`a + b` products instead of :math:`a b`.
From the factors follows all that a linear model in :math:`\theta` asks for: Gram matrices, weighted
by parameter or one for each layer; products :math:`J w` and :math:`J^\top u`; and, where :math:`p`
is small, the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from dovetail.core.errors import ContractError, SettingsError, TaskError, shown
from dovetail.linalg.gradient_factors import (
    ROWS,
    Dense,
    Outer,
    add_inner,
    mirror_,
    pieces,
    takes_bias,
)
from dovetail.linalg.jacobian import evaluating
from dovetail.linalg.parameters import Choice, chosen_parameters
from dovetail.linalg.sample_gradients import Differentiated

Outputs: TypeAlias = Literal["full", "diagonal"]
"""All pairs of outputs ``[n, o, m, o]``, or each with itself ``[n, m, o]``."""

Factors: TypeAlias = dict[str, Dense | Outer]

LARGEST = 4096  # rows (samples times outputs) of one block: the products of two stay in 128 MiB
BLOCK = 2**28  # bytes of features of one block


class TangentFeatures:
    r"""The rows of a network's Jacobian on some inputs.

    The features are of the network's own type, every product of two is float64, which is where the
    digits are needed.  The network is run in evaluation mode and left as it was; frozen parameters
    count like others, and it makes no difference whether the caller records gradients.  Weights are
    read when features are computed: do not train the network in between.

    Args:
        model: Maps ``[n, ...]`` to ``[n, o]``, each sample by itself.
        x: Inputs ``[n, ...]``; integers for a network that begins with a table.
        params: The parameters that count, see
            :func:`dovetail.linalg.parameters.chosen_parameters`.
        block: Samples at a time; chosen by their size when left out.
        memory: Bytes of features to keep; what does not fit is computed again when it is needed.

    Attributes:
        width: The number of outputs :math:`o`.
        names: The chosen parameters, in the order of flat vectors.
        size: How many numbers they have, :math:`p`.

    >>> features = TangentFeatures(nn.Linear(2, 1), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    >>> features.gram().squeeze()  # <x, x'> + 1
    tensor([[ 6., 12.],
            [12., 26.]], dtype=torch.float64)
    >>> features.pull(torch.tensor([[1.0], [0.0]]))
    tensor([1., 2., 1.], dtype=torch.float64)
    >>> features.push(torch.tensor([1.0, 0.0, 10.0])).flatten()
    tensor([11., 13.], dtype=torch.float64)
    """

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        params: Choice = None,
        *,
        block: int | None = None,
        memory: int = 2**30,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ContractError(f"tangent features are of an nn.Module, got {shown(model)}")
        if block is not None and (type(block) is not int or block < 1):
            raise SettingsError(f"block is a number of samples, at least 1, got {shown(block)}")
        if not isinstance(x, Tensor) or x.ndim == 0 or len(x) == 0:
            what = f"shape {list(x.shape)}" if isinstance(x, Tensor) else shown(x)
            raise TaskError(f"inputs are a tensor [n, ...] of at least one sample, got {what}")
        if not bool(x.isfinite().all()):
            raise TaskError("inputs hold numbers that are not finite; drop or fill those samples")
        self.model, self.x = model, x
        self.names = chosen_parameters(model, params)
        every = dict(model.named_parameters())
        self.shapes = {name: every[name].shape for name in self.names}
        self.size = sum(shape.numel() for shape in self.shapes.values())
        with _as_evaluated(model):
            self.x = self.x.clone() if self.x.is_inference() else self.x
            self._network = Differentiated(model, self.names)
            with torch.enable_grad():
                self._network.plan(self.x)
        self.width = self._network.width
        if block is None:
            block = min(LARGEST // self.width, BLOCK // max(1, self._network.sample_bytes))
        block = max(1, block)
        self.slices = [slice(i, min(i + block, len(x))) for i in range(0, len(x), block)]
        self._kept: dict[int, Factors] = {}
        self._room = memory

    def __len__(self) -> int:
        return len(self.x)

    def gram(
        self,
        other: TangentFeatures | None = None,
        *,
        outputs: Outputs = "full",
        scales: Mapping[str, float] | None = None,
    ) -> Tensor:
        r"""The Gram matrix :math:`J S J'^\top` with the features of other inputs, or its own.

        Args:
            other: Features of the same parameters, of this network or another; those here when
                left out, and then each pair is computed once and the result exactly symmetric.
            outputs: ``"full"`` for all pairs of outputs, ``"diagonal"`` for each with itself.
            scales: :math:`S`, a number for each parameter's name; one where a name is left out.

        Returns:
            float64 ``[n, o, m, o]``, or ``[n, m, o]`` for ``outputs="diagonal"``.
        """
        if not scales:
            return self.grams({"": self.names}, other, outputs=outputs)[""]
        groups: dict[str, list[str]] = {}
        for name in self.names:
            groups.setdefault(repr(float(scales.get(name, 1.0))), []).append(name)
        scaled = (  # one after the other: two matrices at a time
            self.grams({scale: names}, other, outputs=outputs)[scale].mul_(float(scale))
            for scale, names in groups.items()
        )
        return reduce(Tensor.add_, scaled)

    def grams(
        self,
        groups: Mapping[str, Sequence[str]],
        other: TangentFeatures | None = None,
        *,
        outputs: Outputs = "full",
    ) -> dict[str, Tensor]:
        """A Gram matrix for each group of parameters, in one pass over the features.

        Parameters that are in no group do not count; see
        :func:`dovetail.linalg.parameters.by_layer` for the usual groups.

        >>> features = TangentFeatures(nn.Linear(2, 1), torch.tensor([[1.0, 2.0]]))
        >>> grams = features.grams({"slope": ["weight"], "shift": ["bias"]})
        >>> grams["slope"].item(), grams["shift"].item()
        (5.0, 1.0)
        """
        if outputs not in ("full", "diagonal"):
            raise SettingsError(f'outputs is "full" or "diagonal", got {shown(outputs)}')
        right = self if other is None else other
        if right.width != self.width:
            raise ContractError(
                f"the two networks have {self.width} and {right.width} outputs; a Gram matrix "
                "needs the same number"
            )
        member = {name: group for group, names in groups.items() for name in names}
        n, m, o = len(self), len(right), self.width
        diagonal = outputs == "diagonal"
        shape = (n, m, o) if diagonal else (n, o, m, o)
        with _as_evaluated(self.model, right.model):
            empty = torch.zeros(shape, dtype=torch.float64, device=self.x.device)
            grams = {group: empty.clone() if i else empty for i, group in enumerate(groups)}
            for i, here in enumerate(self.slices):
                mine = self.factors(i)
                for j, there in enumerate(right.slices):
                    if right is self and j < i:
                        continue
                    theirs = mine if right is self and j == i else right.factors(j)
                    parts = {group: _part(gram, here, there) for group, gram in grams.items()}
                    _add_products(parts, mine, theirs, diagonal, member)
                    if right is self:
                        for gram in grams.values():
                            _complete(gram, here, there)
        # One sum instead of a mask of all entries: inf and nan survive it.
        if not all(bool(gram.sum().isfinite() or gram.isfinite().all()) for gram in grams.values()):
            raise TaskError(
                "the gradients are not finite, as of a square root at zero or an overflow; look "
                "for such an operation, or scale the inputs"
            )
        return grams

    def own(self, scales: Mapping[str, float] | None = None) -> Tensor:
        r"""What each sample has with itself, :math:`J_i S J_i^\top`, float64 ``[n, o, o]``."""
        blocks, scales = [], scales or {}
        with _as_evaluated(self.model):
            for i in range(len(self.slices)):
                factors = self.factors(i).items()
                parts = (scales.get(name, 1.0) * one.own() for name, one in factors)
                blocks.append(reduce(Tensor.add_, parts))
        return torch.cat(blocks)

    def push(self, direction: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        r"""How the outputs move, :math:`J w`, float64 ``[n, o]``, for one direction ``[p]``.

        Products are taken in ``dtype``: float32 is twice as fast and good for seven digits.
        """
        if direction.shape != (self.size,):
            raise SettingsError(
                f"a direction in the space of these parameters has shape [{self.size}], not "
                f"{list(direction.shape)}"
            )
        parts = self._split(direction.detach().to(self.x.device, dtype))
        moved = []
        with _as_evaluated(self.model):
            for i in range(len(self.slices)):
                along = (
                    torch.cat([some.along(parts[name]) for _, some in pieces(one, dtype)]).double()
                    for name, one in self.factors(i).items()
                )
                moved.append(reduce(torch.add, along))
        return torch.cat(moved)

    def pull(self, cotangent: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        r"""What outputs ask of the parameters, :math:`J^\top u`, float64 ``[p]``.

        Args:
            cotangent: :math:`u`, ``[n, o]`` or flat.
            dtype: In which products are taken; blocks of samples are summed in float64.
        """
        if cotangent.numel() != len(self) * self.width:
            raise SettingsError(
                f"the outputs are [{len(self)}, {self.width}], the cotangent "
                f"{list(cotangent.shape)}; give one number for each output"
            )
        cotangent = cotangent.reshape(len(self), self.width).to(self.x.device, dtype)
        total = torch.zeros(self.size, dtype=torch.float64, device=self.x.device)
        sums = self._split(total)
        with _as_evaluated(self.model):
            for i, here in enumerate(self.slices):
                for name, one in self.factors(i).items():
                    mine = cotangent[here]
                    for where, some in pieces(one, dtype):
                        sums[name] += some.weighted(mine[where]).double()
        return total

    def rows(self) -> Iterator[Tensor]:
        """The Jacobian itself, float64 blocks ``[b, o, p]`` in order, for few parameters."""
        most = max(1, ROWS // (8 * self.width * self.size))
        for i, block_of in enumerate(self.slices):
            with _as_evaluated(self.model):
                factors = self.factors(i)
            count = block_of.stop - block_of.start
            for start in range(0, count, most):
                some = slice(start, min(start + most, count))
                shape = (some.stop - some.start, self.width, self.size)
                block = self.x.new_zeros(shape, dtype=torch.float64)
                for name, columns in self._split(block).items():
                    if name in factors:
                        columns[:] = factors[name].part(some).dense()
                yield block

    def factors(self, i: int) -> Factors:
        """The gradients of one block of samples, in factors, by parameter."""
        if i in self._kept:
            return self._kept[i]
        with torch.enable_grad():
            features = self._network.features(self.x[self.slices[i]])
        size = sum(feature.nbytes for feature in features.values())
        if size <= self._room:
            self._room, self._kept[i] = self._room - size, features
        return features

    def _split(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of flat vectors ``[..., p]``, by parameter."""
        each = torch.split(flat, [shape.numel() for shape in self.shapes.values()], -1)
        return dict(zip(self.names, each, strict=True))


def _part(gram: Tensor, here: slice, there: slice) -> Tensor:
    """The pairs of two blocks of samples in ``[n, o, m, o]`` or ``[n, m, o]``."""
    return gram[here, there] if gram.ndim == 3 else gram[here, :, there]


def _complete(gram: Tensor, here: slice, there: slice) -> None:
    """Write the mirror image of one pair of blocks of a symmetric matrix."""
    part = _part(gram, here, there)
    if here == there:
        mirror_(part)
    else:
        mirrored = part.transpose(0, 1) if part.ndim == 3 else part.permute(2, 3, 0, 1)
        _part(gram, there, here).copy_(mirrored)


def _add_products(
    parts: Mapping[str, Tensor],
    mine: Factors,
    theirs: Factors,
    diagonal: bool,
    member: Mapping[str, str],
) -> None:
    """Add the inner products over the parameters of each group that both blocks depend on."""
    both = [name for name in mine if name in theirs and name in member]
    along = {name: takes_bias(mine[name], theirs[name], diagonal) for name in both}
    along = {name: b for name, b in along.items() if b and member.get(b) == member[name]}
    for name in both:
        if name not in along.values():
            add_inner(parts[member[name]], mine[name], theirs[name], diagonal, name in along)


@contextmanager
def _as_evaluated(*models: nn.Module) -> Iterator[None]:
    """Evaluation mode and full precision; everything as before afterwards."""
    kind = next((p.device.type for p in models[0].parameters()), "cpu")
    with (
        evaluating(*models),
        torch.inference_mode(False),
        torch.no_grad(),  # factors switch it on for themselves
        torch.autocast(kind, enabled=False),
    ):
        yield


def tangent_gram(
    model: nn.Module,
    x: Tensor,
    x2: Tensor | None = None,
    model2: nn.Module | None = None,
    params: Choice = None,
    *,
    outputs: Outputs = "full",
    block: int | None = None,
    memory: int = 2**30,
) -> Tensor:
    r"""Inner products of the gradients of a network's outputs (the finite tangent kernel).

    Exact: equal to :math:`J J^\top` up to rounding.  The features are of the network's own type,
    the products are float64, which is where the precision is needed.  The network is run in
    evaluation mode and left as it was, frozen parameters count like others, and it makes no
    difference whether the caller records gradients.

    Args:
        model: Maps ``[n, ...]`` to ``[n, o]``, each sample by itself.
        x: Inputs ``[n, ...]``; integers for a network that begins with a table.
        x2: Other inputs ``[m, ...]``; ``x`` when left out.
        model2: Another network with parameters of the same names and shapes, for ``x2``.
        params: The parameters that count, by pattern, such as ``"head.*"`` or several; all by
            default.  A parameter that is used under two names is one.
        outputs: ``"full"`` for all pairs of outputs, ``"diagonal"`` for each with itself.
        block: Samples at a time; chosen by their size when left out.
        memory: Bytes of features to keep; what does not fit is computed again when it is needed.

    Returns:
        float64 ``[n, o, m, o]``, or ``[n, m, o]`` for ``outputs="diagonal"``.  Without ``x2`` and
        ``model2`` exactly symmetric.

    >>> layer = nn.Linear(2, 1)
    >>> tangent_gram(layer, torch.tensor([[1.0, 2.0], [3.0, 4.0]])).squeeze()  # <x, x'> + 1
    tensor([[ 6., 12.],
            [12., 26.]], dtype=torch.float64)
    """
    left = TangentFeatures(model, x, params, block=block, memory=memory)
    if (x2 is None or x2 is x) and (model2 is None or model2 is model):
        return left.gram(outputs=outputs)
    other = model if model2 is None else model2
    right = TangentFeatures(other, x if x2 is None else x2, params, block=block, memory=memory)
    if other is not model:
        _same_parameters(left, right)
    return left.gram(right, outputs=outputs)


def _same_parameters(one: TangentFeatures, other: TangentFeatures) -> None:
    """Refuse networks whose gradients do not live in one space."""
    wrong = [f"only one has {name!r}" for name in sorted(set(one.names) ^ set(other.names))]
    wrong += [
        f"{name!r} is {list(shape)} and {list(other.shapes[name])}"
        for name, shape in one.shapes.items()
        if name in other.shapes and other.shapes[name] != shape
    ]
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise ContractError(
            f"the two networks do not share their parameters: {'; '.join(wrong[:3])}{more}. "
            "Choose common ones by params=, or compare the Gram matrix of each"
        )
