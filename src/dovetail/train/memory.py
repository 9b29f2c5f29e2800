"""The most bytes that one training step holds at a time, found by two independent means.

Counted are the tensors that are alive: parameters and buffers, the optimiser's state, the batch,
gradients, what is saved for the backward pass, and what is only passing through.  Two tensors with
one storage count once, and a batch counts as itself even where it is a view of the whole data set.
Not counted are Python, the data set, and what a kernel borrows and returns while it runs.

- :func:`peak_by_operations` looks at the results of *every operation* (a ``TorchDispatchMode``).
- :func:`peak_by_hooks` keeps books from what *autograd and the layers* tell: tensors saved for the
  backward pass, inputs and outputs of layers, gradients as they arrive.

Both run one step with fake tensors, which have a size and no values: no arithmetic, no memory, and
the same bytes.  Where a step needs values (a loss with ``.item()``), it is run on a copy.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import checkpoint as recomputing
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from dovetail.train.loop import train_mode
from dovetail.train.options import Options, make_optimiser

Step = Callable[[Any], Tensor]


class Moments(NamedTuple):
    """What comes beside steps: :class:`Work` says what each is."""

    drawing: int = 0
    between: int = 0


AT_REST = Moments()


@dataclass(frozen=True)
class Work:
    """A training step, to be tried on a copy.

    Attributes:
        module: What is trained.
        step_of: Makes the step of a module: a batch to its loss.
        batch: Tensors, in any nesting.
        options: Which optimiser.
        trained: Of the module, what the optimiser steps; by default all of it.
        beside: Bytes that are held all the time by what is not in the module.
        drawing: Bytes that come as a batch is drawn, that batch included.
        between: Bytes that come between two steps, when gradients are there and activations not.
    """

    module: nn.Module
    step_of: Callable[[nn.Module], Step]
    batch: Any
    options: Options = field(default_factory=Options)
    trained: nn.Module | None = None
    beside: int = 0
    drawing: int = 0
    between: int = 0

    @property
    def weights(self) -> list[nn.Parameter]:
        """Those that are trained."""
        return [p for p in (self.trained or self.module).parameters() if p.requires_grad]


@dataclass(frozen=True)
class Peak:
    """The bytes of a step at its worst moment, and in which layer that is.

    Attributes:
        bytes: All that is alive at that moment.
        where: The layer that runs then, forward or backward.
        parameters: Those and the buffers, all through the step.
        optimiser: Its state, all through the step.
        batch: The inputs and targets.
        gradients: Of all parameters that are trained, from the end of the backward pass on.
    """

    bytes: int
    where: str
    parameters: int
    optimiser: int
    batch: int
    gradients: int

    @property
    def activations(self) -> int:
        """What is there for the backward pass, or passing through, at the worst moment at least."""
        return self.bytes - self.parameters - self.optimiser - self.batch


class Live:
    """Bytes of the storages that are alive, of those that it has been shown.

    >>> live, x = Live(), torch.zeros(10)
    >>> live.see(x, x[2:]); live.now
    40
    >>> del x; live.now
    0
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._count = 0
        self.now = self.peak = self._high = 0
        self.at = self.where = ""

    def see(self, *values: Any) -> None:
        """Count the tensors among these until they are gone."""
        for tensor in tree_leaves(values):
            if not isinstance(tensor, Tensor):
                continue
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key not in self._seen:
                gone = weakref.ref(storage, partial(self._lose, key, size))
                self._count += 1
                self._seen[key] = self._count, gone
                self.now += size

    def knows(self, tensor: Tensor) -> bool:
        """Whether it was shown the tensor's storage."""
        return tensor.untyped_storage()._cdata in self._seen

    def number(self, tensor: Tensor) -> int:
        """A number for the tensor's storage that no other one has had."""
        self.see(tensor)
        return self._seen[tensor.untyped_storage()._cdata][0]

    def _lose(self, key: int, size: int, _: object = None) -> None:
        self._seen.pop(key, None)
        self.now -= size

    def mark(self, more: int = 0) -> None:
        """Remember this moment if it is the worst, with ``more`` bytes that are about to come."""
        self._high = max(self._high, self.now + more)
        if self.now + more > self.peak:
            self.peak, self.where = self.now + more, self.at

    def lap(self) -> int:
        """The worst since the last time that this was asked."""
        high, self._high = max(self._high, self.now), self.now
        return high


def peak_by_operations(work: Work, *, fake: bool = True) -> Peak:
    """The peak of one step by the results of every operation.

    >>> net = nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 1))
    >>> work = Work(net, lambda net: lambda x: net(x).sum(), torch.zeros(1000, 100))
    >>> peak_by_operations(work).activations // 1000  # 200 KB each: ReLU's output, two gradients
    600
    """
    return _peak(work, by_operations, fake)


