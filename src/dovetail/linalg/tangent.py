r"""A network's tangent features: the rows of its Jacobian, kept in factors and never written out.

For inputs :math:`x_1 \dots x_n` and the chosen parameters :math:`\theta` the Jacobian
:math:`J = \partial f_\theta(x) / \partial\theta` has :math:`n o` rows of :math:`p` numbers.  One
forward pass and one backward pass for each output give it in factors
(:mod:`dovetail.linalg.gram_blocks`), of which everything a linear model in :math:`\theta` asks for
follows: Gram matrices :math:`J J'^\top` of two sets of inputs, weighted by parameter or one for
each layer; products :math:`J w` and :math:`J^\top u`; and, where :math:`p` is small, the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from dovetail.core.errors import ContractError, SettingsError, TaskError, shown
from dovetail.linalg.gram_blocks import Dense, Outer
from dovetail.linalg.gram_features import Differentiated
from dovetail.linalg.gram_products import add_inner, mirror_, takes_bias
from dovetail.linalg.parameters import Choice, chosen_parameters

__all__ = ["Outputs", "TangentFeatures"]

Outputs: TypeAlias = Literal["full", "diagonal"]
"""All pairs of outputs ``[n, o, m, o]``, or each with itself ``[n, m, o]``."""

Factors: TypeAlias = dict[str, Dense | Outer]

LARGEST = 4096  # rows (samples times outputs) of one block: the products of two stay in 128 MiB
BLOCK = 2**28  # bytes of features of one block
ROWS = 2**27  # bytes of one block of the Jacobian, where it is written out
PIECE = 2**23  # bytes of features that are changed to another type at once


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
        if block is not None and (isinstance(block, bool) or not isinstance(block, int)):
            raise SettingsError(f"block is a number of samples, at least 1, got {shown(block)}")
        if block is not None and block < 1:
            raise SettingsError(f"block is a number of samples, at least 1, got {shown(block)}")
        self.model = model
        self.names = chosen_parameters(model, params)
        self.x = _checked(x)
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
        total: Tensor | None = None
        for scale, names in groups.items():  # one after the other: two matrices at a time
            part = self.grams({scale: names}, other, outputs=outputs)[scale].mul_(float(scale))
            total = part if total is None else total.add_(part)
        assert total is not None, "some parameter is always chosen"
        return total

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
        for gram in grams.values():
            _must_be_finite(gram)
        return grams

    def own(self, scales: Mapping[str, float] | None = None) -> Tensor:
        r"""What each sample has with itself, :math:`J_i S J_i^\top`, float64 ``[n, o, o]``."""
        blocks = []
        with _as_evaluated(self.model):
            for i in range(len(self.slices)):
                count = self.slices[i].stop - self.slices[i].start
                total = self.x.new_zeros(count, self.width, self.width, dtype=torch.float64)
                for name, one in self.factors(i).items():
                    total += (scales or {}).get(name, 1.0) * _own(one, count)
                blocks.append(total)
        return torch.cat(blocks)

    def push(self, direction: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        r"""How the outputs move, :math:`J w`, float64 ``[n, o]``, for one direction ``[p]``.

        Products are taken in ``dtype``: float32 is twice as fast and good for seven digits.
        """
        direction = self._flat(direction)
        parts = self._split(direction.to(dtype))
        moved = []
        with _as_evaluated(self.model):
            for i in range(len(self.slices)):
                total = None
                for name, one in self.factors(i).items():
                    pieces = _pieces(one, dtype)
                    part = torch.cat([some.along(parts[name]) for _, some in pieces]).double()
                    total = part if total is None else total + part
                assert total is not None, "a network that uses none of them was refused"
                moved.append(total)
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
                    for where, some in _pieces(one, dtype):
                        sums[name] += some.weighted(mine[where]).double()
        return total

    def rows(self) -> Iterator[Tensor]:
        """The Jacobian itself, float64 blocks ``[b, o, p]`` in order, for few parameters."""
        most = max(1, ROWS // (8 * self.width * self.size))
        for i, here in enumerate(self.slices):
            with _as_evaluated(self.model):
                factors = self.factors(i)
            count = here.stop - here.start
            for start in range(0, count, most):
                some = slice(start, min(start + most, count))
                block = self.x.new_zeros(
                    some.stop - some.start, self.width, self.size, dtype=torch.float64
                )
                at = 0
                for name, shape in self.shapes.items():
                    if name in factors:
                        block[..., at : at + shape.numel()] = factors[name].part(some).dense()
                    at += shape.numel()
                yield block

    def factors(self, i: int) -> Factors:
        """The gradients of one block of samples, in factors, by parameter."""
        if i in self._kept:
            return self._kept[i]
        with torch.enable_grad():
            found = self._network.features(self.x[self.slices[i]])
        size = sum(feature.nbytes for feature in found.values())
        if size <= self._room:
            self._room -= size
            self._kept[i] = found
        return found

    def _flat(self, direction: Tensor) -> Tensor:
        if direction.shape != (self.size,):
            raise SettingsError(
                f"a direction in the space of these parameters has shape [{self.size}], not "
                f"{list(direction.shape)}"
            )
        return direction.detach().to(self.x.device)

    def _split(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a flat vector ``[p]``, by parameter."""
        pieces = torch.split(flat, [shape.numel() for shape in self.shapes.values()])
        return dict(zip(self.names, pieces, strict=True))


