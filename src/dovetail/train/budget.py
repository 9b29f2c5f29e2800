"""A memory budget as a promise: what is measured before the training is within it, or an error.

A budget is a share of what plain backpropagation of the whole network takes (a float up to 1.0), or
bytes.  :func:`segments_within` chooses which segments of a network to run again;
:func:`stage_within` makes a stage of a training layer by layer as small as need be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from dovetail.core.amounts import amount, read_budget
from dovetail.core.errors import TrainingError, argument
from dovetail.parts.norms import has_batch_norm
from dovetail.train.checkpointing import Checkpointed, Span, a_block_at_a_time, links_of
from dovetail.train.decision import Decision
from dovetail.train.link_costs import Network, link_costs
from dovetail.train.memory import AT_REST, Moments, Peak, Work, peak_by_operations
from dovetail.train.options import Options
from dovetail.train.segments import cheapest, lowest
from dovetail.train.stages import Stage
from dovetail.train.supervision import Loss

Budget = float | int | str
StepWith = Callable[[Network], Callable[[Any], Tensor]]

PIECES = (1, 2, 4, 8, 16)
"""In how many a batch may be split."""

TRIES = 8


@dataclass(frozen=True)
class Segments:
    """Segments of a network to run again, and what was measured.

    Attributes:
        spans: Of the links of the network.
        names: The first and the last link of each.
        peak: Of a step with them.
        full: Of a step of plain backpropagation.
        again: The seconds that they add to a step.
    """

    spans: tuple[Span, ...]
    names: tuple[tuple[str, str], ...]
    peak: Peak
    full: Peak
    again: float = 0.0

    def network(self, module: nn.Module) -> Network:
        """The network that runs them again."""
        return Checkpointed(module, self.spans) if self.spans else module

    @property
    def facts(self) -> dict[str, Any]:
        """For a record."""
        return {
            "peak_bytes": self.peak.bytes,
            "full_bytes": self.full.bytes,
            "recomputed": [
                first if first == last else f"{first} to {last}" for first, last in self.names
            ],
        }


def bytes_of(budget: Budget, full: int) -> int:
    """A budget in bytes, where plain backpropagation takes ``full``.

    >>> bytes_of(0.3, 1000), bytes_of(400, 1000), bytes_of("2kB", 1000)
    (300, 400, 2000)
    """
    said = read_budget(budget)
    return said if isinstance(said, int) else int(said * full)


def segments_within(
    work: Work, step_with: StepWith, budget: Budget | None, seconds: Sequence[float] | None = None
) -> Segments:
    """The cheapest segments to run again such that a step stays within the budget, measured.

    Args:
        work: The module, a batch and the options.
        step_with: Makes a step of a network, which is called in the module's place.
        budget: A share of plain backpropagation, or bytes; ``None`` for as little as can be.
        seconds: Of each link's forward; without, each costs the same.

    >>> import torch
    >>> net = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(8)))
    >>> step_with = lambda network: lambda x: network(x).sum()
    >>> chosen = segments_within(Work(net, step_with, torch.zeros(4096, 64)), step_with, 0.8)
    >>> chosen.peak.bytes <= 0.8 * chosen.full.bytes
    True
    """
    names = [name for name, _ in links_of(work.module)]
    full = _measured(work, step_with, ())
    allowed = 0 if budget is None else bytes_of(budget, full.bytes)
    if full.bytes <= allowed:
        return Segments((), (), full, full)
    blocks, held = link_costs(work, step_with, seconds)

    def outcome(spans: tuple[Span, ...], peak: Peak) -> Segments:
        named = tuple((names[a], names[z - 1]) for a, z in spans)
        again = sum(block.seconds for a, z in spans for block in blocks[a:z])
        return Segments(spans, named, peak, full, again)

    room = float(allowed - held)
    for _ in range(TRIES if budget is not None else 0):
        spans = cheapest(blocks, room)
        if spans is None:
            break
        peak = _measured(work, step_with, spans)
        if peak.bytes <= allowed:
            return outcome(spans, peak)
        room -= peak.bytes - allowed
    floors = [
        cheapest(blocks, lowest(blocks)) or (),
        tuple(a_block_at_a_time(links_of(work.module))),
    ]
    least = min((outcome(s, _measured(work, step_with, s)) for s in floors), key=_bytes)
    if budget is not None and least.peak.bytes > allowed:
        raise TrainingError(
            f"{argument('memory_budget', budget)} is {amount(allowed)}, but with activations run "
            f"again wherever that helps a step takes {_floor(least.peak, full)}; "
            f"{_remedy(least.peak)}"
        )
    return least


def _bytes(segments: Segments) -> int:
    return segments.peak.bytes


def _measured(work: Work, step_with: StepWith, spans: Sequence[Span]) -> Peak:
    def step_of(module: nn.Module) -> Callable[[Any], Tensor]:
        return step_with(Checkpointed(module, spans) if spans else module)

    return peak_by_operations(replace(work, step_of=step_of))


def _floor(least: Peak, full: Peak) -> str:
    return (
        f"at least {amount(least.bytes)} ({least.bytes / full.bytes:.2f} of plain "
        f"backpropagation's {amount(full.bytes)}), which {least.where or 'the loss'!r} sets"
    )


def _remedy(least: Peak) -> str:
    constant = least.parameters + least.optimiser + least.gradients
    if constant > least.bytes / 2:
        return "weights, their gradients and the optimiser are most of it: take a smaller network"
    return f"say that much, or a smaller {argument('batch_size')}"


# Stages -------------------------------------------------------------------------------------------


class _Whole(nn.Module):
    """What a stage holds: the frozen layers and the network that is trained."""

    def __init__(self, below: nn.Module, network: nn.Module) -> None:
        super().__init__()
        self.below, self.network = below, network


def stage_work(
    stage: Stage,
    batch: tuple[Tensor, Tensor],
    loss: Loss,
    options: Options,
    beside: int = 0,
    moments: Moments = AT_REST,
) -> Work:
    """A step of a stage from prepared inputs and targets: feed, forward, backward."""
    whole = _Whole(stage.below.module, stage.build())

    def step_of(module: nn.Module) -> Callable[[Any], Tensor]:
        below, network = module.get_submodule("below"), module.get_submodule("network")
        below.eval()

        def step(batch: tuple[Tensor, Tensor]) -> Tensor:
            inputs, targets = batch
            return stage.loss(network, stage.through(below, inputs), targets, loss)

        return step

    return Work(whole, step_of, batch, options, whole.network, beside, *moments)


def stage_peak(
    stage: Stage,
    batch: tuple[Tensor, Tensor],
    loss: Loss,
    options: Options,
    beside: int = 0,
    moments: Moments = AT_REST,
    by: Callable[[Work], Peak] = peak_by_operations,
) -> Peak:
    """The peak of one step of a stage, with the frozen layers that feed it.

    Args:
        stage: As it would be trained.
        batch: Prepared inputs of the network, and targets.
        loss: Of outputs and targets.
        options: Which optimiser.
        beside: Bytes that others hold, such as the layers above.
        moments: What comes between steps.
        by: Which means.
    """
    return by(stage_work(stage, batch, loss, options, beside, moments))


def stage_within(
    stage: Stage,
    budget: int,
    batch: tuple[Tensor, Tensor],
    loss: Loss,
    options: Options,
    *,
    beside: int = 0,
    moments: Moments = AT_REST,
) -> tuple[Stage, Peak]:
    """The stage, made as small as need be for its measured peak to be within ``budget`` bytes.

    Tried are, best first, smaller decision blocks; then batches in pieces, and activations that are
    run again.  Running again gives the same gradients.  Pieces do, too, unless there are batch
    norms, which then see a piece at a time; so with batch norms in the layers, running again is
    tried before pieces.

    Raises:
        TrainingError: Where none is small enough; it names the least, and the layer that sets it.
    """
    made, peak = smaller(stage, budget, batch, loss, options, beside=beside, moments=moments)
    if peak.bytes > budget:
        raise TrainingError(floor_words(made, peak, budget))
    return made, peak


def smaller(
    stage: Stage,
    budget: int,
    batch: tuple[Tensor, Tensor],
    loss: Loss,
    options: Options,
    *,
    beside: int = 0,
    moments: Moments = AT_REST,
) -> tuple[Stage, Peak]:
    """As :func:`stage_within`, but where none is small enough, the smallest that there is."""
    least: tuple[Stage, Peak] | None = None
    for pieces, again in _ways(has_batch_norm(stage.layers), len(batch[0])):
        sizes = [
            replace(stage, micro=pieces, checkpoint=again, decision=size)
            for size in _smaller(stage.decision, stage.shape)
        ]
        peak = stage_peak(sizes[-1], batch, loss, options, beside, moments)
        if least is None or peak.bytes < least[1].bytes:
            least = sizes[-1], peak
        if peak.bytes > budget:
            continue
        for candidate in sizes[:-1]:
            larger = stage_peak(candidate, batch, loss, options, beside, moments)
            if larger.bytes <= budget:
                return candidate, larger
        return sizes[-1], peak
    assert least is not None
    return least


def floor_words(stage: Stage, least: Peak, budget: int, *, features: bool = False) -> str:
    """Why a stage cannot be trained within a budget; ``features`` are kept in memory."""
    kept = f" (kept features included: say {argument('keep', 'none')})" if features else ""
    return (
        f"stage {stage.name!r} cannot be trained within {amount(budget)}: with the smallest "
        f"decision block, a batch in pieces and activations run again it still takes "
        f"{amount(least.bytes)}{kept}, which {layer_words(least, stage)!r} sets; {_remedy(least)}"
    )


def layer_words(peak: Peak, stage: Stage) -> str:
    """The layer that sets a stage's peak, by its name in the network."""
    where = peak.where.removeprefix("network.").removeprefix("below.")
    if where.startswith("decision"):
        return "the head" if stage.decision is None else "the decision block"
    if where.startswith("layers."):  # of a stage, counted
        return ".".join(where.split(".")[2:]) or where
    return where or "the loss"


def _ways(normed: bool, examples: int) -> Iterator[tuple[int, bool]]:
    """Pieces, and whether to run again: those first that change least."""
    most = examples // 2 if normed else examples  # a norm needs two examples
    pieces = [n for n in PIECES if n <= max(1, most)]
    if normed:
        yield from ((n, again) for n in pieces for again in (False, True))
    else:
        yield from ((n, again) for again in (False, True) for n in pieces)


def _smaller(decision: Decision | None, shape: tuple[int, ...]) -> list[Decision | None]:
    """Decision blocks from this one to the smallest: fewer channels, then fewer positions."""
    if decision is None or len(shape) != 3:
        return [decision]
    sizes = [decision]
    while sizes[-1].channels > 16 and sizes[-1].convs:
        sizes.append(replace(sizes[-1], channels=max(16, sizes[-1].channels // 2)))
    while sizes[-1].pool < 4 and min(shape[1:]) // (2 * sizes[-1].pool) >= 2:
        sizes.append(replace(sizes[-1], pool=2 * sizes[-1].pool))
    if sizes[-1].convs > 1:
        sizes.append(replace(sizes[-1], convs=1))
    return list(sizes)
