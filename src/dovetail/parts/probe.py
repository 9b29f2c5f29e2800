"""The probe: a fixed input and what a part made of it, kept to see whether it still does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from dovetail.core.errors import FormatError, first_line
from dovetail.parts.contract import Contract, Port, shown_shape
from dovetail.parts.facts import MOST_OF_PROBE
from dovetail.parts.modes import evaluating
from dovetail.parts.weights import check_header, dtype_name

__all__ = ["agrees", "record"]


def record(module: nn.Module, contract: Contract) -> dict[str, Tensor]:
    """Two fixed inputs and the outputs they give; empty when the contract does not say enough.

    >>> from dovetail.parts.contract import Port
    >>> sorted(record(nn.Linear(3, 1), Contract(takes=(Port((3,)),))))
    ['input.0', 'output.0']
    """
    inputs = []
    for port in contract.takes:
        if port.shape is None or None in port.shape or port.dtype != "float32":
            return {}
        sizes = [axis for axis in port.shape if axis is not None]
        inputs.append(torch.rand(2, *sizes, generator=torch.Generator().manual_seed(0)))
    try:
        outputs = _run(module, inputs)
    except Exception as error:  # the module is code of others
        raise FormatError(
            f"the part does not take what its contract says it takes: {first_line(error)}"
        ) from None
    if not all(isinstance(output, Tensor) for output in outputs):
        return {}
    if sum(value.nbytes for value in (*inputs, *outputs)) > MOST_OF_PROBE - (1 << 20):  # its header
        return {}
    named = {f"input.{i}": x for i, x in enumerate(inputs)}
    return named | {f"output.{i}": y.clone().contiguous() for i, y in enumerate(outputs)}


def agrees(path: Path, module: nn.Module, contract: Contract) -> bool:
    """Whether the module still gives the outputs in the file.

    Outputs are compared to 1e-4 of their size: bits differ between processors, meaning does not.
    Both must have the shapes of the contract, whose word is otherwise only its author's.
    """
    try:
        check_header(path, ())
        stored = load_file(path)
        inputs = [stored[f"input.{i}"] for i in range(len(contract.takes))]
        expected = [stored[f"output.{i}"] for i in range(len(stored) - len(inputs))]
        _check_shapes(contract.takes, inputs)
        outputs = _run(module, inputs)
        _check_shapes(contract.gives, list(outputs))
    except Exception as error:  # the file may lie, and the module is code of others
        reason = first_line(error)
        raise FormatError(f"{path}: the probe cannot be replayed ({reason})") from None
    return len(outputs) == len(expected) and all(map(_close, outputs, expected))


def _check_shapes(ports: tuple[Port, ...], values: list[Any]) -> None:
    for port, value in zip(ports, values, strict=False):
        if isinstance(value, Tensor):
            found = Port(tuple(value.shape[1:]), dtype_name(value.dtype))
            if why := port.obstacles(found):
                said = shown_shape(port.shape)
                raise FormatError(f"the contract says {said}, the probe has another {why[0]}")


def _run(module: nn.Module, inputs: list[Tensor]) -> tuple[Any, ...]:
    first = next(iter(module.state_dict().values()), None)
    device = torch.device("cpu") if first is None else first.device
    with evaluating(module), torch.random.fork_rng():
        value = module(*(x.to(device) for x in inputs))
    values = value if isinstance(value, tuple) else (value,)
    return tuple(v.cpu() if isinstance(v, Tensor) else v for v in values)


def _close(output: Any, expected: Tensor) -> bool:
    if not isinstance(output, Tensor):
        return False
    if (output.shape, output.dtype) != (expected.shape, expected.dtype):
        return False
    if not expected.is_floating_point():
        return torch.equal(output, expected)
    finite = expected[expected.isfinite()].abs()
    scale = float(finite.max()) + 1e-6 if finite.numel() else 1.0
    return torch.allclose(output, expected, rtol=1e-4, atol=1e-4 * scale, equal_nan=True)
