"""What a part, and the builder that makes it, must satisfy."""

from __future__ import annotations

import copy
import json
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dovetail.core.errors import CutError, SettingsError
from dovetail.core.plain import to_plain
from dovetail.core.seeds import generator
from dovetail.parts.builders import find_builder
from dovetail.parts.cutting import cut, cut_points
from dovetail.parts.foreign.adopting import adopt
from dovetail.parts.modules import evaluating, shared_tensors, structure_of
from dovetail.parts.norms import BatchBatchNorm1d, BatchBatchNorm2d, BatchBatchNorm3d
from dovetail.parts.part import Part, build, ports_of
from dovetail.testing.failures import CheckFailed, attempt, require

ROWS = 3


@dataclass(frozen=True)
class _Subject:
    name: str
    part: Part
    inputs: tuple[Tensor, ...]

    def run(self, module: nn.Module | None = None, rows: slice = slice(None)) -> tuple[Any, ...]:
        """What the module (or another one) gives in evaluation, always as a tuple."""
        module = self.part.module if module is None else module
        with evaluating(module):
            value = module(*(x[rows].clone() for x in self.inputs))
        return value if isinstance(value, tuple) else (value,)


def check_part(
    part: Part | str, *, args: dict[str, Any] | None = None, example: Tensor | None = None
) -> None:
    """Check a part, or the builder of that name with these arguments.

    It must build from JSON arguments, the same seed giving the same weights; keep its contract; run
    in training and in evaluation, where it is deterministic, leaves the global random generators
    alone and treats each row by itself (unless it uses batch statistics); give every trainable
    parameter a gradient; survive ``deepcopy``, a cut at every listed point, and saving and loading.

    Args:
        part: A part with a recipe, or the name of a registered builder.
        args: The builder's arguments, when ``part`` is a name.
        example: A batch of inputs, for a builder that does not say what it takes.

    Raises:
        CheckFailed: says what is wrong and how to mend it.

    >>> check_part("mlp", args={"shape": [4], "hidden": [8], "classes": 3})
    """
    if isinstance(part, Part):
        if args is not None:
            raise SettingsError("args belong to a builder's name; a part has been built already")
        subject = _subject(part.described, part, example)
    else:
        subject = _built(part, args or {}, example)
    for check in _CHECKS:
        check(subject)


def _built(name: str, args: dict[str, Any], example: Tensor | None) -> _Subject:
    plain = attempt(
        lambda: json.loads(json.dumps(to_plain(args))),
        f"the arguments of {name!r} are no JSON",
        "A recipe is stored as JSON: use numbers, texts, and lists of them.",
    )
    one, two = (
        attempt(
            lambda: _build(name, plain, example),
            f"{name!r} cannot be built from {plain}",
            "Annotate every argument with a type that JSON can hold, and return an nn.Module.",
        )
        for _ in range(2)
    )
    require(
        one.digest == two.digest and structure_of(one.module) == structure_of(two.module),
        f"{name!r} gives other weights or layers when built again with the same seed",
        "Draw with torch's global generator only, not with numpy, random or the time.",
    )
    return _subject(name, one, example)


def _build(name: str, args: dict[str, Any], example: Tensor | None) -> Part:
    if example is None or find_builder(name).takes is not None:
        return build(name, **args)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = find_builder(name).build(args)
    return adopt(module, example=example, builder=name, args=args)


def _subject(name: str, part: Part, example: Tensor | None) -> _Subject:
    if example is not None:
        rows = torch.arange(ROWS) % max(len(example), 1)
        return _Subject(name, part, (example[rows],))
    draw = generator(0, "check")
    inputs = []
    for port in part.contract.takes:
        shape = [axis for axis in port.shape or (None,) if axis is not None]
        if port.shape is None or len(shape) < len(port.shape) or port.dtype != "float32":
            raise CheckFailed(
                f"nobody knows what {name!r} takes. Give the builder takes=..., or pass example=."
            )
        inputs.append(torch.rand(ROWS, *shape, generator=draw))
    return _Subject(name, part, tuple(inputs))


def _keeps_its_contract(it: _Subject) -> None:
    outputs = attempt(
        lambda: it.run(),
        f"{it.name!r} does not take a batch of {ROWS} as its contract describes",
        "Make takes= the shape of one input, without the batch axis.",
    )
    require(
        all(isinstance(output, Tensor) for output in outputs),
        f"{it.name!r} returns something other than tensors",
        "Return a tensor or a tuple of tensors; parts are joined by what crosses.",
    )
    said, ports = it.part.contract.gives, ports_of(outputs)
    wrong = [why for a, b in zip(said, ports, strict=False) for why in a.obstacles(b)]
    require(
        len(said) == len(ports) and not wrong,
        f"{it.name!r} does not give what its contract says: {', '.join(wrong) or 'other tensors'}",
        "Let dt.adopt or dt.build find the contract, instead of writing it by hand.",
    )


def _is_deterministic(it: _Subject) -> None:
    require(
        _same(it.run(), it.run()),
        f"{it.name!r} gives two answers to one input in evaluation",
        "Switch dropout and noise off when self.training is False.",
    )


