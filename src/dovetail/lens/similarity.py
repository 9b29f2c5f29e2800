r"""How alike two networks are around their weights: the squared cosine of their Jacobians.

With the Jacobian :math:`J = \partial f(x) / \partial\theta` of all outputs on :math:`n` inputs, as
a matrix of :math:`n o` rows, and the tangent kernel :math:`K = J J^\top`, there are two readings.

``"parameters"``
    .. math:: \frac{\lVert J_A J_B^\top \rVert_F^2}{\lVert K_A \rVert_F \lVert K_B \rVert_F}
        = \frac{\operatorname{tr}(J_A^\top J_A J_B^\top J_B)}
               {\lVert J_A^\top J_A \rVert_F \lVert J_B^\top J_B \rVert_F} ,

    the cosine of the two Fisher (Gauss-Newton) matrices: do the same weights matter, and in the
    same combinations?  Weight :math:`p` of one network is compared with weight :math:`p` of the
    other, so it takes one architecture, and a meaning only where the weights correspond, as after
    a common start: exchanging two hidden units changes no output, and lowers the similarity.
``"functions"``
    .. math:: \frac{\langle K_A, K_B \rangle_F}{\lVert K_A \rVert_F \lVert K_B \rVert_F} ,

    the cosine of the two kernels: do the same examples learn together?  It needs no
    correspondence, and compares any architectures.

Both lie in [0, 1], and are 1 for networks with proportional Jacobians.  No Jacobian is formed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from dovetail.core.declared import heatmap, text
from dovetail.core.errors import ContractError, SettingsError, TaskError, first_line, nearest, shown
from dovetail.core.records import Record
from dovetail.core.seeds import generator
from dovetail.linalg.parameters import Choice
from dovetail.linalg.tangent import TangentFeatures
from dovetail.measure.forward import prepare, refuse_other_inputs
from dovetail.parts.part import Part
from dovetail.tasks.arrays import as_float
from dovetail.tasks.splits import Split
from dovetail.tasks.task import Task

Array = np.ndarray[Any, Any]
Parts = Sequence[Part | nn.Module] | Mapping[str, Part | nn.Module]

MEMORY = 2**31
"""Bytes of features, or of kernels, that are kept of all parts together."""


def jacobian_similarity(
    parts: Parts,
    inputs: Tensor | Array | Task,
    *,
    reading: Literal["parameters", "functions"] = "parameters",
    params: Choice = None,
    names: Sequence[str] | None = None,
    outputs: Literal["auto", "full", "trace"] = "auto",
    centred: bool = False,
    split: Split = "train",
    limit: int | None = 256,
    seed: int = 0,
) -> JacobianSimilarity:
    """How alike parts are around their weights, each with each; see the module's text.

    Features are of each network's own type, all products float64.  Networks are run in evaluation
    mode and left as they were.

    Args:
        parts: Two or more, each giving ``[n, o]``; or several by name.
        inputs: A tensor or array ``[n, ...]``, all of it used, or a task, of which ``limit``
            examples of a ``split`` are drawn.  Each part gets them through its own preprocessing, a
            plain module as they are.
        reading: ``"parameters"`` (one architecture, corresponding weights) or ``"functions"``.
        params: The parameters that count, by pattern, such as ``"conv*"``; all by default.
        names: What to call parts that come without names.
        outputs: How kernels treat several outputs (functions only).  ``"full"`` compares all pairs
            of outputs, which takes the same number of them, with the same meaning; ``"trace"``
            the sum over outputs; ``"auto"`` is full where the numbers are equal, else trace.
        centred: Take the mean over the inputs off the kernels (functions only), as CKA does.
        split: Where a task's examples come from.
        limit: How many of a task's; ``None`` for all.
        seed: Of that draw.

    >>> from dovetail.parts.part import build
    >>> nets = {f"seed {seed}": build("mlp", shape=(4,), seed=seed) for seed in (0, 1)}
    >>> found = jacobian_similarity(nets, torch.rand(20, 4), reading="functions")
    >>> found["seed 0", "seed 0"], 0 < found["seed 0", "seed 1"] < 1
    (1.0, True)
    """
    if reading not in ("parameters", "functions"):
        raise SettingsError(f'reading is "parameters" or "functions", got {shown(reading)}')
    if outputs not in ("auto", "full", "trace"):
        raise SettingsError(f'outputs is "auto", "full" or "trace", got {shown(outputs)}')
    if reading == "parameters" and (centred or outputs != "auto"):
        raise SettingsError('outputs and centred are for reading="functions"')
    known = _named(parts, names)
    x, where = _drawn(inputs, split, limit, seed)
    features = {
        name: TangentFeatures(
            part.module if isinstance(part, Part) else part,
            _ready(part, x, inputs),
            params,
            memory=MEMORY // len(known),
        )
        for name, part in known.items()
    }
    if reading == "parameters":
        outputs = "full"
        matrix = _of_parameters(features)
    else:
        widths = {one.width for one in features.values()}
        if outputs == "auto":
            outputs = "full" if len(widths) == 1 else "trace"
        if outputs == "full" and len(widths) > 1:
            raise ContractError(
                f"the parts have {', '.join(map(str, sorted(widths)))} outputs; compare the sums "
                'over outputs with outputs="trace"'
            )
        matrix = _of_functions(features, outputs, centred)
    return JacobianSimilarity(
        names=tuple(known),
        matrix=tuple(map(tuple, matrix.tolist())),
        reading=reading,
        n=len(x),
        settings=where
        | {
            "params": "a function" if callable(params) else params,
            "outputs": outputs,
            "centred": centred,
            "parameters": {name: one.size for name, one in features.items()},
        },
    )


def _of_parameters(features: Mapping[str, TangentFeatures]) -> Tensor:
    several = list(features.items())
    first, model = several[0]
    for name, other in several[1:]:
        _refuse_other_parameters(first, model, name, other)
    _refuse_too_large(8 * (len(model) * model.width) ** 2, "fewer inputs")  # one at a time
    sizes = [float(one.gram().norm()) for _, one in several]
    return _cosines(sizes, lambda i, j: float(several[i][1].gram(several[j][1]).norm()) ** 2)


def _of_functions(features: Mapping[str, TangentFeatures], outputs: str, centred: bool) -> Tensor:
    several = list(features.values())
    pairs, widest = len(several[0]) ** 2, max(one.width for one in several)
    if outputs == "full":
        _refuse_too_large(8 * pairs * widest**2 * len(several), 'fewer inputs, or outputs="trace"')
    else:  # every output of one part until they are summed
        _refuse_too_large(8 * pairs * (len(several) + widest), "fewer inputs")
    kernels = []
    for one in several:
        kernel = one.gram() if outputs == "full" else one.gram(outputs="diagonal").sum(2)
        kernels.append(_centred(kernel).cpu() if centred else kernel.cpu())
    sizes = [float(kernel.norm()) for kernel in kernels]
    return _cosines(sizes, lambda i, j: float(kernels[i].flatten() @ kernels[j].flatten()))


def _refuse_too_large(needed: int, remedy: str) -> None:
    if needed > MEMORY:
        raise TaskError(
            f"the kernels take {needed / 2**30:.1f} GiB, more than the {MEMORY / 2**30:.1f} GiB "
            f"that are kept; give {remedy} (of a task, by limit=)"
        )


def _centred(kernel: Tensor) -> Tensor:
    """Without the mean over the inputs of either side, of ``[n, m]`` or ``[n, o, m, o]``."""
    for axis in (0, kernel.ndim // 2):
        kernel = kernel - kernel.mean(axis, keepdim=True)
    return kernel


def _cosines(sizes: list[float], shared: Callable[[int, int], float]) -> Tensor:
    """Inner products ``shared(i, j)`` over both sizes: symmetric, ones on the diagonal."""
    if 0 in sizes:
        raise TaskError(
            "a part's Jacobian is zero on these inputs, so that it is like nothing: look for dead "
            "units, or give other inputs or parameters"
        )
    matrix = torch.eye(len(sizes), dtype=torch.float64)
    for j, i in combinations(range(len(sizes)), 2):
        cosine = shared(i, j) / sizes[i] / sizes[j]
        matrix[i, j] = matrix[j, i] = min(max(cosine, 0.0), 1.0)
    return matrix


def _refuse_other_parameters(
    first: str, model: TangentFeatures, name: str, other: TangentFeatures
) -> None:
    """Refuse networks whose weights do not correspond by name and shape."""
    wrong = [f"only one has {key!r}" for key in sorted(set(model.shapes) ^ set(other.shapes))]
    wrong += [
        f"{key!r} is {list(shape)} and {list(other.shapes[key])}"
        for key, shape in model.shapes.items()
        if key in other.shapes and shape != other.shapes[key]
    ]
    if model.width != other.width:
        wrong.append(f"they have {model.width} and {other.width} outputs")
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise ContractError(
            f"{first!r} and {name!r} do not share their parameters: {'; '.join(wrong[:3])}{more}. "
            'Compare them with reading="functions", or choose common ones by params='
        )


def _ready(part: Part | nn.Module, x: Tensor, inputs: Tensor | Array | Task) -> Tensor:
    """The inputs as a part's contract wants them; a plain module gets them as they are."""
    if isinstance(inputs, Task):
        if isinstance(part, Part):
            refuse_other_inputs(inputs, part.contract)
        x = as_float(x)
    if isinstance(part, Part):
        return prepare(x, part.contract).to(part.device)
    device = next((p.device for p in part.parameters()), x.device)
    return x.to(device)


