"""A part: a module, and what others must know to use it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.core.errors import ContractError, FormatError, argument, first_line
from dovetail.core.notebook import html_of
from dovetail.core.plain import to_plain
from dovetail.core.seeds import seeded
from dovetail.core.views import Table
from dovetail.core.words import listed, numbered
from dovetail.pack.tensors import dtype_name
from dovetail.parts import disk
from dovetail.parts.builders import find_builder, recipe_hint
from dovetail.parts.contract import Contract, Port
from dovetail.parts.facts import FILES, Origin, read_facts
from dovetail.parts.familiar import Familiar
from dovetail.parts.modules import digest_of, evaluating
from dovetail.parts.recipe import Build, Recipe, in_words, rebuild
from dovetail.parts.tracing import trailing_activation


@dataclass(frozen=True)
class Part:
    """A module and what others must know to use it.

    Composition, not inheritance: state-dict names stay the module's own, and compile, DDP or hooks
    act on ``part.module``.  Calling a part calls its module.  ``packed`` is the container that the
    weights came in, if they came packed (see :mod:`dovetail.parts.packed`), so that they can be
    written again as they are.  ``familiar`` tells inputs unlike those that the part was made on
    (:func:`dovetail.measure.familiar.familiar_with` fits it), and travels with it.

    >>> part = build("mlp", shape=(4,), hidden=(8,), classes=3)
    >>> part
    Part(mlp: 4 -> 3, 67 weights)
    >>> part(torch.zeros(2, 4)).shape
    torch.Size([2, 3])
    """

    module: nn.Module
    contract: Contract = field(default_factory=Contract)
    recipe: Recipe | None = None
    origin: Origin = field(default_factory=Origin)
    packed: bytes | None = field(default=None, repr=False)
    familiar: Familiar | None = field(default=None, repr=False)

    def __call__(self, *inputs: Tensor) -> Any:
        """What the module makes of the inputs."""
        return self.module(*inputs)

    @property
    def digest(self) -> str:
        """The sha256 of the weights' names, shapes and bytes: the part's identity in lineage."""
        return digest_of(self.module)

    @property
    def device(self) -> torch.device:
        """Where the weights are; the CPU for a part without any."""
        tensor = next(iter(self.module.state_dict().values()), None)
        return torch.device("cpu") if tensor is None else tensor.device

    def changed(self, **fields: Any) -> Part:
        """A part with some fields exchanged, the rest shared.

        Another module is no longer packed, and knows no features until they are fitted again;
        nor does one whose inputs are prepared otherwise.

        >>> build("mlp").changed(origin=Origin(how="drawn")).origin.how
        'drawn'
        """
        gone: dict[str, None] = {"packed": None, "familiar": None} if "module" in fields else {}
        if fields.get("contract", self.contract).preprocess != self.contract.preprocess:
            gone["familiar"] = None
        return replace(self, **gone | fields)

    def save_pretrained(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write the part to a folder that any dovetail can load and any hub can hold.

        A folder that is there already is an error, unless it is a part's and ``overwrite`` is set.
        Weights that came packed, and have not changed since, are written packed.
        """
        folder = Path(folder)
        if self.recipe is None:
            raise FormatError(
                f"a {type(self.module).__name__} without a recipe cannot be saved, because nothing "
                "could rebuild it. Put @dt.builder on the function that makes it, with plain "
                "keyword arguments, and make it by that function (or name it: "
                "dt.adopt(module, example=x, builder=..., args=...))."
            )
        if folder.exists() and not folder.is_dir():
            raise FormatError(f"{folder} is a file; choose a new folder")
        there = {each.name for each in folder.iterdir()} if folder.exists() else set()
        if others := sorted(there - {*FILES}):
            # An older part is exchanged as a whole, and they would be gone.
            raise FormatError(f"{folder} holds other files ({others[0]}); choose a new folder")
        try:
            disk.write(
                folder,
                self.module,
                self.contract,
                self.recipe,
                self.origin,
                packed=self.packed,
                familiar=self.familiar,
                replace=overwrite,
            )
        except FileExistsError:
            raise FormatError(
                f"{folder} is there already; pass {argument('overwrite', True)}"
            ) from None
        return folder

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, verify: bool = False) -> Part:
        """Load a part, strictly; with ``verify`` also replay its stored probe."""
        folder = Path(folder)
        facts = read_facts(folder)
        module, packed = disk.read_module(folder, facts)
        familiar = disk.read_known(folder, facts, module)
        if verify:
            disk.replay(folder, module)
        return cls(module, facts.contract, facts.recipe, facts.origin, packed, familiar)

    def _repr_html_(self) -> str:
        weights = sum(p.numel() for p in self.module.parameters())
        measured = (f"{name} {value:.4g}" for name, value in self.origin.measured.items())
        facts = {
            "contract": str(self.contract),
            "classes": listed(self.contract.classes or ()),
            "weights": f"{weights:,}" + (" (packed)" if self.packed else ""),
            "made by": self.origin.how,
            "on": self.origin.task,
            "measured": ", ".join(measured),
            "tells unlike inputs by": None if self.familiar is None else self.familiar.source,
        }
        rows = tuple((name, value) for name, value in facts.items() if value)
        return html_of(f"Part: {self.described}", (Table(("", "what it is"), rows),))

    def __repr__(self) -> str:
        weights = sum(p.numel() for p in self.module.parameters())
        return f"Part({self.described}: {self.contract}, {weights:,} weights)"

    @property
    def described(self) -> str:
        """The recipe in a few words."""
        return type(self.module).__name__ if self.recipe is None else in_words(self.recipe)