def _pieces(one: Dense | Outer, dtype: torch.dtype) -> Iterator[tuple[slice, Dense | Outer]]:
    """Samples as many at a time as are changed to a type in the cache, all where none need be."""
    whole = one.rows if isinstance(one, Dense) else one.grads
    count, step = len(whole), len(whole)
    if whole.dtype != dtype:
        step = max(1, PIECE * count // max(1, one.nbytes))
    for start in range(0, count, step):
        some = slice(start, min(start + step, count))
        yield some, one if step >= count else one.part(some)


def _own(one: Dense | Outer, count: int) -> Tensor:
    """Samples a few at a time: among many positions the intermediate is large."""
    if isinstance(one, Dense):
        return one.own()
    each = 8 * one.grads[0].numel() * max(1, one.inputs[0].numel())
    step = max(1, ROWS // each)
    return torch.cat([one.part(slice(i, i + step)).own() for i in range(0, count, step)])


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
    along: dict[str, str] = {}
    for name in both:
        bias = takes_bias(mine[name], theirs[name], diagonal)
        if bias is not None and member.get(bias) == member[name]:
            along[name] = bias
    taken = set(along.values())
    for name in both:
        if name not in taken:
            add_inner(
                parts[member[name]],
                mine[name],
                theirs[name],
                diagonal=diagonal,
                bias=name in along,
            )


@contextmanager
def _as_evaluated(*models: nn.Module) -> Iterator[None]:
    """Evaluation mode and full precision; everything as before afterwards."""
    before = {module: module.training for model in models for module in model.modules()}
    kind = next((p.device.type for p in models[0].parameters()), "cpu")
    try:
        for model in models:
            model.eval()
        with (
            torch.inference_mode(False),
            torch.no_grad(),  # factors switch it on for themselves
            torch.autocast(kind, enabled=False),
        ):
            yield
    finally:
        for module, training in before.items():
            module.training = training


def _checked(x: Tensor) -> Tensor:
    """Refuse what cannot be differentiated sample by sample."""
    if not isinstance(x, Tensor) or x.ndim == 0 or len(x) == 0:
        what = f"shape {list(x.shape)}" if isinstance(x, Tensor) else shown(x)
        raise TaskError(f"inputs are a tensor [n, ...] of at least one sample, got {what}")
    if not bool(x.isfinite().all()):
        raise TaskError("inputs hold numbers that are not finite; drop or fill those samples")
    return x


def _must_be_finite(gram: Tensor) -> None:
    # One sum instead of a mask of all entries: inf and nan survive it.
    if not bool(gram.sum().isfinite()) and not bool(gram.isfinite().all()):
        raise TaskError(
            "the gradients are not finite, as of a square root at zero or an overflow; look for "
            "such an operation, or scale the inputs"
        )