def _named(parts: Parts, names: Sequence[str] | None) -> dict[str, Part | nn.Module]:
    if isinstance(parts, Mapping):
        if names is not None:
            raise SettingsError("the parts have names already; leave names= out")
        known = {str(name): part for name, part in parts.items()}
    else:
        several = [parts] if isinstance(parts, Part | nn.Module) else list(parts)
        if names is not None and (len(set(names)) != len(names) or len(names) != len(several)):
            raise SettingsError(f"names must be {len(several)} different ones, got {shown(names)}")
        words = [f"part {i + 1}" for i in range(len(several))] if names is None else names
        known = dict(zip(words, several, strict=True))
    if len(known) < 2:
        raise SettingsError(f"a similarity is of two parts or more, got {len(known)}")
    for part in known.values():
        if not isinstance(part, Part | nn.Module):
            raise ContractError(f"expected a Part or an nn.Module, got {type(part).__name__}")
    return known


def _drawn(
    inputs: Tensor | Array | Task, split: Split, limit: int | None, seed: int
) -> tuple[Tensor, dict[str, object]]:
    """The inputs, and where they come from."""
    if limit is not None and (
        isinstance(limit, bool) or not isinstance(limit, int | np.integer) or limit < 1
    ):
        raise SettingsError(f"limit must be a whole number from 1, or None, got {shown(limit)}")
    if isinstance(inputs, Task):
        x, _ = inputs.subset(split)
        if limit is not None and limit < len(x):
            order = torch.randperm(len(x), generator=generator(seed, "similarity"))
            x = x[order[:limit].sort().values]
        where: dict[str, object] = {"task": inputs.name, "split": split, "seed": seed}
    else:
        x, where = _as_tensor(inputs), {}
    if not isinstance(x, Tensor) or x.ndim == 0 or len(x) == 0:
        raise TaskError("inputs are a Task, or a tensor [n, ...] of at least one example")
    return x, where