def peak_by_hooks(work: Work, *, fake: bool = True) -> Peak:
    """The peak of one step by what autograd and the layers tell.

    >>> net = nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 1))
    >>> work = Work(net, lambda net: lambda x: net(x).sum(), torch.zeros(1000, 100))
    >>> peak_by_hooks(work).activations // 1000
    600
    """
    return _peak(work, _hooks, fake)


# Discovery ----------------------------------------------------------------------------------------


class Results(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Shows the result of every operation to a counter."""

    def __init__(self, live: Live) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._live = live

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._live.see(result)
        self._live.mark()
        return result


@contextmanager
def by_operations(module: nn.Module, live: Live) -> Iterator[None]:
    """Show every result to a counter, which is told the layer that runs."""

    def backwards(name: str, layer: nn.Module, coming: int, gradient: Tensor) -> None:
        live.at = name

    with _layers(module, live, lambda *_: None, backwards), Results(live):
        yield


@contextmanager
def _hooks(module: nn.Module, live: Live) -> Iterator[None]:
    given: dict[str, int] = {}  # what each layer gives, in bytes

    def forwards(inputs: Any, *output: Any) -> None:
        live.see(inputs, output)
        live.mark()
        if output:
            given[live.at] = sum(t.nbytes for t in tree_leaves(output) if isinstance(t, Tensor))

    def backwards(name: str, layer: nn.Module, coming: int, gradient: Tensor) -> None:
        live.at = name
        live.see(gradient)
        own = (p for p in layer.parameters() if p.requires_grad and p.grad is None)
        live.mark(coming + sum(p.nbytes for p in own))

    def saved(tensor: Tensor) -> Tensor:
        live.see(tensor)
        return tensor.detach()

    def arrived(parameter: Tensor) -> None:
        live.see(parameter.grad)
        live.mark()

    with ExitStack() as stack:
        for parameter in module.parameters():
            if parameter.requires_grad:
                hook = parameter.register_post_accumulate_grad_hook
                handle = hook(arrived)  # type: ignore[no-untyped-call]
                stack.callback(handle.remove)
        stack.enter_context(_layers(module, live, forwards, backwards))
        stack.enter_context(_seeing_recomputed(live, given))
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(saved, lambda tensor: tensor))
        yield


@contextmanager
def _layers(
    module: nn.Module,
    live: Live,
    forwards: Callable[..., None],
    backwards: Callable[[str, nn.Module, int, Tensor], None],
) -> Iterator[None]:
    """Tell of each innermost layer when it begins and has run, and when its backward pass begins.

    ``forwards`` hears of inputs first, and of outputs too when they are there: a recomputation may
    end inside a layer.  ``backwards`` hears how many bytes the gradients of the inputs will take.
    """

    def begins(name: str) -> Callable[..., None]:
        def note(layer: nn.Module, inputs: Any) -> None:
            live.at = name
            forwards(inputs)

        return note

    def ends(name: str) -> Callable[..., None]:
        def note(layer: nn.Module, inputs: Any, output: Any) -> None:
            forwards(inputs, output)
            first = next((t for t in tree_leaves(output) if isinstance(t, Tensor)), None)
            passed_on = any(first is each for each in tree_leaves(inputs))
            if first is None or passed_on or not first.requires_grad:
                return
            coming = sum(
                t.nbytes
                for t in tree_leaves(inputs)
                if isinstance(t, Tensor)
                and t.requires_grad
                and t.untyped_storage()._cdata != first.untyped_storage()._cdata
            )
            begun = partial(backwards, name, layer, coming)
            first.register_hook(begun)  # type: ignore[no-untyped-call]

        return note

    with ExitStack() as stack:
        for name, layer in module.named_modules():
            if next(layer.children(), None) is None:
                stack.callback(layer.register_forward_pre_hook(begins(name)).remove)
                stack.callback(layer.register_forward_hook(ends(name)).remove)
        yield


@contextmanager
def _seeing_recomputed(live: Live, given: dict[str, int]) -> Iterator[None]:
    """Also see what a checkpointed segment saves when it is run again, under hooks of its own.

    It stops inside the layer that saves the last tensor.  If that is an input of the layer, the
    output is there as well, and nobody tells.
    """
    usual = recomputing._recomputation_hook

    class Seeing(usual):  # type: ignore[misc, valid-type]
        def __init__(self, *frame: Any) -> None:
            super().__init__(*frame)
            pack: Callable[[Tensor], Any] = self.pack_hook  # type: ignore[has-type]

            def seen(tensor: Tensor) -> Any:
                is_input = live.knows(tensor)
                live.see(tensor)
                live.mark()
                try:
                    return pack(tensor)
                except recomputing._StopRecomputationError:
                    live.mark(given.get(live.at, 0) if is_input else 0)
                    raise

            self.pack_hook = seen

    recomputing._recomputation_hook = Seeing  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        recomputing._recomputation_hook = usual  # type: ignore[misc]


# A step on a copy ---------------------------------------------------------------------------------

Discovery = Callable[[nn.Module, Live], Any]


def _peak(work: Work, discovery: Discovery, fake: bool) -> Peak:
    state, passing = optimiser_needs(work.options, work.weights)
    with torch.random.fork_rng(devices=[]):
        live, held, batch = tried(work, discovery, fake=fake, state=state)
    gradients = sum(p.nbytes for p in work.weights)
    # The optimiser's turn: nothing is saved any more, all gradients are there.
    at_the_end = held + state + batch + gradients + passing
    next_one = held + state + max(work.drawing, gradients + work.between)
    moments = {live.where: live.peak, "the optimiser": at_the_end, "the next batch": next_one}
    where = max(moments, key=lambda name: moments[name])
    return Peak(moments[where], where, held, state, batch, gradients)


def tried(
    work: Work, discovery: Discovery, *, fake: bool = True, state: int = 0
) -> tuple[Live, int, int]:
    """Run forward and backward once on a copy.

    Args:
        work: What to run.
        discovery: A context in which a counter is shown what comes to be.
        fake: Without values, where that can be.
        state: Bytes of the optimiser's state, which count all the time.

    Returns:
        The counter, the bytes that the module holds, and those of the batch.
    """
    if fake:
        from torch._subclasses.fake_tensor import FakeTensorMode

        try:
            return _step(work, discovery, state, FakeTensorMode(allow_non_fake_inputs=True))
        except Exception:  # it needs values; a mistake of the caller comes again below
            pass
    return _step(work, discovery, state, None)


def _step(work: Work, discovery: Discovery, state: int, mode: Any) -> tuple[Live, int, int]:
    """Forward and backward on a copy: what was counted, what the copy holds, and the batch."""
    module = _twin(work.module, mode)
    of_batch = (lambda t: t.detach().clone()) if mode is None else _alone(mode)
    batch = tree_map_only(Tensor, of_batch, work.batch)
    for parameter in module.parameters():
        parameter.grad = None
    train_mode(module)
    live = Live()
    with nullcontext() if mode is None else mode:
        live.see(*module.parameters(), *module.buffers())
        live.now += work.beside
        held = live.now
        live.see(batch)
        in_batch = live.now - held
        live.now += state
        step = work.step_of(module)
        with discovery(module, live):
            step(batch).backward()  # type: ignore[no-untyped-call]
            live.mark()
    return live, held, in_batch


def _twin(module: nn.Module, mode: Any) -> nn.Module:
    """A copy, of fake tensors where there is a mode."""
    originals = chain(module.parameters(), module.buffers())
    memo = {} if mode is None else {id(t): mode.from_tensor(t) for t in originals}
    return copy.deepcopy(module, memo)


def forward_bytes(module: nn.Module, x: Tensor) -> int:
    """The most that a forward pass without gradients holds beside the module and its input.

    >>> forward_bytes(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), torch.zeros(10, 4))
    640
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    def passed(mode: Any) -> int:
        twin, live = _twin(module, mode).eval(), Live()
        given = x.detach().clone() if mode is None else _alone(mode)(x)
        with torch.no_grad(), nullcontext() if mode is None else mode:
            live.see(*twin.parameters(), *twin.buffers(), given)
            before = live.now
            with Results(live):
                twin(given)
            return live.peak - before

    try:
        return passed(FakeTensorMode(allow_non_fake_inputs=True))
    except Exception:  # it needs values
        return max(0, passed(None))


def _alone(mode: Any) -> Callable[[Tensor], Tensor]:
    """A fake tensor of the shape of one that may be a view of a whole data set."""

    def fake(tensor: Tensor) -> Tensor:
        with mode:
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)

    return fake


def optimiser_needs(options: Options, trained: list[nn.Parameter]) -> tuple[int, int]:
    """The bytes of the optimiser's state, and the most that its step takes beside."""
    try:  # tensors that have a size and no memory
        return _needs(options, [torch.zeros_like(p, device="meta") for p in trained])
    except (RuntimeError, NotImplementedError):
        return _needs(options, [torch.zeros_like(p) for p in trained])


def _needs(options: Options, like: list[Tensor]) -> tuple[int, int]:
    if not like:
        return 0, 0
    twins = [nn.Parameter(each) for each in like]
    optimiser = make_optimiser(options, twins)
    for twin in twins:
        twin.grad = torch.zeros_like(twin)
    optimiser.step()
    state, both = Live(), Live()
    state.see(list(optimiser.state.values()))
    both.see(twins, [twin.grad for twin in twins], list(optimiser.state.values()))
    before = both.now
    with Results(both):
        optimiser.step()
    return state.now, max(0, both.peak - before)
