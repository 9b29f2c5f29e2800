"""One loop a module: its seed, its checkpoint, its callbacks, its history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dovetail.core.seeds import derived_seed
from dovetail.train.fit import WATCHED, best_epoch
from dovetail.train.loop import EpochSource, run_loop
from dovetail.train.modular_record import ModuleHistory
from dovetail.train.options import Moment, Options

__all__ = ["HEAD", "Stages", "stage_file"]

HEAD = "head"
"""What the last stage is called."""


class Stages:
    """Modules trained one after the other, each frozen before the next.

    Args:
        whole: The network they are modules of, for callbacks.
        options: For every loop.
        seed: Each stage gets one derived from it.
        identity: Facts that the checkpoints of all stages share.
        label: Words beside the progress bar.
    """

    def __init__(
        self, whole: nn.Module, options: Options, seed: int, identity: dict[str, Any], label: str
    ) -> None:
        self._whole, self._options, self._seed = whole, options, seed
        self._identity, self._label = identity, label
        self.done: list[ModuleHistory] = []

    def seed_of(self, name: str) -> int:
        """A seed for one stage."""
        return derived_seed(self._seed, "stage", name)

    def skip(self, name: str) -> None:
        """Leave a module as it is."""
        self.done.append(ModuleHistory(name, "frozen"))

    def run(
        self,
        name: str,
        objective: str,
        module: nn.Module,
        batches: EpochSource,
        step: Callable[[Any], Tensor],
        validate: Callable[[], dict[str, float]] | None,
        *,
        epochs: int,
        patience: int | None,
    ) -> None:
        """Train one module, then leave it in evaluation mode: no later stage changes it."""
        rows = run_loop(
            module,
            batches,
            step,
            replace(
                self._options,
                epochs=epochs,
                patience=patience,
                checkpoint=stage_file(self._options.checkpoint, name),
                callbacks=tuple(self._told(callback, name) for callback in self._options.callbacks),
            ),
            validate=validate,
            seed=self.seed_of(name),
            identity={**self._identity, "stage": name},
            label=f"{self._label}, {name}",
        )
        module.eval()
        module.zero_grad(set_to_none=True)
        watched = patience is not None and WATCHED in rows[-1]
        kept = best_epoch(rows) + 1 if watched else len(rows)
        shown = rows if name == HEAD else tuple(_as_proxy(row) for row in rows)
        self.done.append(ModuleHistory(name, objective, shown, kept))

    def _told(self, callback: Callable[[Moment], Any], stage: str) -> Callable[[Moment], Any]:
        before = sum(len(history.rows) for history in self.done)
        return lambda moment: callback(
            Moment(before + moment.epoch, self._whole, moment.measures, stage)
        )


def stage_file(file: str | Path | None, stage: str) -> Path | None:
    """A stage's own checkpoint, named after the one that was asked for.

    >>> print(stage_file("runs/net.safetensors", "module1"))
    runs/net.module1.safetensors
    """
    if file is None:
        return None
    path = Path(file)
    return path.with_name(f"{path.stem}.{stage}{path.suffix}")


def _as_proxy(row: dict[str, float]) -> dict[str, float]:
    """A body's row: what the loop minimises is the proxy with its sign turned."""
    words = {"loss": "proxy", WATCHED: "validation proxy"}
    return {words.get(k, k): -value if k in words else value for k, value in row.items()}