def _as_tensor(inputs: Tensor | Array) -> Tensor:
    if not isinstance(inputs, np.ndarray):
        return inputs
    try:
        return torch.from_numpy(np.array(inputs))
    except TypeError as error:
        raise TaskError(f"inputs are numbers: {first_line(error)}") from None


@dataclass(frozen=True, kw_only=True)
class JacobianSimilarity(
    Record,
    kind="jacobian-similarity",
    title="Similarity of Jacobians ({reading})",
    brief="{names!n} parts by their {reading}, n={n}",
):
    """Similarities in [0, 1] of parts with each other, from their Jacobians on ``n`` inputs.

    ``reading`` is ``"parameters"`` (do the same weights matter to both, in the same way?) or
    ``"functions"`` (do both learn the same examples together?).  ``matrix[i][j]`` belongs to
    ``names[i]`` and ``names[j]``.

    >>> rows = ((1.0, 0.25), (0.25, 1.0))
    >>> found = JacobianSimilarity(names=("a", "b"), matrix=rows, reading="functions", n=100)
    >>> found["a", "b"]
    0.25
    """

    names: tuple[str, ...]
    matrix: tuple[tuple[float, ...], ...]
    reading: str
    n: int

    def __post_init__(self) -> None:
        shape = [len(self.names)] * len(self.names)
        if [len(row) for row in self.matrix] != shape:
            raise ValueError("similarities need a row and a column for each part")

    def __getitem__(self, pair: tuple[str, str]) -> float:
        """The similarity of two parts, by name."""
        for name in pair:
            if name not in self.names:
                raise SettingsError(f"no part {name!r} was compared{nearest(name, self.names)}")
        one, other = (self.names.index(name) for name in pair)
        return self.matrix[one][other]

    @property
    def extremes(self) -> str:
        """The most and the least alike, in words."""
        pairs = combinations(range(len(self.names)), 2)
        alike = sorted((-self.matrix[i][j], i, j) for i, j in pairs)
        said = [f"{self.names[i]} and {self.names[j]}, {-v:.3f}." for v, i, j in alike]
        return f"Most alike: {said[0]} Least: {said[-1]}" if len(said) > 1 else said[0]

    shows = (
        text("{names!n} parts on {n} inputs. {extremes}"),
        heatmap("{title}", "names", "names", "matrix", "part", "part", ".3f", (0.0, 1.0)),
    )
