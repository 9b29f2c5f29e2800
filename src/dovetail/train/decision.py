"""How large a decision block is: what a layer is trained under until the next one takes over."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dovetail.core.errors import CutError
from dovetail.core.seeds import seeded
from dovetail.core.settings import need_least
from dovetail.parts.contract import Contract, Port
from dovetail.parts.facts import Origin
from dovetail.parts.part import Part
from dovetail.parts.recipe import Build, rebuild

BLOCK = "decision-block"
"""The builder, in ``parts/zoo/decision.py``."""

WIDEST, NARROWEST = 128, 32


@dataclass(frozen=True)
class Decision:
    """The size of a decision block: convolutions that halve a map, their channels, pooling before.

    Fewer convolutions, fewer channels or more pooling take less memory; a vector has a linear layer
    in any case.

    >>> Decision.for_shape((16, 28, 28))
    Decision(convs=2, channels=32, pool=1)
    >>> Decision(convs=1).part((16, 8, 8), 10)
    Part(decision-block: 16×8×8 -> 10, 5,962 weights)
    """

    convs: int = 1
    channels: int = 32
    pool: int = 1

    def __post_init__(self) -> None:
        need_least("convs", self.convs, 0)
        need_least("channels", self.channels, 1)
        need_least("pool", self.pool, 1)

    @classmethod
    def for_shape(cls, shape: tuple[int, ...], **said: int | None) -> Decision:
        """The usual size for features of this shape, but for what is said.

        A map of 16 or wider is halved twice, one of 4 or wider once, by as many channels as come
        in, but 32 to 128; what is left is averaged to two by two.
        """
        usual: dict[str, Any] = {"convs": 0, "channels": NARROWEST, "pool": 1}
        if len(shape) == 3:
            side = min(shape[1:])
            usual["convs"] = 2 if side >= 16 else int(side >= 4)
            usual["channels"] = min(max(shape[0], NARROWEST), WIDEST)
        return cls(**usual | {name: value for name, value in said.items() if value is not None})

    def part(self, shape: tuple[int, ...], outputs: int, *, seed: int = 0) -> Part:
        """The block for features ``[n, *shape]`` that gives ``[n, outputs]``, weights drawn."""
        if not 1 <= len(shape) <= 3:
            raise CutError(
                f"features of shape {list(shape)} are no vectors, tokens or maps, so no decision "
                "block fits there; cut elsewhere"
            )
        recipe = Build(BLOCK, {"shape": list(shape), "classes": outputs, **asdict(self)})
        with seeded(seed, "decision"):
            module = rebuild(recipe)
        contract = Contract((Port(shape),), (Port((outputs,)),))
        return Part(module, contract, recipe, Origin("build", settings={"seed": seed}))

    def __str__(self) -> str:
        pooled = f"pooled by {self.pool}, " if self.pool > 1 else ""
        convs = f"{self.convs} × {self.channels} channels, " if self.convs else ""
        return f"{pooled}{convs}linear"
