"""Files of weights that others wrote, and how they get into a network of ours.

A ``.pth`` is a pickle, which can call whatever it likes when it is read.  It is read with torch's
restricted reader (tensors and containers only), after its size, and what it would unpack to, were
compared with what the network could need; what it holds is looked at before it is copied.

Weights go in by name, or by order where the names differ.  Nothing is left as it was drawn: what
does not fit is an error that lists every tensor.  By order means that the tensors whose names only
one side knows are as many on both sides, and that each pair in the order of the layers has the same
shape and the same role (weight, bias, running mean, ...).  That is evidence, not proof: two layers
of one shape could be swapped, so it is told.
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
from dovetail.pack.tensors import dtype_name
from dovetail.parts.modules import Described
from dovetail.parts.packed import bytes_of

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
            return ForeignState(_only_tensors(_unpickled(file, path, most), path), ordered=True)
    with open_tensors(path, SPARE_TIMES * longest_header(wanted), links=True) as tensors:
        state = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
    return ForeignState(state, ordered=False)  # its writer sorts them


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
            f"{path}: not a file of weights, or it holds more than tensors{_named(error)}, which "
            "is not read; torch.save(network.state_dict(), ...) writes one"
        ) from None


def _named(error: Exception) -> str:
    """What there is beside tensors, if torch names it; the rest of what it says is no help here.

    >>> _named(ValueError("Unsupported global: GLOBAL os.system was not an allowed global")).strip()
    '(os.system)'
    >>> _named(IndexError("pop from empty list"))
    ''
    """
    name = str(error).partition("GLOBAL ")[2].partition(" was not ")[0]
    return f" ({first_line(RuntimeError(name))})" if name else ""


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


def _only_tensors(value: Any, path: Path) -> dict[str, Tensor]:
    """The plain tensors by name in what a file held."""
    if isinstance(value, Mapping) and not _is_state(value):
        nested = [key for key in (*_NESTED, *_AVERAGED) if isinstance(value.get(key), Mapping)]
        if len(nested) > 1:
            raise FormatError(
                f"{path}: holds several sets of weights, {listed(nested)}; save one alone"
            )
        value = value[nested[0]] if nested else value
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


# Put into a network -------------------------------------------------------------------------------


_ROLES = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
_COUNTER = "num_batches_tracked"


@dataclass(frozen=True)
class Match:
    """The state for the network, and how many of its tensors were found in which way."""

    state: dict[str, Tensor]
    by_name: int
    by_order: int


def matched(loaded: ForeignState, wanted: Described, path: str | Path) -> Match:
    """Each tensor that the network wants from what the file gave, or an error that lists all.

    >>> given = ForeignState({"fc.weight": torch.ones(2, 3), "fc.bias": torch.ones(2)}, True)
    >>> wanted = {"head.weight": ("float32", (2, 3)), "head.bias": ("float32", (2,))}
    >>> match = matched(given, wanted, "net.pth")
    >>> match.by_name, match.by_order, list(match.state)
    (0, 2, ['head.weight', 'head.bias'])
    """
    loaded = loaded.without_wrappers(wanted)
    tensors = dict(loaded.tensors)
    counters = [name for name in wanted if _role(name) == _COUNTER]
    if any(_role(name) == _COUNTER for name in tensors):
        counters = []
    tensors |= {
        name: torch.zeros((), dtype=torch.int64) for name in counters
    }  # once there were none
    missing = [name for name in wanted if name not in tensors]
    unexpected = [name for name in tensors if name not in wanted]
    source = {name: name for name in wanted if name in tensors}
    if missing or unexpected:
        source |= _in_order(missing, unexpected, tensors, wanted, loaded.ordered, path)
    wrong = [
        f"{shown(name)} is {_kind(tensors[source[name]])}, expected {dtype} {list(shape)}"
        for name, (dtype, shape) in wanted.items()
        if not _may_become(tensors[source[name]], dtype, shape)
    ]
    if wrong:
        raise FormatError(f"{path} is for another network: {listed(wrong, most=4)}")
    state = {n: tensors[source[n]].to(getattr(torch, wanted[n][0])).contiguous() for n in wanted}
    _refuse_not_finite(state, path)
    return Match(state, len(wanted) - len(missing) - len(counters), len(missing))


def _in_order(
    missing: list[str],
    unexpected: list[str],
    tensors: Mapping[str, Tensor],
    wanted: Described,
    ordered: bool,
    path: str | Path,
) -> dict[str, str]:
    """For each missing name the unexpected one in its place."""
    pairs = dict(zip(missing, unexpected, strict=False))
    fit = len(missing) == len(unexpected) and all(
        _may_become(tensors[theirs], *wanted[ours]) and _role(ours) == _role(theirs)
        for ours, theirs in pairs.items()
    )
    if fit and ordered:
        return pairs
    sorts = "; a safetensors file has no order of layers, a .pth has"
    raise FormatError(
        f"{path} does not fit the network: missing {_names(missing)}; "
        f"unexpected {_names(unexpected)}{sorts if missing and unexpected and not ordered else ''}"
    )


def _role(name: str) -> str:
    """What a tensor is in its layer, as far as its name says."""
    leaf = name.rpartition(".")[2]
    return leaf if leaf in _ROLES else ""


def _may_become(tensor: Tensor, dtype: str, shape: tuple[int, ...]) -> bool:
    """Whether it has the shape, and numbers of that kind, whatever their precision."""
    like = getattr(torch, dtype)
    same = tensor.dtype == like or (
        tensor.is_floating_point() == like.is_floating_point
        and tensor.is_complex() == like.is_complex
        and torch.bool not in (tensor.dtype, like)
    )
    return same and tuple(tensor.shape) == shape


def _refuse_not_finite(state: Mapping[str, Tensor], path: str | Path) -> None:
    broken = [n for n, t in state.items() if t.is_floating_point() and not t.isfinite().all()]
    if broken:
        raise FormatError(f"{path}: NaN or infinite numbers in {_names(broken)}")


def _kind(tensor: Tensor) -> str:
    return f"{dtype_name(tensor.dtype)} {list(tensor.shape)}"


def _names(names: list[str]) -> str:
    return listed([shown(name) for name in names]) or "none"
