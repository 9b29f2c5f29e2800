"""The state of an unfinished training, in one file that is whole or absent.

Tensors and JSON only (a safetensors file whose header carries the JSON): nothing is unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dovetail.core.errors import FormatError, SettingsError, argument
from dovetail.core.files import write_whole
from dovetail.core.folders import open_tensors, tensor_bytes
from dovetail.core.plain import parse_json, to_plain

FORMAT = 1
_KEY = "dovetail"

MOST_HEADER_BYTES = 16 << 20
"""Of facts and names of tensors; what a million steps have to say of themselves is shorter."""


@dataclass(frozen=True)
class Checkpoint:
    """Named tensors and JSON facts; ``identity`` is what a resumed run must have in common."""

    identity: dict[str, Any]
    facts: dict[str, Any]
    tensors: dict[str, Tensor]

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        facts = {"format": FORMAT, "identity": self.identity, "facts": self.facts}
        try:
            header = json.dumps(to_plain(facts))
        except TypeError as error:
            raise SettingsError(f"this training cannot be checkpointed: {error}") from None
        write_whole(path, tensor_bytes(self.tensors, {_KEY: header}))

    def named(self, prefix: str) -> dict[str, Tensor]:
        """The tensors below a prefix, without it."""
        return {
            name.removeprefix(prefix + "/"): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(prefix + "/")
        }


@dataclass(frozen=True)
class Progress:
    """How far a training had come, as the facts of its checkpoint say."""

    epoch: int
    batch: int
    rows: tuple[dict[str, int | float], ...]
    stopped: bool
    optimiser: OptimiserFacts
    schedule: dict[str, Any]
    together: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if len(self.rows) != self.epoch:
            raise FormatError(f"{len(self.rows)} rows of {self.epoch} epochs")
        if not all(row.keys() >= _ROW for row in self.rows):
            raise FormatError("a row lacks a measure")


@dataclass(frozen=True)
class OptimiserFacts:
    """What an optimiser remembers besides tensors."""

    groups: tuple[dict[str, Any], ...]
    state: dict[str, dict[str, int | float | None]]


_ROW = {"epoch", "loss", "lr", "seconds"}
"""The measures that every row has."""


def load_checkpoint(path: Path, identity: dict[str, Any]) -> Checkpoint | None:
    """Read a checkpoint of the same training; ``None`` when there is none yet."""
    if not path.exists():
        return None
    try:
        with open_tensors(path, MOST_HEADER_BYTES, links=True) as file:
            facts = parse_json((file.metadata() or {}).get(_KEY, "{}").encode(), "its facts")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except ValueError as error:
        raise FormatError(f"{path} is no checkpoint ({error}); delete it to start anew") from None
    if not _ours(facts):
        raise FormatError(f"{path} is no checkpoint of this dovetail; delete it to start anew")
    theirs, ours = facts["identity"], to_plain(identity)
    changed = sorted(key for key in {*theirs, *ours} if theirs.get(key) != ours.get(key))
    if changed:
        listed = "; ".join(f"{key} was {theirs.get(key)}, is {ours.get(key)}" for key in changed)
        raise SettingsError(
            f"{path} belongs to another training ({listed}); use the old settings, "
            f"another checkpoint file, or {argument('resume', False)}"
        )
    return Checkpoint(theirs, facts["facts"], tensors)


def before(path: Path) -> Path:
    """Where the checkpoint before the last one is kept, for trainings of several processes.

    >>> print(before(Path("runs/net.safetensors")))
    runs/net.before.safetensors
    """
    return path.with_suffix(f".before{path.suffix}")


def _ours(facts: Any) -> bool:
    return (
        isinstance(facts, dict)
        and facts.get("format") == FORMAT
        and all(isinstance(facts.get(key), dict) for key in ("identity", "facts"))
    )


def optimiser_state(optimiser: Optimizer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """An optimiser's state as JSON facts and named tensors."""
    state = optimiser.state_dict()
    plain: dict[str, Any] = {"groups": state["param_groups"], "state": {}}
    tensors = {}
    for index, values in state["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"optimiser/{index}/{name}"] = value
            else:
                plain["state"].setdefault(str(index), {})[name] = value
    return plain, tensors


def restore_optimiser(optimiser: Optimizer, facts: OptimiserFacts, saved: Checkpoint) -> None:
    """Give an optimiser back what :func:`optimiser_state` took."""
    state: dict[int, dict[str, Any]] = {
        int(index): dict(values) for index, values in facts.state.items()
    }
    for path, tensor in saved.named("optimiser").items():
        index, name = path.split("/", 1)
        state.setdefault(int(index), {})[name] = tensor
    fresh = optimiser.state_dict()["param_groups"]
    if not alike(fresh, facts.groups) or any(
        group["params"] != known["params"] for group, known in zip(facts.groups, fresh, strict=True)
    ):
        raise FormatError("settings of another optimiser")
    groups = [
        {**group, "betas": tuple(group["betas"])} if "betas" in group else group
        for group in facts.groups
    ]
    optimiser.load_state_dict({"state": state, "param_groups": groups})


def alike(fresh: Any, saved: Any) -> bool:
    """Whether a state from a file could be one that a fresh state has become: by keys and types.

    >>> alike({"lr": 0.1, "best": None}, {"lr": 1, "best": 2.5}), alike({"lr": 0.1}, {"lr": "1"})
    (True, False)
    """
    if isinstance(fresh, dict):
        return (
            isinstance(saved, dict)
            and fresh.keys() == saved.keys()
            and all(alike(value, saved[key]) for key, value in fresh.items())
        )
    if isinstance(fresh, list | tuple):
        return (
            isinstance(saved, list | tuple)
            and len(fresh) == len(saved)
            and all(map(alike, fresh, saved))
        )
    if isinstance(fresh, bool | str):
        return type(saved) is type(fresh)
    number = isinstance(saved, int | float) and not isinstance(saved, bool)
    return number or (fresh is None and saved is None)


def below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under a prefix, as :meth:`Checkpoint.named` finds them."""
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The global generators' states, so that dropout goes on where it stopped."""
    states = {"random/cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["random/cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_random_state(saved: Checkpoint, device: torch.device) -> None:
    """Set the global generators back."""
    states = saved.named("random")
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
