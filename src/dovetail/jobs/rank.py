"""Rank the parts on a shelf for a task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from shlex import quote
from typing import Any

from dovetail.core.views import Text
from dovetail.jobs import Outcome
from dovetail.jobs.frame import Frame, alone, job
from dovetail.parts.part import Part
from dovetail.ranking.ranker import rank as rank_parts
from dovetail.ranking.ranker import rank_over
from dovetail.settings.rank import Rank


@job
def rank(
    frame: Frame,
    /,
    sources: Sequence[str],
    parts: Sequence[str] = (),
    *,
    at: str | Sequence[str] | None = Rank.at,
    samples: int | None = Rank.samples,
    **options: Any,
) -> Outcome:
    """Rank parts for one task, or for several at once.

    Without ``parts``, the newest version of everything on the shelf that takes a task's inputs; a
    name that ends in ``*`` stands for all that begin with it.
    """
    tasks = [frame.task(source) for source in sources]
    options |= {"at": alone(at), "samples": samples or None, "seed": frame.seed}
    candidates, notes = _candidates(frame, parts)
    if len(tasks) > 1:
        over = rank_over(candidates, tasks, **options)
        return Outcome((*over.view(), *notes), over.to_plain()["data"], (over, *over.rankings))
    ranking = rank_parts(candidates, tasks[0], **options)
    best = ranking.best
    shelf = f"--shelf {quote(str(frame.folder))}"
    at = f" --at {best.at}" if best.at else ""
    if tasks[0].kind in ("classes", "regression"):
        command = f"dovetail adapt {best.part} {quote(sources[0])}{at} {shelf}"
        notes.append(Text(f"Next: {command}", style="note"))
    elif at:
        notes.append(Text(f"Next: dovetail cut {best.part}{at} {shelf}", style="note"))
    return Outcome((*ranking.view(), *notes), ranking.to_plain()["data"], (ranking,))


class _Loaded(Mapping[str, Part]):
    """Parts by name, each read from disk when it is its turn."""

    def __init__(self, refs: list[str], frame: Frame) -> None:
        self._refs, self._frame = refs, frame

    def __getitem__(self, ref: str) -> Part:
        return self._frame.part(ref)

    def __iter__(self) -> Iterator[str]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)


def _candidates(frame: Frame, parts: Sequence[str]) -> tuple[_Loaded, list[Text]]:
    patterns = [ref for ref in parts if ref.endswith("*")]
    refs = list(dict.fromkeys(ref for ref in parts if not ref.endswith("*")))
    if parts and not patterns:
        return _Loaded(refs, frame), []
    refs, backs = frame.that_take_inputs(*(each[:-1] for each in patterns), beside=refs)
    takes = "1 part takes" if backs == 1 else f"{backs} parts take"
    note = Text(f"{takes} the features of others and cannot be ranked.", style="note")
    return _Loaded(refs, frame), [note] if backs else []
