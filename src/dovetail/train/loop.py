"""The one loop: steps, schedule, validation, early stopping, callbacks, checkpoints, resume.

A trainer brings batches, a step that turns a batch into a loss, and a way to validate.  What is
drawn in an epoch depends on the seed and the epoch's number alone, and a checkpoint inside an epoch
carries the generators' state: a run that was killed and resumed ends with the same bytes.

Several processes may each run it on their share of the rows and average their weights.  What
decides how the training goes on (the loss of an epoch, whether to stop, whether to save) is then
agreed upon, since a process that goes its own way would leave the others waiting.
"""

from __future__ import annotations

import copy
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor, nn

from dovetail.core.errors import DovetailError, FormatError, TrainingError, first_line
from dovetail.core.plain import from_plain
from dovetail.core.progress import Tick, progress
from dovetail.core.seeds import derived_seed, reseed
from dovetail.train.checkpoint import (
    Checkpoint,
    Progress,
    before,
    below,
    load_checkpoint,
    optimiser_state,
    random_state,
    restore_optimiser,
    restore_random_state,
)
from dovetail.train.fit import WATCHED, Row, best_epoch
from dovetail.train.options import Moment, Options, Schedule, choose_device, make_optimiser
from dovetail.train.sifting import Sifted
from dovetail.train.together import Company

_UNFIT = (LookupError, TypeError, AttributeError, ArithmeticError)
"""What an optimiser raises whose state is not one of its own."""


class EpochSource(Protocol):
    """Batches that can be drawn again from any point of any epoch."""

    def __len__(self) -> int: ...

    def epoch(self, number: int, start: int = 0) -> Iterator[Any]:
        """The batches of an epoch, from batch ``start`` on."""
        ...


def run_loop(
    module: nn.Module,
    batches: EpochSource,
    step: Callable[[Any], Tensor],
    options: Options,
    *,
    validate: Callable[[], Row] | None = None,
    seed: int = 0,
    identity: dict[str, Any] | None = None,
    label: str = "training",
    together: Company | None = None,
) -> tuple[Row, ...]:
    """Train ``module`` in place and return one row of measures an epoch.

    Args:
        module: What is optimised; the trainer has made the copy and moved it to its device.
        batches: Where batches come from.
        step: The loss of one batch, a scalar with a graph.
        options: See :class:`Options`.
        validate: Measures after each epoch; ``"validation loss"`` decides early stopping.
        seed: For everything drawn at random inside a step.
        identity: Facts that a checkpoint to resume from must share.
        label: Words beside the progress bar.
        together: For a network that is averaged with those of other processes.

    >>> from dovetail.train.supervision import Batches
    >>> line = nn.Linear(1, 1)
    >>> x = torch.linspace(-1, 1, 32)[:, None]
    >>> rows = run_loop(
    ...     line,
    ...     Batches(x, 3 * x, 8),
    ...     lambda batch: (line(batch[0]) - batch[1]).square().mean(),
    ...     Options(epochs=30, lr=0.1, weight_decay=0.0),
    ... )
    >>> round(line.weight.item(), 2)
    3.0
    """
    turns = Turns(module, batches, step, options, validate, seed, identity, together)
    return turns.go(label=label)


