"""What frozen layers give for every example, kept instead of computed again in every epoch.

In memory, or in a file that is mapped into it.  The file has no name from the start (where the
system allows that), so that nothing is left behind by a run that is killed.  With augmentation
there is nothing to keep: every epoch has images of its own, and what the layers make of a shifted
image is not what they make of the image, shifted.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dovetail.core.errors import SettingsError, TrainingError, argument, first_line
from dovetail.measure.forward import outputs_of
from dovetail.parts.norms import uses_batch_statistics
from dovetail.parts.part import Part

GIB = 1 << 30


@dataclass(frozen=True)
class Keeping:
    """Where features are kept, and how many bytes of them at most.

    Attributes:
        keep: ``"memory"`` or ``"disk"``, an error where they take more; ``"none"``; ``"auto"``: in
            memory where they fit, and nowhere else, for a folder of temporary files may itself be
            in memory.
        limit: In bytes.
        folder: Where the file is; by default where the system has its temporary files.
        at_once: How many examples go through the layers at a time, at most.

    >>> from dovetail.parts.part import Part
    >>> whole = Part(torch.nn.Flatten())
    >>> Keeping("disk", 1000).kept(whole, torch.ones(5, 2, 2), torch.tensor([0, 3])).shape
    torch.Size([2, 4])
    >>> Keeping("auto", 10).kept(whole, torch.ones(5, 2, 2), torch.tensor([0, 3])) is None
    True
    """

    keep: str = "auto"
    limit: int = GIB
    folder: str | Path | None = None
    at_once: int = 512

    def kept(self, before: Part, inputs: Tensor, rows: Tensor) -> Tensor | None:
        """What ``before`` gives for these rows of the inputs, ``[rows, ...]``; none if not kept."""
        if self.keep == "none":
            return None
        if uses_batch_statistics(before.module):
            if self.keep == "auto":
                return None
            raise SettingsError(
                "these layers use the statistics of each batch, so what they give cannot be kept; "
                f"say {argument('keep', 'none')}"
            )
        one = outputs_of(before, inputs.index_select(0, rows[:1]))
        size = one.numel() * one.element_size() * len(rows)
        if size + 8 * len(rows) > self.limit:  # a target goes with each row
            if self.keep == "auto":
                return None
            raise SettingsError(
                f"the features of {len(rows)} examples take {size / GIB:.3g} GiB, more than "
                f"{self.limit / GIB:.3g}; say {argument('keep_gib', math.ceil(size / GIB))}, or "
                f"{argument('keep', 'none')} to compute them in every epoch"
            )
        if self.keep == "disk":
            return self._on_disk(before, inputs, rows, one, size)
        return outputs_of(before, inputs, rows=rows, batch_size=self.at_once)

    def _on_disk(
        self, before: Part, inputs: Tensor, rows: Tensor, one: Tensor, size: int
    ) -> Tensor:
        folder = Path(self.folder or tempfile.gettempdir())
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if (free := shutil.disk_usage(folder).free) < size:
                raise OSError(f"{free / GIB:.3g} GiB are free there")
            with tempfile.TemporaryFile(dir=folder, prefix=".dovetail-features-") as file:
                for some in torch.split(rows, self.at_once):
                    part = outputs_of(before, inputs, rows=some)
                    file.write(part.contiguous().numpy().data)
                file.flush()
                shape = (len(rows), *one.shape[1:])
                # Copy-on-write: torch wants to be able to write, and nobody does.
                mapped = np.memmap(file, one.numpy().dtype, "c", shape=shape)
        except OSError as error:
            raise TrainingError(
                f"{size / GIB:.3g} GiB of features do not go into {folder} ({first_line(error)}); "
                f"make room, or say {argument('keep', 'none')}: layers that were trained are kept "
                f"if there is a checkpoint"
            ) from error
        return torch.from_numpy(mapped)


NOWHERE = Keeping("none")
"""Everything is computed as it is asked for."""
