"""Fits that were begun for a model's folder and not finished: what they were of."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dovetail.core.errors import DovetailError, FormatError
from dovetail.core.files import sha256_of, write_whole
from dovetail.core.plain import dumps, from_plain, read_json
from dovetail.jobs.frame import RUNS, key_of
from dovetail.parts.facts import MANIFEST

_FACTS = "run.json"


@dataclass(frozen=True)
class _Begun:
    """For which model a run is, what it depends on, and the model that it wrote half-way."""

    output: str
    facts: dict[str, str]
    model: str | None = None


class FitRuns:
    """The unfinished fits beside a model's folder, each in a folder by what it depends on.

    >>> import tempfile; model = Path(tempfile.mkdtemp()) / "model"
    >>> runs = FitRuns(model)
    >>> _ = runs.begin({"seed": 0})
    >>> FitRuns(model).changed({"seed": 1})
    ['seed']
    >>> runs.finish(); runs.folder.exists()
    False
    """

    def __init__(self, model: Path) -> None:
        self.model, self.folder = model.absolute(), model.absolute().parent / RUNS
        self._begun: dict[Path, _Begun] = {}
        for state in sorted(self.folder.glob("*.fit")):
            with suppress(FormatError):  # it was killed before it said so, or is damaged
                begun = from_plain(_Begun, read_json(state / _FACTS), _FACTS)
                if begun.output == str(self.model):
                    self._begun[state] = begun

    def begin(self, facts: Mapping[str, Any]) -> Path:
        """The folder of the run that depends on these facts, new or as it was left."""
        state = self._of(facts)
        if state not in self._begun:
            begun = _Begun(str(self.model), {name: key_of({name: v}) for name, v in facts.items()})
            self._keep(state, begun)
        return state

    def _of(self, facts: Mapping[str, Any]) -> Path:
        return self.folder / f"{key_of(facts)}.fit"

    def _keep(self, state: Path, begun: _Begun) -> None:
        self._begun[state] = begun
        write_whole(state / _FACTS, dumps(begun))

    def wrote(self, state: Path) -> None:
        """The model is what an interrupted run had best; it may replace that later."""
        self._keep(state, replace(self._begun[state], model=_mark(self.model)))

    def may_go_on(self, facts: Mapping[str, Any] | None = None) -> bool:
        """Whether the model is one that an interrupted run left: any, or the one of these facts."""
        mark = _mark(self.model)
        own = None if facts is None else self._of(facts)
        return mark is not None and any(
            begun.model == mark and own in (None, state) for state, begun in self._begun.items()
        )

    def changed(self, facts: Mapping[str, Any]) -> list[str]:
        """In what the runs that were begun differ from these facts; nothing if one does not."""
        if not self._begun or self._of(facts) in self._begun:
            return []
        *_, last = self._begun.values()
        now = {name: key_of({name: value}) for name, value in facts.items()}
        return [name for name in now if last.facts.get(name) != now[name]] or ["options"]

    def finish(self) -> None:
        """The model is there: no run for it has anything left to do."""
        for state in self._begun:
            shutil.rmtree(state, ignore_errors=True)
        with suppress(OSError):  # those for other models may be unfinished
            self.folder.rmdir()


def _mark(model: Path) -> str | None:
    try:
        return sha256_of(model / MANIFEST)
    except DovetailError:
        return None


def words_for(names: list[str]) -> str:
    """What changed, as people say it.

    >>> words_for(["task", "parts"])
    'data and parts on the shelf'
    """
    known = {"task": "data", "parts": "parts on the shelf"}
    return " and ".join(known.get(name, name) for name in names)
