"""What people may choose, declared once: signature, flag, check, error and table come from here.

A verb's settings are a class of :func:`setting`s.  The class attribute is the default, so that a
signature takes it from there; ``Class.declared`` has the rest.  Nothing here loads torch, for the
command line is to tell a mistake before that.

>>> class Race(Settings):
...     laps: int = setting(3, "rounds to run", least=1)
...     pace: float | None = setting(None, "seconds a round", above=0)
>>> Race.laps, Race.declared["laps"].type, Race.declared["pace"].words
(3, 'int', 'seconds a round')
>>> Race.check({"laps": 0})
Traceback (most recent call last):
...
dovetail.core.errors.SettingsError: laps must be at least 1, got 0
"""

from __future__ import annotations

from dovetail.core.errors import SettingsError, argument, nearest, shown

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, ClassVar

Folder = str
"""The type of a setting that names a folder, which doors write the shortest way."""


_MIXED = ("tuple[int | str, ...]",)
"""Numbers, and words among them, which are the choices."""


class Setting:
    """One thing to choose.

    Attributes:
        name: Of the argument.
        type: The annotation, as it is written: ``"int | None"``.
        default: What it is unless said.
        help: A line for readers.
        least, above, most: Limits of a number.
        choices: Of a word.
        metavar: What stands for the value on the command line.
        many: ``"append"`` if the flag may be repeated, ``"+"`` if several values may follow it.
        flag: The option of the command line, where it is not the name's.
    """

    __slots__ = (
        *("name", "type", "default", "help", "least", "above", "most", "choices", "metavar"),
        *("flag", "many"),
    )

    name: str
    type: str

    def __init__(
        self,
        default: Any,
        help: str,
        *,
        least: float | None = None,
        above: float | None = None,
        most: float | None = None,
        choices: tuple[str, ...] = (),
        metavar: str | None = None,
        many: str = "",
        flag: str = "",
    ) -> None:
        self.default, self.help, self.choices, self.metavar = default, help, choices, metavar
        self.least, self.above, self.most = least, above, most
        self.many, self.flag = many, flag

    @property
    def kind(self) -> str:
        """The first of its types: ``"int"`` of ``"int | None"``."""
        return self.type if self.type in _MIXED else self.type.partition(" | ")[0]

    @property
    def words(self) -> str:
        """The help, with the choices and the default where it does not say them."""
        choices = f": {', '.join(self.choices)}" if self.choices else ""
        usual = "" if self.default in (None, False, ()) else f" (default: {self.plain})"
        return f"{self.help}{choices}{usual}"

    @property
    def plain(self) -> str:
        """The default, as the command line has it.

        >>> class Mix(Settings):
        ...     by: tuple[str, ...] = setting(("dcc", "rp"), "methods")
        >>> Mix.declared["by"].plain
        'dcc,rp'
        """
        if isinstance(self.default, tuple):
            return ",".join(map(str, self.default))
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)

    def check(self, value: Any) -> None:
        """Refuse what the declaration does not allow; objects in the place of names may be any."""
        if value is None and self.type.endswith("None"):
            return
        if isinstance(value, list | tuple):
            for each in value:
                self.check(each)
        elif isinstance(value, str):
            if self.choices and value not in self.choices:
                raise SettingsError(
                    f"unknown {argument(self.name)} {value!r}{nearest(value, self.choices)}"
                )
            if self.kind in ("int", "float") and "str" not in self.type:
                raise SettingsError(f"{argument(self.name)} must be a number, got {shown(value)}")
        elif self.kind in ("int", "tuple[int, ...]", *_MIXED):
            self._check_number(
                value, "a whole number", isinstance(value, int) and self._counts(value)
            )
        elif self.kind == "float":
            finite = isinstance(value, float | int) and abs(value) < float("inf")
            finite = finite and self._counts(value)
            self._check_number(value, "a number", finite)

    def _counts(self, value: Any) -> bool:
        """Whether it is meant as a number: True and False are none, though Python counts them."""
        return not isinstance(value, bool) or "bool" in self.type

    def _check_number(self, value: Any, noun: str, is_one: bool) -> None:
        name, least = argument(self.name), self.least
        low = "" if least is None else f" of at least {least:g}"
        if not is_one:
            raise SettingsError(f"{name} must be {noun}{low}, got {shown(value)}")
        if least is not None and value < least:
            raise SettingsError(f"{name} must be at least {least:g}, got {value}")
        if self.above is not None and value <= self.above:
            raise SettingsError(f"{name} must be above {self.above:g}, got {value}")
        if self.most is not None and value > self.most:
            raise SettingsError(f"{name} must be at most {self.most:g}, got {value}")


def setting(default: Any, help: str, **about: Any) -> Any:
    """A :class:`Setting` of a :class:`Settings` class, which will show as its default."""
    return Setting(default, help, **about)


class Settings:
    """Base of classes that declare settings; a subclass adds to those of its bases."""

    declared: ClassVar[dict[str, Setting]] = {}

    def __init_subclass__(cls) -> None:
        own = {name: one for name, one in vars(cls).items() if isinstance(one, Setting)}
        for name, one in own.items():
            one.name, one.type = name, cls.__annotations__[name]
            one.flag = one.flag or f"--{name.replace('_', '-')}"
            setattr(cls, name, one.default)
        bases: list[Any] = list(reversed(cls.__mro__[1:-1]))
        inherited = (base.declared for base in bases)
        cls.declared = {k: v for each in (*inherited, own) for k, v in each.items()}

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        """Refuse values that are not allowed; those not declared here are not asked about."""
        for name, one in cls.declared.items():
            if name in values:
                one.check(values[name])


def need_least(name: str, value: Any, least: int) -> None:
    """Refuse what is no whole number, or one that is too small.

    >>> need_least("most", 0, 1)
    Traceback (most recent call last):
    ...
    dovetail.core.errors.SettingsError: most must be at least 1, got 0
    """
    one = Setting(None, "", least=least)
    one.name, one.type = name, "int"
    one.check(value)
