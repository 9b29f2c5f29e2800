r"""A network's loss at many points of a line or plane through its weights, without setting them.

At :math:`(a, b)` the weights are :math:`\theta + a\,\delta_1 + b\,\delta_2`.  Four things make a
grid cheaper than as many evaluations:

- A layer that sees the same inputs at every point (the first one) gives an **affine** function of
  :math:`(a, b)`: three passes through it do for the whole grid.
- Maxima over windows are taken as maxima of shifted views, the same numbers; on a processor,
  torch's own kernel also looks for the places, and takes most of a small network's time.
- A ReLU overwrites what a layer made for it alone, or waits for the windows' maxima behind it.
- Points are evaluated **together** (``vmap``) as far as memory allows.  On a processor that is for
  networks without convolutions only: with weights of their own for every point, convolutions run
  as groups, at half the speed or less.

No derivative is taken.  What these do is compared with a plain evaluation before it is relied on.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.overrides import TorchFunctionMode

from dovetail.core.errors import TaskError
from dovetail.lens.subject import Subject

Direction = Mapping[str, Tensor]
"""A step of some parameters (and buffers) by name."""

MEMORY = 2**28
"""Bytes of activations of the points that are evaluated together."""

_CHUNK = 4 << 20
"""Bytes of inputs that go through the network at once."""

_AFFINE = (torch.conv1d, torch.conv2d, torch.conv3d, F.linear)
_ALIKE = 1e-4


class Perturbed:
    """The mean loss at points ``(a, b)`` of the plane that two directions span; one will do.

    >>> from dovetail.lens.subject import subject_of
    >>> net = nn.Linear(1, 1, bias=False)
    >>> subject = subject_of(net, (torch.ones(2, 1), torch.zeros(2)))
    >>> step = {"weight": 1 - net.weight.detach()}
    >>> Perturbed(subject, [step]).losses([(1.0,)])
    [1.0]
    """

    def __init__(self, subject: Subject, directions: Sequence[Direction]) -> None:
        self._subject = subject
        module = subject.module
        self._copy = copy.deepcopy(module).eval().requires_grad_(False)
        self._own = {**dict(self._copy.named_parameters()), **dict(self._copy.named_buffers())}
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        self._fixed = {name: tensor.detach() for name, tensor in tensors.items()}
        moved = {name for direction in directions for name in direction}
        self._steps = {
            name: tuple(d[name].to(self._fixed[name]) if name in d else None for d in directions)
            for name in self._fixed
            if name in moved
        }
        self._like = next(iter(self._fixed.values()))  # a weight, whose type points take
        n = len(subject.x)
        size = max(1, n * _CHUNK // max(subject.x.numel() * subject.x.element_size(), 1))
        starts = range(0, n, size)
        self._chunks = [(subject.x[i : i + size], subject.y[i : i + size]) for i in starts]
        corner = (1.0,) * len(directions)
        self._plans = [_Plan({}, frozenset(), frozenset(), {}) for _ in self._chunks]
        self._swift = False
        self._row: tuple[float, ...] | None = None
        self._bases: dict[str, Tensor] = {}
        with torch.no_grad():
            plain = self._one(corner)
            held = self._planned(len(directions))
            self._swift = True
            apart = abs(self._one(corner) - plain)
        if math.isfinite(plain) and not apart <= _ALIKE * max(abs(plain), 1.0):
            self._swift = False  # such as a network that hides from gradients what it does
        self.together = self._at_once(held)

    def losses(self, points: Sequence[Sequence[float]]) -> list[float]:
        """The mean loss at each of some points; NaN where it is not a number."""
        with torch.no_grad():
            if self.together > 1:
                try:
                    return self._many(points)
                except (RuntimeError, ValueError, NotImplementedError):
                    self.together = 1  # an operation that vmap does not know
            return [self._one(point) for point in points]

    def _many(self, points: Sequence[Sequence[float]]) -> list[float]:
        losses: list[float] = []
        for start in range(0, len(points), self.together):
            here = points[start : start + self.together]
            some = torch.tensor(here, dtype=torch.float64).to(self._like)
            total = torch.zeros(len(some), dtype=torch.float64)
            for place, (x, y) in enumerate(self._chunks):
                each = vmap(lambda at, x=x, y=y, k=place: self._loss(at.unbind(), x, y, k))
                total += each(some).double().cpu() * (len(x) / len(self._subject.x))
            losses += total.tolist()
        return losses

    def _one(self, point: Sequence[float]) -> float:
        total = 0.0
        for place, (x, y) in enumerate(self._chunks):
            mean = self._loss([float(a) for a in point], x, y, place)
            total += float(mean) * (len(x) / len(self._subject.x))
        return total

    def _loss(self, at: Sequence[Any], x: Tensor, y: Tensor, place: int) -> Tensor:
        mode = _Swift(self._plans[place], at) if self._swift else None
        if isinstance(at[0], float):
            self._move_to(at)
            outputs = self._outputs(None, x, mode)
        else:
            steps = self._steps.items()
            outputs = self._outputs({n: _along(self._fixed[n], s, at) for n, s in steps}, x, mode)
        return self._subject.loss_of(outputs, y)

    def _move_to(self, at: Sequence[float]) -> None:
        """Set the copy's weights; along a row of a grid, what does not change is added up once."""
        row = tuple(at[1:])
        if row != self._row:
            self._bases = {n: _along(self._fixed[n], s[1:], row) for n, s in self._steps.items()}
            self._row = row
        for name, base in self._bases.items():
            step = self._steps[name][0]
            if step is None:
                self._own[name].copy_(base)
            else:
                torch.add(base, step, alpha=at[0], out=self._own[name])

    def _outputs(
        self, theta: Mapping[str, Tensor] | None, x: Tensor, mode: TorchFunctionMode | None
    ) -> Tensor:
        """What the copy gives with its own weights, or with others."""
        with mode or nullcontext():
            if theta is None:
                value = self._copy(x)
            else:
                value = functional_call(self._copy, {**self._fixed, **theta}, (x,))
        if not isinstance(value, Tensor):
            raise TaskError(
                f"the network gives a {type(value).__name__}; wrap it to give one tensor"
            )
        return value

    def _planned(self, axes: int) -> int:
        """Find the layers that are affine here; the bytes of what one pass makes."""
        held = 0
        weights = {name for name, _ in self._copy.named_parameters()}
        for place, (x, _) in enumerate(self._chunks):
            watch = _Watch(
                {
                    name: t.clone().requires_grad_(name in self._steps and name in weights)
                    for name, t in self._fixed.items()
                }
            )
            with torch.enable_grad():
                self._outputs(watch.theta, x, watch)
            held = max(held, watch.bytes)
            affine = {i: self._through(call, axes) for i, call in watch.calls.items()}
            self._plans[place] = _Plan(affine, watch.used_once(), watch.pooled_only(), {})
        return held

    def _through(self, call: _Call, axes: int) -> _Affine:
        """What a layer gives at the centre, and what along each direction."""
        function, x, weight, bias, rest, named = call
        at_centre = function(x, self._fixed[weight], self._fixed.get(bias), *rest, **named)
        along = []
        for axis in range(axes):
            step = self._steps[weight][axis]
            lift = self._steps[bias][axis] if bias in self._steps else None
            if step is None:
                step = torch.zeros_like(self._fixed[weight])
            along.append(function(x, step, lift, *rest, **named))
        return _Affine(at_centre, along)

    def _at_once(self, held: int) -> int:
        convolves = any(
            isinstance(m, nn.modules.conv._ConvNd) for m in self._subject.module.modules()
        )
        if convolves and self._subject.x.device.type == "cpu":
            return 1
        return max(1, min(MEMORY // max(held, 1), 1024))


_Call = tuple[Callable[..., Tensor], Tensor, str, str, tuple[Any, ...], dict[str, Any]]


def _along(start: Tensor, steps: Sequence[Tensor | None], at: Sequence[Any]) -> Tensor:
    """The start moved along each direction; never the start itself, which may be written to."""
    value = start
    for step, far in zip(steps, at, strict=True):
        if step is None:
            continue
        value = torch.add(value, step, alpha=far) if isinstance(far, float) else value + far * step
    return value.clone() if value is start else value


class _Affine:
    """What a layer gives: a tensor, and how it moves along each direction.

    Along a row of a grid only the first coordinate changes, so the rest is added up once; and a
    processor that gets fresh memory for every point would wait for it, so the memory stays.
    """

    def __init__(self, centre: Tensor, along: Sequence[Tensor]) -> None:
        self._centre, self._along = centre, along
        self._row: tuple[float, ...] | None = None
        self._base, self._here = centre, torch.empty_like(centre)

    def at(self, point: Sequence[Any]) -> Tensor:
        if not isinstance(point[0], float):
            return _along(self._centre, self._along, point)
        row = tuple(point[1:])
        if row != self._row:
            self._base = _along(self._centre, self._along[1:], row) if row else self._centre
            self._row = row
        return torch.add(self._base, self._along[0], alpha=point[0], out=self._here)


class _Plan(NamedTuple):
    """Of one pass: the affine layers by their place among layers, and among ReLUs those that may
    overwrite and those that may wait until the maxima of windows are taken; kept memory."""

    affine: dict[int, _Affine]
    in_place: frozenset[int]
    after_pool: frozenset[int]
    room: dict[tuple[int, ...], Tensor]


class _Watch(TorchFunctionMode):
    """Looks at one pass: which layers have inputs that no moved weight can change, and sizes."""

    def __init__(self, theta: dict[str, Tensor]) -> None:
        super().__init__()
        self.theta = theta
        self._names = {id(tensor): name for name, tensor in theta.items()}
        self.calls: dict[int, _Call] = {}
        self.bytes = 0
        self._index = 0
        self._made: list[Tensor] = []  # held, so that no two have one identity
        self._uses: dict[int, int] = {}
        self._relus: list[int] = []
        self._positive: list[Tensor] = []
        self._pooled: set[int] = set()

    def pooled_only(self) -> frozenset[int]:
        """Those of them whose output only the maxima of windows are taken of."""
        given = enumerate(map(id, self._positive))
        pooled = {p for p, of in given if of in self._pooled and self._uses[of] == 1}
        return self.used_once() & pooled

    def used_once(self) -> frozenset[int]:
        """The ReLUs, in the order they are called, whose input was made here for them alone."""
        made = {id(tensor) for tensor in self._made}
        return frozenset(
            place for place, of in enumerate(self._relus) if of in made and self._uses[of] == 1
        )

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in _AFFINE:
            self._note(function, args, kwargs)
        if getattr(function, "__name__", "") != "__get__":  # a shape may be looked at
            for tensor in (v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)):
                self._uses[id(tensor)] = self._uses.get(id(tensor), 0) + 1
            if function is F.relu:
                self._relus.append(id(args[0]))
            if function is F.max_pool2d:
                self._pooled.add(id(args[0]))
        value = function(*args, **kwargs)
        if isinstance(value, Tensor):
            self.bytes += value.numel() * value.element_size()
            if function in _AFFINE:
                self._made.append(value)
            if function is F.relu:
                self._positive.append(value)
        return value

    def _note(self, function: Any, args: Any, kwargs: Any) -> None:
        index, self._index = self._index, self._index + 1
        if len(args) < 2 or "bias" in kwargs or "weight" in kwargs:
            return
        x, weight, *others = args
        bias, rest = (others[0], tuple(others[1:])) if others else (None, ())
        known = id(weight) in self._names and (bias is None or id(bias) in self._names)
        if known and weight.requires_grad and not x.requires_grad:
            names = self._names[id(weight)], self._names[id(bias)] if bias is not None else ""
            self.calls[index] = function, x.detach(), *names, rest, dict(kwargs)


class _Swift(TorchFunctionMode):
    """Runs one pass: affine layers from their parts, windows' maxima as maxima of views."""

    def __init__(self, plan: _Plan, at: Sequence[Any]) -> None:
        super().__init__()
        self._plan, self._at, self._index, self._relus, self._pools = plan, at, 0, 0, 0
        self._late: Tensor | None = None

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in _AFFINE:
            index, self._index = self._index, self._index + 1
            if index in self._plan.affine:
                return self._plan.affine[index].at(self._at)
        if function is F.relu:
            place, self._relus = self._relus, self._relus + 1
            if place in self._plan.after_pool:  # the largest of what is positive is the same
                self._late = args[0]
                return args[0]
            if place in self._plan.in_place:
                return torch.relu_(args[0])
        if function is F.max_pool2d:
            self._pools += 1
            room = self._plan.room if isinstance(self._at[0], float) else None
            value = _largest_in_windows(room, self._pools, *args, **(kwargs or {}))
            late, self._late = args[0] is self._late, None
            if value is not None:
                return torch.relu_(value) if late else value
            if late:
                torch.relu_(args[0])
        return function(*args, **(kwargs or {}))


def _largest_in_windows(
    room: dict[tuple[int, ...], Tensor] | None,
    place: int,
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:
    """Max pooling by rows, then by columns; ``None`` where it has more to do than that.

    Results go to ``room``, of the same place in every pass, lest each asks for fresh memory.
    """
    size, step, pad, gap = (
        _two(v) for v in (kernel_size, stride or kernel_size, padding, dilation)
    )
    if x.device.type != "cpu" or return_indices or ceil_mode or gap != (1, 1) or max(size) > 5:
        return None
    if any(pad):
        x = F.pad(x, (pad[1], pad[1], pad[0], pad[0]), value=-math.inf)
    for axis, (width, by) in enumerate(zip(size, step, strict=True), start=-2):
        count = (x.shape[axis] - width) // by + 1
        if count < 1:
            return None
        views = [_every(x, axis, first, by, count) for first in range(width)]
        x = views[0]
        for nth, view in enumerate(views[1:]):
            kept = None if room is None else room.get((place, axis, nth))
            if kept is None or kept.shape != x.shape or kept.dtype != x.dtype:
                x = torch.maximum(x, view)
                if room is not None:
                    room[place, axis, nth] = x
            else:
                x = torch.maximum(x, view, out=kept)
    return x


def _every(x: Tensor, axis: int, first: int, by: int, count: int) -> Tensor:
    rows = slice(first, first + by * (count - 1) + 1, by)
    return x[..., rows, :] if axis == -2 else x[..., rows]


def _two(value: Any) -> tuple[int, int]:
    both = tuple(value) if isinstance(value, list | tuple) else (value, value)
    return (both[0], both[0]) if len(both) == 1 else (both[0], both[1])