def _leaves_the_generators_alone(it: _Subject) -> None:
    before = (torch.get_rng_state(), random.getstate(), str(np.random.get_state()))
    it.run()
    same = torch.equal(torch.get_rng_state(), before[0])
    require(
        same and (random.getstate(), str(np.random.get_state())) == before[1:],
        f"{it.name!r} draws from a global random generator in evaluation",
        "Draw only in training, or from a torch.Generator of its own.",
    )


def _trains(it: _Subject) -> None:
    module = copy.deepcopy(it.part.module).train()
    with torch.random.fork_rng():
        value = attempt(
            lambda: module(*(x.clone() for x in it.inputs)),
            f"{it.name!r} does not run in training",
            f"It must take a batch of {ROWS} in both modes.",
        )
    outputs = value if isinstance(value, tuple) else (value,)
    require(
        [port.shape for port in ports_of(outputs)] == [p.shape for p in ports_of(it.run())],
        f"{it.name!r} gives other shapes in training than in evaluation",
        "Return the same tensors in both modes.",
    )
    trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not trainable:
        return
    total = sum(output.square().sum() for output in outputs)
    attempt(
        lambda: torch.as_tensor(total).backward(),  # type: ignore[no-untyped-call]
        f"{it.name!r} cannot be differentiated",
        "Keep to torch operations, with no detach(), numpy() or item() on the way.",
    )
    idle = [name for name, p in trainable.items() if p.grad is None]
    require(
        not idle,
        f"no gradient reaches {', '.join(idle[:3])} of {it.name!r}",
        "Use it in forward, set requires_grad=False, or make it a buffer.",
    )


def _can_be_copied(it: _Subject) -> None:
    twin = attempt(
        lambda: copy.deepcopy(it.part.module),
        f"{it.name!r} cannot be copied by copy.deepcopy",
        "Keep locks, files, hooks and generators out of the module.",
    )
    require(
        _same(it.run(twin), it.run()) and not shared_tensors(twin, it.part.module),
        f"a deep copy of {it.name!r} gives other outputs, or shares tensors with the original",
        "Let __deepcopy__ be torch's own.",
    )


def _treats_rows_alone(it: _Subject) -> None:
    if any(map(_uses_the_batch, it.part.module.modules())):
        return
    together = it.run()
    for i in range(ROWS):
        alone = attempt(
            lambda i=i: it.run(rows=slice(i, i + 1)),  # type: ignore[misc]
            f"{it.name!r} does not take a batch of one in evaluation",
            "Do not squeeze() the batch axis away.",
        )
        close = all(
            one.shape == all_[i : i + 1].shape
            and torch.allclose(one, all_[i : i + 1], rtol=1e-4, atol=1e-5)
            for one, all_ in zip(alone, together, strict=True)
        )
        require(
            close,
            f"what {it.name!r} gives for a row depends on the rest of the batch",
            "Do not normalise or reduce over the batch axis in evaluation.",
        )


def _can_be_cut(it: _Subject) -> None:
    whole, keys = it.run(), set(it.part.module.state_dict())
    try:
        points = cut_points(it.part)
    except CutError:
        return  # a network that cannot be opened says so; it is whole or nothing
    for point in points:
        front, back = attempt(
            lambda point=point: cut(it.part, at=point),  # type: ignore[misc]
            f"{it.name!r} cannot be cut at its own point {point}",
            "Build it as an nn.Sequential, or with a forward of plain calls.",
        )
        first, second = set(front.module.state_dict()), set(back.module.state_dict())
        require(
            not first & second and first | second == keys,
            f"cut at {point}, the halves of {it.name!r} do not share out its tensors",
            "Register every tensor once, in the module that uses it.",
        )
        with evaluating(back.module):
            value = back.module(*it.run(front.module))
        require(
            _same(value if isinstance(value, tuple) else (value,), whole),
            f"cut at {point} and joined again, {it.name!r} gives other outputs",
            "Let forward depend on its inputs and self alone, not on modes or global state.",
        )


def _can_be_saved(it: _Subject) -> None:
    with tempfile.TemporaryDirectory() as place:
        loaded = attempt(
            lambda: Part.from_pretrained(
                it.part.save_pretrained(Path(place) / "part"), verify=True
            ),
            f"{it.name!r} cannot be saved and loaded",
            "Put @dt.builder on what makes it; let its arguments and its state dict say it all.",
        )
        require(
            loaded.digest == it.part.digest
            and loaded.contract == it.part.contract
            and _same(it.run(loaded.module), it.run()),
            f"{it.name!r} is another part after saving and loading",
            "Keep what changes the output in parameters, buffers or the builder's arguments.",
        )


_CHECKS = (
    _keeps_its_contract,
    _is_deterministic,
    _leaves_the_generators_alone,
    _can_be_copied,
    _trains,
    _treats_rows_alone,
    _can_be_cut,
    _can_be_saved,
)


def _same(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def _uses_the_batch(module: nn.Module) -> bool:
    own = isinstance(module, BatchBatchNorm1d | BatchBatchNorm2d | BatchBatchNorm3d)
    untracked = isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None
    return own or untracked