class Turns:
    """A training that may be run some epochs at a time; between turns it keeps its state.

    The arguments are those of :func:`run_loop`.  What is trained in other turns may change the
    batches, so that each turn may bring its own.

    >>> from dovetail.train.supervision import Batches
    >>> line, x = nn.Linear(1, 1), torch.linspace(-1, 1, 32)[:, None]
    >>> batches = Batches(x, 3 * x, 8)
    >>> step = lambda batch: (line(batch[0]) - batch[1]).square().mean()
    >>> turns = Turns(line, batches, step, Options(epochs=4))
    >>> [len(turns.go(until)) for until in (1, 1, 3, 9)]
    [1, 1, 3, 4]
    """

    def __init__(
        self,
        module: nn.Module,
        batches: EpochSource,
        step: Callable[[Any], Tensor],
        options: Options,
        validate: Callable[[], Row] | None = None,
        seed: int = 0,
        identity: dict[str, Any] | None = None,
        together: Company | None = None,
    ) -> None:
        self.run = Run(module, batches, step, options, validate, seed, identity or {}, together)
        self._stepped = False

    def go(
        self,
        until: int | None = None,
        *,
        batches: EpochSource | None = None,
        validate: Callable[[], Row] | None = None,
        label: str = "training",
        keep: bool = False,
    ) -> tuple[Row, ...]:
        """Train until so many epochs are done, by default all; the rows of all epochs so far.

        With ``keep`` the end of the turn is saved, if there is a file, however soon it comes.
        """
        run, most = self.run, self.run.options.epochs
        until = most if until is None else min(until, most)
        run.batches, run.validate = batches or run.batches, validate or run.validate
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices=devices):
            # Until there was a step, every turn reads the file: a generator's state is for the
            # epoch that it was saved in, which may be one of a later turn.
            inside = False if self._stepped else run.restore()
            due = run.epoch < until and not run.stopped
            total, done = until * len(run.batches), run.epoch * len(run.batches) + run.batch
            with (
                progress(label, total, start=min(done, total), show=run.options.show) as tick,
                between_steps() as run.interrupted,
            ):
                while run.epoch < until and not run.stopped:
                    self._stepped = True
                    for _ in run.steps(tick, inside):
                        pass
                    flags = run.stopped, run.due
                    run.settle(*(flags if run.together is None else run.together.either(*flags)))
                    inside = False
            if keep and due and run.file is not None:
                run.save(run.file)
            if run.best and (run.stopped or run.epoch == most):
                run.module.load_state_dict(run.best)
            return tuple(run.rows)

    def rest(self) -> None:
        """Let go of the batches and the validation: the next turn brings its own."""
        self.run.batches, self.run.validate = _Gone(len(self.run.batches)), None


