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
from dovetail.parts.cutting import cut
from dovetail.parts.part import Part
from dovetail.train.options import Moment
from dovetail.train.stages import HEAD

__all__ = ["Snapshots"]

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
        self._modules: dict[int, int | None] = {}

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
            self._kept[moment.epoch] = state
            self._modules[moment.epoch] = int(number[1]) if number else None
        else:
            module = f".{moment.stage}" if number else ""
            write_whole(self._folder / f"epoch{moment.epoch}{module}.safetensors", save(state))

    @property
    def epochs(self) -> tuple[int, ...]:
        """The epochs that were kept, in order."""
        return tuple(sorted(self._modules if self._folder is None else self._files()))

    def parts(self, trained: Part) -> dict[str, Part]:
        """The network of each kept epoch, by name, in the contract of the finished part.

        What they give is in no space: nothing has been trained to agree with them.  Of a training
        in modules, the body up to the module of that epoch.
        """
        return {f"epoch {epoch}": self._part(trained, epoch) for epoch in self.epochs}

    def _files(self) -> dict[int, tuple[Path, int | None]]:
        """Each kept epoch's file, and which module was being trained."""
        files = [] if self._folder is None else list(self._folder.glob("*"))
        found = {path: match for path in files if (match := _FILE.fullmatch(path.name))}
        return {
            int(match[1]): (path, int(match[2]) if match[2] else None)
            for path, match in found.items()
        }

    def _module(self, epoch: int) -> int | None:
        return self._modules[epoch] if self._folder is None else self._files()[epoch][1]

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
        origin = replace(trained.origin, settings=settings, measured={})
        contract = replace(trained.contract, gives=gives)
        whole = trained.changed(module=module, contract=contract, origin=origin)
        number = self._module(epoch)
        if number is None:
            return whole
        front, _ = cut(whole, at=trained.origin.settings["at"][number - 1])
        return front.changed(origin=origin)

    def _state(self, epoch: int) -> dict[str, Tensor]:
        if self._folder is None:
            return self._kept[epoch]
        path, _ = self._files()[epoch]
        try:
            return load(read_plain(path, most_bytes=_MOST_BYTES))
        except (SafetensorError, OSError) as error:
            raise FormatError(f"{path} cannot be read ({first_line(error)})") from None
