"""Files of weights that others wrote: safetensors, and torch's own without running what is in them.

A ``.pth`` is a pickle, which can call whatever it likes when it is read.  It is read with torch's
restricted reader (tensors and containers only), after its size, and what it would unpack to, were
compared with what the network could need; what it holds is looked at before it is copied.
"""

from __future__ import annotations

import os
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.core.errors import FormatError, first_line, shown
from dovetail.core.files import open_plain, refuse_beyond_memory
from dovetail.core.folders import longest_header, open_tensors
from dovetail.core.words import listed
from dovetail.parts.modules import Described
from dovetail.parts.packed import bytes_of

__all__ = ["ForeignState", "read_state"]

SPARE_TIMES, SPARE_BYTES = 8, 64 << 20
"""What a file may hold beside the weights: two moments and an average of a run, in float64."""

_NESTED = ("state_dict", "model_state_dict", "model", "net", "network", "weights")
_AVERAGED = ("state_dict_ema", "model_ema", "ema_state_dict")
"""Where training runs keep the weights in their files, and their running average."""

_WRAPPERS = ("module.", "_orig_mod.", "model.")
"""What wrappers put before every name: DistributedDataParallel, torch.compile, Lightning."""


@dataclass(frozen=True)
class ForeignState:
    """Tensors by name; ``ordered`` says whether their order is that of the network's layers."""

    tensors: Mapping[str, Tensor]
    ordered: bool

    def without_wrappers(self, wanted: Described) -> ForeignState:
        """The same without the prefix that a wrapper gave to all names.

        >>> state = ForeignState({"module.weight": torch.zeros(1)}, True)
        >>> list(state.without_wrappers({"weight": ("float32", (1,))}).tensors)
        ['weight']
        """
        tensors = self.tensors
        while wrapped := next((w for w in _WRAPPERS if _all_begin(tensors, w)), None):
            if _all_begin(wanted, wrapped):
                break
            tensors = {name.removeprefix(wrapped): tensor for name, tensor in tensors.items()}
        return ForeignState(tensors, self.ordered)


def read_state(path: str | Path, wanted: Described) -> ForeignState:
    """The tensors in a file of weights for a network that wants these, or a refusal.

    Nothing that is in the file is run, and nothing is read that is far larger than the network.
    """
    path = Path(path)
    most = SPARE_TIMES * bytes_of(wanted) + SPARE_BYTES
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        refuse_beyond_memory(size, path)
        if size > most:
            raise FormatError(
                f"{path}: {size} bytes, and the network takes {bytes_of(wanted)}; it is for "
                "another network, or save its weights alone"
            )
        if path.suffix != ".safetensors":
            return ForeignState(_checked(_unpickled(file, path, most), path), ordered=True)
    with open_tensors(path, SPARE_TIMES * longest_header(wanted), links=True) as tensors:
        found = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
    return ForeignState(found, ordered=False)  # its writer sorts them


def _unpickled(file: BufferedReader, path: Path, most: int) -> Any:
    if file.read(4) == b"PK\x03\x04":
        _refuse_bombs(file, path, most)
    file.seek(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old formats
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile file fails in many ways
        raise FormatError(
            f"{path}: not a file of weights, or it holds more than tensors, which is not read "
            f"({_reason(error)})"
        ) from None


def _reason(error: Exception) -> str:
    """What torch says, without its advice on how to trust the file."""
    lines = str(error).splitlines()
    said = next((line for line in lines if "GLOBAL" in line or "Unpickler error" in line), "")
    return first_line(RuntimeError(said.strip() or first_line(error)))


def _refuse_bombs(file: BufferedReader, path: Path, most: int) -> None:
    """Refuse an archive that unpacks to more than the network needs; torch never compresses."""
    try:
        members = zipfile.ZipFile(file).infolist()
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
        raise FormatError(f"{path}: a damaged archive ({first_line(error)})") from None
    if any(each.compress_type != zipfile.ZIP_STORED for each in members):
        raise FormatError(f"{path}: compressed inside, as torch never writes it")
    if sum(each.file_size for each in members) > most:
        raise FormatError(f"{path}: it unpacks to more than the network could need")


def _checked(value: Any, path: Path) -> dict[str, Tensor]:
    """The plain tensors by name in what a file held."""
    if isinstance(value, Mapping) and not _is_state(value):
        kept = [key for key in (*_NESTED, *_AVERAGED) if isinstance(value.get(key), Mapping)]
        if len(kept) > 1:
            raise FormatError(
                f"{path}: holds several sets of weights, {listed(kept)}; save one alone"
            )
        value = value[kept[0]] if kept else value
    if not isinstance(value, Mapping) or not _is_state(value):
        raise FormatError(f"{path}: no tensors by name in it; save network.state_dict()")
    for name, tensor in value.items():
        if not _is_plain(tensor):
            raise FormatError(f"{path}: {shown(name)} is no plain tensor")
    return {name: tensor.detach() for name, tensor in value.items()}


def _is_plain(tensor: Tensor) -> bool:
    """Whether it holds every number that it has: a few stored ones can pose as any number."""
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        return False
    own = tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()
    return own and type(tensor) in (Tensor, nn.Parameter)


def _is_state(value: Mapping[Any, Any]) -> bool:
    return bool(value) and all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in value.items()
    )


def _all_begin(names: Mapping[str, Any], prefix: str) -> bool:
    return bool(names) and all(name.startswith(prefix) and name != prefix for name in names)
