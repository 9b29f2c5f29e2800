"""A part as a file that runs without dovetail: ONNX, or a program of torch.export.

What is written takes the part's input in batches of any size and gives its output.  Where the part
has a preprocessing, its scale, mean and standard deviation are inside unless that is not wanted, so
that pixels from 0 to 1 go in; resizing and colours are left to the caller.  The file says all of it
beside the names of the classes: ONNX in its metadata, a program in ``extra_files``.

Before there is a file, what will be in it is loaded by the runtime it is for, and its outputs are
compared with the part's: on the inputs of the part's probe, and on a random batch of another size.
"""

from __future__ import annotations

import copy
import io
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.core.declared import text, when
from dovetail.core.errors import ContractError, FormatError, argument, first_line
from dovetail.core.extras import need
from dovetail.core.files import write_whole
from dovetail.core.plain import to_plain
from dovetail.core.records import Record
from dovetail.parts.contract import Contract
from dovetail.parts.linearized import LinearizedNetwork
from dovetail.parts.modules import evaluating
from dovetail.parts.norms import uses_batch_statistics
from dovetail.parts.part import Part, as_part
from dovetail.settings.export import Export, format_of

FACTS = "dovetail"
"""The key of the metadata, and the name of the file inside a program."""

_MOST_OF_ONNX = 2**31 - 1  # bytes of a protocol buffer
_RANDOM_BATCH = 5


@dataclass(frozen=True, kw_only=True)
class Exported(Record, kind="export", title="{part} as {format}"):
    """What was written, and how far its outputs were from the part's.

    ``largest`` is the largest output that the ``difference`` was found among.

    >>> made = Exported(part="lenet5", file="a.onnx", format="ONNX", bytes=9, difference=0.0,
    ...     largest=2.0, takes="1×8×8", pixels=True)
    >>> made.title
    'lenet5 as ONNX'
    """

    part: str
    file: str
    format: str
    bytes: int
    difference: float
    largest: float
    takes: str
    pixels: bool

    shows = (
        text("{file}: {bytes:,} bytes of {format}. It takes {takes}, in batches of any size."),
        when("pixels", text("Pixels go in from 0 to 1; they are standardised inside.")),
        text("Its outputs differ from the part's by at most {difference:.1e}, of {largest:.3g}."),
    )


def export(
    part: Part | nn.Module,
    path: str | Path,
    *,
    pixels: bool = Export.pixels,
    tolerance: float = Export.tolerance,
    replace: bool = Export.replace,
) -> Exported:
    """Write a part to ``path``, whose ending says how: ``.onnx`` or ``.pt2``.

    The file appears whole, and checked, or not at all.  A part whose output depends on the rest of
    its batch, or which is a derivative (linearised), cannot be one; neither can what torch cannot
    trace.

    Args:
        part: It takes one tensor, of a shape its contract tells, and gives one.
        path: The file.
        pixels: Standardise inside, where the part has a preprocessing.
        tolerance: How far outputs may be from the part's, as a share of the largest.
        replace: Whether a file that is there is overwritten.

    >>> import tempfile
    >>> from dovetail.parts.part import build
    >>> made = export(build("mlp", classes=2), Path(tempfile.mkdtemp()) / "net.pt2")
    >>> made.format, made.difference <= 1e-4 * made.largest
    ('torch.export', True)
    """
    Export.check({"pixels": pixels, "tolerance": tolerance, "replace": replace})
    part, path = as_part(part), Path(path)
    kind = format_of(str(path), replace=replace)
    write = _writer(kind)
    _refuse_unfit(part)
    alone = _Alone(part, pixels)
    probe, batch = (_inputs(part.contract, *how) for how in ((2, 0), (_RANDOM_BATCH, 1)))
    with evaluating(alone):
        try:
            data, run = write(alone, probe, _facts(part, alone.pixels))
        except (ContractError, ImportError):
            raise
        except Exception as error:  # torch's exporters fail in as many ways as there are modules
            raise ContractError(
                f"{part.described!r} cannot be written as {kind}: "
                f"{_said(error)}; export its halves, or the other format"
            ) from None
        difference, largest = _compared(alone, run, (probe, batch))
    if not difference <= tolerance * largest:
        raise FormatError(
            f"as {kind}, {part.described!r} gives outputs that differ by "
            f"{difference:.2g} of {largest:.2g}; nothing was written "
            f"({argument('tolerance')} is {tolerance:g} of the largest)"
        )
    write_whole(path, data)
    return Exported(
        part=part.described,
        file=str(path),
        format=kind,
        bytes=len(data),
        difference=difference,
        largest=largest,
        takes=str(part.contract).partition(" -> ")[0],
        pixels=alone.pixels,
        settings={"pixels": pixels, "tolerance": tolerance},
    )


Run = Callable[[Tensor], Tensor]
Write = Callable[[nn.Module, Tensor, dict[str, Any]], tuple[bytes, Run]]


def _writer(kind: str) -> Write:
    if kind != "ONNX":
        return _program
    for package in ("onnx", "onnxscript", "onnxruntime"):
        need(package, feature="Writing ONNX", extra="export")
    return _onnx