class _Gone:
    """Batches that nobody holds any more."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def epoch(self, number: int, start: int = 0) -> Iterator[Any]:
        """There are none."""
        raise TrainingError("a turn after a rest brings its own batches")


@dataclass
class Run:
    """One training: what must survive an interruption, and the steps that change it."""

    module: nn.Module
    batches: EpochSource
    step: Callable[[Any], Tensor]
    options: Options
    validate: Callable[[], Row] | None
    seed: int
    identity: dict[str, Any]
    together: Company | None
    rows: list[Row] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)
    losses: list[Tensor] = field(default_factory=list)
    epoch: int = 0
    batch: int = 0
    stopped: bool = False
    interrupted: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        options, together = self.options, self.together
        self.asked_lr = self.identity.get("lr", options.lr)  # a stage may have a share of it
        self.identity = {**self.identity, **options.described(), "seed": self.seed}
        self.device = choose_device(options.device)
        self.trainable = [p for p in self.module.parameters() if p.requires_grad]
        if not self.trainable:
            raise TrainingError("the network has no parameter to train")
        self.optimiser = make_optimiser(options, self.trainable)
        steps = options.epochs * len(self.batches)
        self.schedule = Schedule(options.schedule, self.optimiser, steps=steps)
        # Others go on while one of them writes: several save between epochs, where all agree.
        self.alone = together is None or together.alone
        self.file = None if options.checkpoint is None else Path(options.checkpoint)
        if self.file is not None and together is not None:
            self.file = together.file(self.file)
        self.save_at = time.monotonic() + options.checkpoint_seconds

    @property
    def sifted(self) -> Sifted | None:
        """The batches, if they are of rows that are chosen before each epoch."""
        return self.batches if isinstance(self.batches, Sifted) else None

    def steps(self, tick: Tick, inside: bool = False) -> Iterator[None]:
        r"""All steps of an epoch, or those that are left of one that was resumed ``inside``.

        Each is taken when it is asked for; what comes behind the last closes the epoch, so that
        whoever asks decides when this training goes on, and settles it afterwards.
        """
        sifted, pace = self.sifted, 1.0
        if sifted is not None:
            if not inside:
                sifted.choose(self.epoch)
            pace = len(sifted) / sifted.steps  # a shorter epoch is as large a share of the training
        began = time.perf_counter()
        if not inside:
            reseed(derived_seed(self.seed, "epoch", self.epoch), self.device)
            self.losses = []
        train_mode(self.module)
        first_step = self.epoch * len(self.batches)
        words = f"loss {self.rows[-1]['loss']:.3f}" if self.rows else ""
        self.optimiser.zero_grad(set_to_none=True)  # before a batch is drawn: no step needs them
        try:
            for batch in self.batches.epoch(self.epoch, self.batch):
                self.schedule.before_step(first_step + int(self.batch * pace))
                loss = self.step(batch)
                loss.backward()  # type: ignore[no-untyped-call]
                if self.options.clip is not None:
                    nn.utils.clip_grad_norm_(self.trainable, self.options.clip)
                try:
                    self.optimiser.step()
                except _UNFIT as error:
                    raise TrainingError(
                        f"the optimiser cannot go on ({first_line(error)}); delete the checkpoint, "
                        "if it was resumed from one"
                    ) from error
                if self.together is not None:
                    self.together.stepped()
                # Read once an epoch: no step waits.  A copy, for some losses have large storages.
                self.losses.append(loss.detach().clone())
                del batch, loss  # gone before the next is drawn
                self.batch += 1
                if self.batch < len(self.batches):  # the last are for callbacks
                    self.optimiser.zero_grad(set_to_none=True)
                tick(words)
                if self.interrupted():
                    self._give_in()
                if self.alone and self.due and self.file is not None:
                    self.save(self.file)
                yield
            if sifted is not None and sifted.steps < len(sifted):
                tick(words, len(sifted) - sifted.steps)
        except (RuntimeError, ValueError) as error:  # batch norm on one example, no memory left
            if isinstance(error, DovetailError):
                raise
            raise TrainingError(f"a training step failed: {first_line(error)}") from error
        self._close_epoch(time.perf_counter() - began)

    def _give_in(self) -> NoReturn:
        """Keep what was done, if there is a place for it, and stop."""
        if self.file is None or not self.alone:
            raise KeyboardInterrupt
        self.save(self.file)
        raise KeyboardInterrupt(
            f"epoch {self.epoch + 1} of {self.options.epochs} is kept in {self.file}; "
            "the same call goes on from there"
        )

    def _close_epoch(self, seconds: float) -> None:
        losses = torch.stack(self.losses).tolist()
        mean = sum(losses) / len(losses)
        row: Row = {
            "epoch": self.epoch + 1,
            "loss": mean,
            "lr": float(self.optimiser.param_groups[0]["lr"]),
            "seconds": seconds,
        }
        if self.sifted is not None:
            row |= self.sifted.told()
        if self.together is not None:
            row |= self.together.closed(mean)
        if not math.isfinite(row["loss"]):
            own = self.options.lr
            here = "" if own == self.asked_lr else f", which is {own:.3g} in this stage"
            raise TrainingError(
                f"the loss became {row['loss']} in epoch {self.epoch + 1}; lower the learning rate "
                f"(lr={self.asked_lr}{here}), or look for extreme inputs"
            )
        if self.validate is not None:
            measures = self.validate()
            row |= measures if self.together is None else self.together.agreed(measures)
        self.rows.append(row)
        self.epoch, self.batch = self.epoch + 1, 0
        self.schedule.after_epoch(row.get(WATCHED, row["loss"]))
        self._stop_early()
        moment = Moment(self.epoch, self.module, row)
        for callback in self.options.callbacks:
            self.stopped |= callback(moment) is True

    @property
    def due(self) -> bool:
        """Whether it is time to save."""
        return self.file is not None and time.monotonic() >= self.save_at

    def settle(self, stopped: bool, due: bool) -> None:
        """What all agreed upon at the end of an epoch: whether to stop, whether to save."""
        self.stopped = stopped
        if self.file is not None and due:
            self.save(self.file)

    def _stop_early(self) -> None:
        if self.options.patience is None or WATCHED not in self.rows[-1]:
            return
        since = len(self.rows) - 1 - best_epoch(self.rows)
        if since == 0:
            self.best = {}  # gone before the next is there
            self.best = copy.deepcopy(self.module.state_dict())
        self.stopped = since >= self.options.patience

    def save(self, file: Path) -> None:
        """Write all that must survive an interruption."""
        plain, tensors = optimiser_state(self.optimiser)
        facts = {
            "epoch": self.epoch,
            "batch": self.batch,
            "rows": self.rows,
            "stopped": self.stopped,
            "optimiser": plain,
            "schedule": self.schedule.state(),
        }
        if self.together is not None:
            facts["together"], residuals = self.together.state()
            tensors |= below("residual", residuals)
        tensors |= below("module", self.module.state_dict()) | random_state(self.device)
        tensors |= below("best", self.best)
        if self.batch:
            tensors |= {"losses": torch.stack(self.losses)}
            tensors |= {} if self.sifted is None else {"chosen": self.sifted.mask}
        if not self.alone and file.exists():
            file.replace(before(file))  # others may be killed before they have written theirs
        Checkpoint(self.identity, facts, tensors).save(file)
        self.save_at = time.monotonic() + self.options.checkpoint_seconds

    def restore(self) -> bool:
        """Go back to the checkpoint, if there is one; whether it lies inside an epoch."""
        kept = self.kept()
        if self.together is None or self.file is None or not self.options.resume:
            return self.go_back(next(iter(kept.values()), None))
        chosen = self.together.newest(list(kept))
        return self.go_back(None if chosen is None else kept[chosen])

    def kept(self) -> dict[int, Checkpoint]:
        """What there is to go back to, by its epoch; of several processes two are kept."""
        if self.file is None or not self.options.resume:
            return {}
        files = [self.file] if self.alone else [self.file, before(self.file)]
        found = [each for file in files if (each := load_checkpoint(file, self.identity))]
        return {
            epoch if isinstance(epoch := each.facts.get("epoch"), int) else -1: each
            for each in found
        }

    def go_back(self, saved: Checkpoint | None) -> bool:
        """Go back to it; whether it lies inside an epoch."""
        if saved is None:
            return False
        try:
            self._go_back_to(saved)
        except Exception as error:  # a file can be damaged in more ways than we can think of
            raise FormatError(
                f"{self.file} is damaged ({first_line(error)}); delete it to start anew"
            ) from error
        return self.batch > 0

    def _go_back_to(self, saved: Checkpoint) -> None:
        come = from_plain(Progress, saved.facts, "facts")
        self.epoch, self.batch = come.epoch, come.batch
        if not (0 <= self.epoch <= self.options.epochs and 0 <= self.batch <= len(self.batches)):
            raise ValueError(f"epoch {self.epoch}, batch {self.batch}")
        self.rows, self.stopped = list(come.rows), come.stopped
        self.best = {name: t.to(self.device) for name, t in saved.named("best").items()}
        if self.best:
            self.module.load_state_dict(self.best)  # as at the end of the training, or refused now
        self.module.load_state_dict(saved.named("module"))
        restore_optimiser(self.optimiser, come.optimiser, saved)
        self.schedule.restore(come.schedule)
        if self.together is not None:
            self.together.restore(come.together or {}, saved.named("residual"))
        if self.batch and self.sifted is not None:
            self.sifted.restore(saved.tensors["chosen"])
        if self.batch:
            losses = saved.tensors["losses"]
            if losses.shape != (self.batch,) or not losses.is_floating_point():
                raise ValueError(f"losses of {list(losses.shape)}")
            self.losses = list(losses.to(self.device))
        restore_random_state(saved, self.device)


def train_mode(module: nn.Module) -> None:
    """Training mode, but for what is frozen: its statistics are part of what must not change."""
    module.train()
    for child in module.modules():
        parameters = list(child.parameters())
        if parameters and not any(p.requires_grad for p in parameters):
            child.eval()


@contextmanager
def between_steps() -> Iterator[Callable[[], bool]]:
    """Hold back Ctrl-C and SIGTERM; the function you get says whether one has come.

    So a training ends between two steps, with something whole to save.  A second one is not held
    back.  Outside the main thread Python allows no handlers, and nothing is changed.

    >>> with between_steps() as interrupted:
    ...     signal.raise_signal(signal.SIGINT)
    ...     interrupted()
    True
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def note(number: int, frame: FrameType | None) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