def from_pretrained(folder: str | Path, *, verify: bool = False) -> Part:
    """Load the part in a folder; the same as :meth:`Part.from_pretrained`.

    >>> import tempfile
    >>> folder = build("mlp", shape=(4,)).save_pretrained(Path(tempfile.mkdtemp()) / "part")
    >>> from_pretrained(folder, verify=True)
    Part(mlp: 4 -> 10, 5,130 weights)
    """
    return Part.from_pretrained(folder, verify=verify)


def build(name: str, *, seed: int = 0, **args: Any) -> Part:
    """Make a part from a builder and plain arguments, with weights drawn from ``seed``.

    >>> build("lenet5", size=8, channels=1)
    Part(lenet5: 1×8×8 -> 10, 21,386 weights)
    """
    maker = find_builder(name)
    recipe = Build(name, to_plain(maker.arguments(args)))
    with seeded(seed, "weights"):
        module = rebuild(recipe)
    shape = maker.input_shape(args)
    example = None if shape is None else torch.zeros(2, *shape)
    origin = Origin(how="build", settings={"seed": seed})
    return Part(module, contract_of(module, example), recipe, origin)


def as_part(model: Part | nn.Module, *, example: Tensor | None = None) -> Part:
    """A part as it is, or a plain module with what can be learnt about it.

    >>> as_part(nn.ReLU()).contract.gives[0].activation
    'relu'
    """
    if isinstance(model, Part):
        return model
    if not isinstance(model, nn.Module):
        raise ContractError(f"expected a Part or an nn.Module, got {type(model).__name__}")
    hint = recipe_hint(model)
    recipe = None if hint is None else Build(*hint)
    return Part(model, contract_of(model, example), recipe, Origin(how="adopt"))


def parts_by_name(models: Iterable[Part | nn.Module], *, by_task: bool = False) -> dict[str, Part]:
    """Parts under what they are, or which task they learnt, and a number where several are alike.

    >>> parts = [build("mlp"), build("mlp", seed=1).changed(origin=Origin("train", task="digits"))]
    >>> list(parts_by_name(parts)), list(parts_by_name(parts, by_task=True))
    (['mlp', 'mlp #2'], ['mlp', 'digits'])
    """
    parts = [as_part(model) for model in models]
    learnt = [part.origin.task if by_task else None for part in parts]
    each = (task or part.described for task, part in zip(learnt, parts, strict=True))
    names = numbered(each, mark=" #")
    return dict(zip(names, parts, strict=True))


def ports_of(value: Any, activation: str = "identity") -> tuple[Port, ...]:
    """Ports for what a module took or returned (batch axis dropped)."""
    tensors = value if isinstance(value, tuple) else (value,)
    return tuple(
        Port(tuple(t.shape[1:]), dtype_name(t.dtype), activation)
        if isinstance(t, Tensor)
        else Port()
        for t in tensors
    )


def contract_of(module: nn.Module, example: Tensor | None) -> Contract:
    """What can be learnt of a module by looking at it and, with an example, by running it."""
    activation = trailing_activation(module)
    if example is None:
        return Contract(gives=(Port(activation=activation),))
    try:
        with evaluating(module):
            output = module(example)
    except Exception as error:  # the module is foreign code; whatever it says, the example is why
        raise ContractError(
            f"the example {tuple(example.shape)} does not go through the network: "
            f"{first_line(error)}"
        ) from None
    return Contract(takes=ports_of(example), gives=ports_of(output, activation))