def _refuse_unfit(part: Part) -> None:
    contract, name = part.contract, part.described
    if len(contract.takes) != 1 or len(contract.gives) != 1:
        raise ContractError(f"{name!r} takes or gives several tensors; join it to its other half")
    shape = contract.takes[0].shape
    if shape is None or None in shape:
        raise ContractError(
            f"nobody has said which shape {name!r} takes; adopt it with {argument('example', ...)}"
        )
    if any(isinstance(child, LinearizedNetwork) for child in part.module.modules()):
        raise ContractError(
            f"{name!r} is linearised: it answers by a derivative, which neither format has. Export "
            "a probe or a fine-tuned network instead"
        )
    if uses_batch_statistics(part.module):
        raise ContractError(
            f"{name!r} normalises by its batch, so that an answer depends on the others; join it "
            f"anew with {argument('norms', 'recalibrated')}"
        )


class _Alone(nn.Module):
    r"""A copy of the part's module, behind :math:`(x - \mu / s) \cdot s / \sigma` if asked for."""

    middle: Tensor
    factor: Tensor

    def __init__(self, part: Part, pixels: bool) -> None:
        super().__init__()
        self.module = copy.deepcopy(part.module).cpu()
        how = part.contract.preprocess
        self.pixels = pixels and how is not None
        if how is not None:
            port = part.contract.takes[0]
            axes = (1, -1) + (1,) * (len(port.shape or ()) - 1)
            kind = getattr(torch, port.dtype)
            mean, std = (
                torch.tensor(each, dtype=kind).reshape(axes) for each in (how.mean, how.std)
            )
            self.register_buffer("middle", mean / how.scale)
            self.register_buffer("factor", how.scale / std)

    def forward(self, x: Tensor) -> Tensor:
        """``[n, ...]`` to what the part gives."""
        if self.pixels:
            x = (x - self.middle) * self.factor
        y: Tensor = self.module(x)
        return y


def _inputs(contract: Contract, count: int, seed: int) -> Tensor:
    """Numbers from 0 to 1; two of seed 0 are the probe's in a part's folder."""
    port = contract.takes[0]
    sizes = [axis or 0 for axis in port.shape or ()]
    drawn = torch.rand(count, *sizes, generator=torch.Generator().manual_seed(seed))
    return drawn.to(getattr(torch, port.dtype))


def _facts(part: Part, pixels: bool) -> dict[str, Any]:
    """What the file says of itself."""
    contract = part.contract
    return {
        "part": part.described,
        "digest": part.digest,
        "kind": contract.kind,
        "classes": contract.classes,
        "takes": to_plain(contract.takes[0]),
        "gives": to_plain(contract.gives[0]),
        "preprocess": to_plain(contract.preprocess),
        "standardises inside": pixels,
    }


def _traced(module: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(module, (example,), dynamic_shapes=({0: batch},))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of the machine it was made on
    return program


def _program(module: nn.Module, example: Tensor, facts: dict[str, Any]) -> tuple[bytes, Run]:
    """The bytes of a ``.pt2``, and what they run as once they are loaded again."""
    file = io.BytesIO()
    with warnings.catch_warnings(action="ignore"):  # the exporters speak of their own insides
        torch.export.save(
            _traced(module, example), file, extra_files={f"{FACTS}.json": json.dumps(facts)}
        )
        file.seek(0)
        loaded = torch.export.load(file).module()
    return file.getvalue(), lambda x: loaded(x)


def _onnx(module: nn.Module, example: Tensor, facts: dict[str, Any]) -> tuple[bytes, Run]:
    """The bytes of an ``.onnx``, and what they run as in onnxruntime."""
    runtime: Any = need("onnxruntime", feature="Writing ONNX", extra="export")
    with warnings.catch_warnings(action="ignore"):  # the exporters speak of their own insides
        made = torch.onnx.export(
            _traced(module, example),
            dynamo=True,
            input_names=["input"],
            output_names=["output"],
            verbose=False,
        )
    model: Any = made.model_proto  # type: ignore[union-attr]
    for place in (model.graph, *model.graph.node, *model.graph.value_info, *model.functions):
        place.ClearField("metadata_props")  # where each step came from in whose files
    for key, value in {FACTS: facts, **facts}.items():
        entry = model.metadata_props.add()
        entry.key = key
        entry.value = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if model.ByteSize() > _MOST_OF_ONNX:
        raise ContractError("more than two gigabytes do not go into one ONNX file; use .pt2")
    data = model.SerializeToString()
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def run(x: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"input": x.numpy()})[0])

    return data, run


def _compared(module: nn.Module, run: Run, batches: tuple[Tensor, ...]) -> tuple[float, float]:
    """The largest difference of outputs, and the largest output."""
    differences, sizes = [], [0.0]
    for x in batches:
        expected, exported = module(x), run(x)
        if exported.shape != expected.shape:
            return float("inf"), float(expected.abs().max())
        differences.append(float((exported - expected).abs().max()))
        sizes.append(float(expected.abs().max()))
    return max(differences), max(sizes)


def _said(error: Exception) -> str:
    """The last cause, which is the module's; what is above it is the exporter's."""
    while error.__cause__ is not None and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return first_line(error)
