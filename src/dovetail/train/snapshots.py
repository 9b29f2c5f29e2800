"""The networks of earlier epochs, kept while a training runs."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from dovetail.core.errors import FormatError, SettingsError, first_line
from dovetail.core.files import read_plain, write_whole
from dovetail.parts.part import Part
from dovetail.train.options import Moment
from dovetail.train.stages import HEAD

__all__ = ["Snapshots"]

_FILE = re.compile(r"epoch(\d+)\.safetensors")
_MOST_BYTES = 1 << 34


class Snapshots:
    """A callback that keeps the weights of every ``every``-th epoch.

    Of a training in modules it keeps those of the body's epochs, counted on from module to module:
    while the output module learns, the body is what it was.

    Args:
        every: Keep each how manieth epoch.
        folder: Keep them in files there, so that a run that was killed and resumed has them all.

    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.builtin import load_task
    >>> from dovetail.train.end_to_end import end_to_end
    >>> kept = Snapshots(every=2)
    >>> fit = end_to_end(build("mlp"), load_task("digits"), epochs=4, callbacks=(kept,))
    >>> list(kept.parts(fit.part))
    ['epoch 2', 'epoch 4']
    """

    def __init__(self, every: int = 1, folder: str | Path | None = None) -> None:
        if not isinstance(every, int) or every < 1:
            raise SettingsError(f"every must be a whole number of at least 1, got {every!r}")
        self._every = every
        self._folder = None if folder is None else Path(folder)
        self._kept: dict[int, dict[str, Tensor]] = {}

    def __call__(self, moment: Moment) -> None:
        """Keep the network of this epoch, if it is its turn."""
        if moment.epoch % self._every or moment.stage == HEAD:
            return
        state = {
            name: tensor.detach().cpu().contiguous().clone()
            for name, tensor in moment.module.state_dict().items()
        }
        if self._folder is None:
            self._kept[moment.epoch] = state
        else:
            write_whole(self._folder / f"epoch{moment.epoch}.safetensors", save(state))

    @property
    def epochs(self) -> tuple[int, ...]:
        """The epochs that were kept, in order."""
        if self._folder is None:
            return tuple(sorted(self._kept))
        found = (_FILE.fullmatch(path.name) for path in self._folder.glob("*"))
        return tuple(sorted(int(match[1]) for match in found if match))

    def parts(self, trained: Part) -> dict[str, Part]:
        """The network of each kept epoch, by name, in the contract of the finished part.

        What they give is in no space: nothing has been trained to agree with them.
        """
        return {f"epoch {epoch}": self._part(trained, epoch) for epoch in self.epochs}

    def _part(self, trained: Part, epoch: int) -> Part:
        module = copy.deepcopy(trained.module)
        try:
            module.load_state_dict(self._state(epoch))
        except RuntimeError as error:
            raise SettingsError(
                f"the weights of epoch {epoch} are not of this network: {first_line(error)}"
            ) from None
        gives = tuple(replace(port, space=None) for port in trained.contract.gives)
        settings: dict[str, Any] = {**trained.origin.settings, "kept_epoch": epoch}
        return trained.changed(
            module=module,
            contract=replace(trained.contract, gives=gives),
            origin=replace(trained.origin, settings=settings, measured={}),
        )

    def _state(self, epoch: int) -> dict[str, Tensor]:
        if self._folder is None:
            return self._kept[epoch]
        path = self._folder / f"epoch{epoch}.safetensors"
        try:
            return load(read_plain(path, most_bytes=_MOST_BYTES))
        except (SafetensorError, OSError) as error:
            raise FormatError(f"{path} cannot be read ({first_line(error)})") from None
