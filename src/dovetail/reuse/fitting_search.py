r"""What to try next for a task, until none is worth its time: the search behind a fit.

Networks are ranked by what a head on their features will reach (:func:`dovetail.rank`).  Of a
network with an expected error :math:`1 - e` a way to adapt it is expected to leave
:math:`(1 - e)(1 - s)`, where the share :math:`s` is what that way took off the errors of a probe
elsewhere, averaged with what it did here.  The next attempt is the one with the most

.. math:: \frac{e + s\,(1 - e) - b}{\text{multiply-adds}} ,

:math:`b` being the best on labels held out so far, among those that fit into the time that is left.
Both sides are the same on every machine; only the time that is left is not.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from torch import Tensor

from dovetail.core.errors import DovetailError, TaskError, first_line
from dovetail.core.files import write_whole
from dovetail.core.progress import Tick
from dovetail.core.records import load_record
from dovetail.core.words import listed
from dovetail.measure.intervals import paired_difference
from dovetail.measure.remembered import RememberedRows, remembering
from dovetail.ranking.candidates import Parts
from dovetail.ranking.ranker import rank
from dovetail.ranking.records import Ranked, Ranking
from dovetail.reuse.fitting_attempts import (
    BOOSTED,
    PASSES,
    SCRATCH,
    SOLVED,
    UPPER,
    Attempt,
    Done,
    attempt,
    folds_for,
    keep,
    kept_attempt,
    sealed,
    small_network,
)
from dovetail.reuse.fitting_candidates import candidates_for, multiply_adds, upper_layers
from dovetail.reuse.fitting_model import log_loss
from dovetail.reuse.fitting_pace import Paces, seconds_forward, seconds_from_scratch
from dovetail.reuse.fitting_record import Tried
from dovetail.tasks.task import Task

SHARES = {"probe": 0.0, "linearized": 0.05, UPPER: 0.2, "finetune": 0.35}
"""Of a probe's mistakes, what a way leaves away: about the mean over the cells of
``reproduce/real_adaptation.py`` with 5 and 20 labels a class.  Upper layers alone: between 0.02 and
0.4, the more the more labels there are."""

PEER = Attempt("trees", BOOSTED)
"""What every model of a table is held against."""

SMALL = Attempt("small network", SCRATCH)

MOST = 3
"""Networks that are adapted in one way, at most."""
LEAST_GAIN = 0.002
"""What an attempt must promise."""
MOST_LINEARISED = 100_000
"""Labels times classes: beyond, inference in the linearised network is slower than training it."""
RANKING_SHARE, LAST_SHARE = 0.3, 0.1
"""Of the time: for the ranking at most; and kept at least for packing and measuring."""
PACKED_PASSES = 5
"""Over the validation split, to pack a model and to know what its inputs look like."""


class Search:
    """What was tried so far, what is worth trying next."""

    def __init__(
        self,
        task: Task,
        parts: Parts | None,
        kept: Path | None,
        seed: int,
        minutes: float,
        released: bool,
        sizes: tuple[int, ...],
    ) -> None:
        self.task, self.open, self.kept, self.seed = task, sealed(task), kept, seed
        self.candidates = candidates_for(task, parts, released=released, sizes=sizes)
        self.folds = folds_for(self.open)
        self.seconds = 60 * minutes
        self.began = time.perf_counter()
        self.spent = 0.0  # as was planned, so that a run that goes on decides as it would have
        self.done: dict[Attempt, Done] = {}
        self.failed: dict[Attempt, str] = {}
        self.ranking: Ranking | None = None
        self.remembered = RememberedRows()
        self.notes: list[str] = []
        self.interrupted = False
        self._work: dict[str, float] = {}
        self._upper: dict[str, float] = {}
        self.paces = Paces(kept)

    # In order -------------------------------------------------------------------------------------

    def run(self, step: Tick) -> None:
        """Attempts, until none is worth its time; an interrupt ends it if there is a model."""
        try:
            for first in self._from_nothing():
                self._try(first, step)
            if self.candidates:
                step(f"ranking, {self._time_left()}", 0)
                self.ranking = self._ranked()
                self._take_stock(step)
                while (what := self._next()) is not None:
                    self._try(what, step)
                if self.ranking is None:
                    self._try(Attempt(max(self.candidates, key=self._size), "probe"), step)
                if len(self.task.input_shape) == 3:
                    self._try(SMALL, step)
        except KeyboardInterrupt:
            if not self.done:
                raise KeyboardInterrupt("no model was finished; the same command goes on") from None
            self.interrupted = True
            self.notes.append("It was interrupted: the best so far is the model.")
        if not self.done:
            why = next(iter(self.failed.values()), "nothing could be tried")
            raise TaskError(f"no model could be fitted to {self.task.name!r}: {why}")

    def _from_nothing(self) -> list[Attempt]:
        """Models that need no other network; the quickest first, and always one.

        To train a network on images from the start takes longer than to adapt one, and does worse
        with few of them: where there are others it waits until they had their turn.
        """
        if len(self.task.input_shape) == 3:
            quick = [Attempt("filters and a perceptron", SOLVED)]
            return quick if self.candidates else [*quick, SMALL]
        ways = [Attempt("perceptron", SOLVED), Attempt("perceptron", SCRATCH)]
        if self.task.kind == "classes" or self.task.outputs == 1:
            ways.insert(1, PEER)
        return ways

    def _try(self, what: Attempt, step: Tick) -> None:
        if self.done and not self._has_time(what):
            self.failed[what] = "no time was left"
            return
        step(f"{what.name}, {self._time_left()}", 0)
        done = kept_attempt(what, self.kept, self.open)
        if done is None:
            network = self.candidates[what.network] if what.how in PASSES else None
            try:
                with remembering(self.remembered):
                    done = attempt(what, self.open, network, folds=self.folds, seed=self.seed)
            except DovetailError as error:
                self.failed[what] = first_line(error)
                return
            if self.kept is not None:
                keep(done, self.kept)
        self.done[what] = done
        self._advance(step, self._seconds_of(what))

    def _advance(self, step: Tick, seconds: float) -> None:
        before, self.spent = self.spent, self.spent + seconds
        percent = [int(100 * min(spent / self.seconds, 1)) for spent in (before, self.spent)]
        step(self._time_left(), percent[1] - percent[0])

    def _time_left(self) -> str:
        left = max(self.seconds - (time.perf_counter() - self.began), 0.0)
        return f"at most {left / 60:.0f} min left" if left > 90 else f"at most {left:.0f} s left"

    def _has_time(self, what: Attempt) -> bool:
        """Whether it would be done in time, packed and measured if it is the best."""
        passed = time.perf_counter() - self.began
        last = LAST_SHARE * self.seconds
        if what.how in PASSES:
            rows = self.open.size("train") + PACKED_PASSES * self.open.size("validation")
            last = max(last, self._each(what.network) * (rows + self.task.size("test")))
        left = self.seconds - max(self.spent, passed) - last
        return left > 0 and self._seconds_of(what) <= left  # measuring speed takes time too

    # What the networks are worth ------------------------------------------------------------------

    def _ranked(self) -> Ranking | None:
        file = None if self.kept is None else self.kept / "ranking.json"
        if file is not None and file.is_file():
            try:
                ranking = load_record(file)
            except DovetailError:
                ranking = None
            if isinstance(ranking, Ranking):
                self.remembered = RememberedRows.load(file.with_name("features.safetensors"))
                return ranking
        try:
            with remembering(self.remembered):
                ranking = rank(
                    self.candidates,
                    self.open,
                    anytime=True,
                    seconds=RANKING_SHARE * self.seconds,
                    seed=self.seed,
                    permutations=0,
                )
        except TaskError as error:
            self.notes.append(f"No network could be ranked: {first_line(error)}")
            return None
        self.remembered.learning = False
        if file is not None:
            self.remembered.save(file.with_name("features.safetensors"))
            write_whole(file, ranking.to_json())
        return ranking

    def _take_stock(self, step: Tick) -> None:
        """What the ranking took counts, and says how fast each network is here."""
        if self.ranking is None:
            return
        places = self.ranking.places
        self._advance(step, sum(p.seconds + p.scoring_seconds for p in places))
        if self.ranking.left_out:
            gone = [out.part for out in self.ranking.left_out]
            why = self.ranking.left_out[0].why.partition("\n")[0]
            self.notes.append(f"Not ranked: {listed(gone, 3)} ({why}).")

    def _expected(self, network: str) -> float:
        """What a probe on it is expected to reach."""
        place = self._place(network)
        return float(place.plain if place.plain is not None else place.score)

    def _probed(self, network: str) -> float:
        """What its probe reached on labels held out; until there is one, what is expected of it.

        Ways are compared on the same labels then, and luck with these is no gain.
        """
        probe = self.done.get(Attempt(network, "probe"))
        if probe is None or not len(probe.rows):
            return self._expected(network)
        return self._held_out(probe)

    def _place(self, network: str) -> Ranked:
        assert self.ranking is not None
        return next(place for place in self.ranking.places if place.part == network)

    def _seconds_of(self, what: Attempt) -> float:
        """About how long an attempt takes, its folds and its validation included."""
        n = self.open.size("train")
        if what.how == SCRATCH:
            _, epochs = small_network(self.open, self.seed)
            judged = self.open.size("validation")
            rows = self.folds * (n + judged) if self.folds else n + judged / 3  # those run forwards
            each = self.paces.of(what.name, lambda: seconds_from_scratch(self.open, self.seed))
            return epochs * rows * each
        if what.how not in PASSES:
            return 1e-4 * n
        seen = 0
        if self.ranking is not None:
            seen = self._place(what.network).seen or self.ranking.n
        fitted = n * (self._passes(what) - 1) + max(n - seen, 0)  # others are remembered
        judged = self.open.size("validation") + (n if self.folds else 0)
        return self._each(what.network) * ((self.folds + 1) * fitted + judged)

    def _each(self, network: str) -> float:
        """Seconds an example, as the ranking saw it; without one it is tried."""
        if self.ranking is None:
            part = self.candidates[network]
            return self.paces.of(network, lambda: seconds_forward(part, self.open))
        place = self._place(network)
        return place.seconds / max(place.seen or self.ranking.n, 1)

    def _passes(self, what: Attempt) -> float:
        passes = PASSES[what.how]
        if what.how == UPPER:
            above = self._upper_share(what.network) or 1.0
            passes = 1 - above + above * passes
        few = self.open.size("train") <= 300 and self.task.kind == "classes"
        return passes * (4 if what.how in (UPPER, "finetune") and few else 1)

    def _upper_share(self, network: str) -> float:
        """Of its work, what lies in its upper layers; nothing where it cannot be cut so."""
        if network not in self._upper:
            layers = upper_layers(self.candidates[network])
            self._upper[network] = 0.0 if layers is None else layers[1]
        return self._upper[network]

    def _work_of(self, what: Attempt) -> float:
        return self._passes(what) * max(self._size(what.network), 1.0)

    def _size(self, network: str) -> float:
        """The multiply-adds of one example; none of a network that does not take such."""
        if network not in self._work:
            try:
                self._work[network] = multiply_adds(self.candidates[network])
            except DovetailError:
                self._work[network] = 0.0
        return self._work[network]

    # Which is next, and which is best -------------------------------------------------------------

    def _next(self) -> Attempt | None:
        if self.ranking is None:
            return None
        best = max((self._held_out(done) for done in self.done.values()), default=-math.inf)
        shares = {how: self._share(how) for how in PASSES}
        chosen: tuple[float, Attempt] | None = None
        labels = self.open.size("train") * max(self.task.outputs, 1)
        for how in PASSES:
            if how == "linearized" and labels > MOST_LINEARISED:
                continue
            tried = sum(what.how == how for what in self.done)
            for what, value in self._most_promising(how, shares[how])[: max(MOST - tried, 0)]:
                gain = value - best
                if gain >= LEAST_GAIN:
                    worth = gain / self._work_of(what)
                    if chosen is None or worth > chosen[0]:
                        chosen = worth, what
        return None if chosen is None else chosen[1]

    def _most_promising(self, how: str, share: float) -> list[tuple[Attempt, float]]:
        """Attempts of a way that there is time for, and what each should reach, best first."""
        assert self.ranking is not None
        found = []
        for place in self.ranking.places:
            what = Attempt(place.part, how)
            if what in self.done or what in self.failed:
                continue
            if how == UPPER and (self.task.kind != "classes" or not self._upper_share(place.part)):
                continue
            if not self._has_time(what):
                continue
            probed = self._probed(place.part)
            found.append((what, probed + share * (1 - probed)))
        return sorted(found, key=lambda one: -one[1])

    def _share(self, how: str) -> float:
        """Of a probe's mistakes, what the way leaves away: as elsewhere, and as seen here."""
        seen = [SHARES[how]]
        for what, done in self.done.items():
            probe = self.done.get(Attempt(what.network, "probe"))
            if what.how == how != "probe" and probe is not None:
                before, after = 1 - self._held_out(probe), 1 - self._held_out(done)
                if before > 0 and math.isfinite(after):
                    seen.append(1 - after / before)
        return sum(seen) / len(seen)

    def _held_out(self, done: Done) -> float:
        measures = done.measures(self.open)
        return measures.get("accuracy", measures.get("r2", -math.inf))

    def best(self) -> Done:
        """The best on labels held out; of those that chance cannot tell from it, the surest.

        That is of classes: the least log loss, each with its best temperature, of the models whose
        accuracy is not below the highest by more than chance.  Of numbers, the least squared error.
        """
        every = list(self.done.values())
        if not len(every[0].rows):
            return max(every, key=self._hoped_for)
        if self.task.kind == "regression":
            return min(every, key=lambda done: done.measures(self.open)["mse"])
        right = {id(done): self._verdicts(done) for done in every}
        top = max(every, key=self._held_out)
        close = [
            done
            for done in every
            if not paired_difference(right[id(done)], right[id(top)], confidence=0.8).low > 0
        ]
        return min(close, key=lambda done: log_loss(done, self.open))

    def _hoped_for(self, done: Done) -> float:
        what = done.attempt
        if what.how not in PASSES:
            return -math.inf
        if self.ranking is None:  # what others have learnt is more than one label a class says
            return 0.0
        expected = self._expected(what.network)
        return expected + SHARES[what.how] * (1 - expected)

    def _verdicts(self, done: Done) -> Tensor:
        order = done.rows.argsort()  # folds may come in another order
        wanted = self.task.targets[done.rows[order]]
        return done.outputs[order].argmax(1) == wanted

    def facts(self, chosen: Done) -> dict[str, Any]:
        """What the record says of the search."""
        held_out, trees = self._held_out(chosen), self.done.get(PEER)
        late = [what for what, why in self.failed.items() if why == "no time was left"]
        notes = list(self.notes) + [f"{note}." for note in self.task.notes]
        no_time = late or (self.ranking is not None and self._left_for_time())
        if no_time and not self.interrupted:
            minutes = f"{self.seconds / 60:g} minute{'' if self.seconds == 60 else 's'}"
            notes.append(
                f"{minutes} left no time for some attempts; with more, and on another machine, "
                "another model may be chosen."
            )
        if untried := self._untried():
            notes.append(f"Ranked, and not tried further: {listed(untried, 6)}.")
        return {
            "held_out": held_out if math.isfinite(held_out) else None,
            "rows": len(chosen.rows),
            "folds": self.folds,
            "peer": None if trees is None else self._held_out(trees),
            "tried": tuple(self._tried()),
            "notes": tuple(notes),
        }

    def _untried(self) -> list[str]:
        """Networks that were ranked, of which no model was made, in the order of the ranking."""
        made = {what.network for what in (*self.done, *self.failed)}
        places = () if self.ranking is None else self.ranking.places
        return [place.part for place in places if place.part not in made]

    def _left_for_time(self) -> bool:
        assert self.ranking is not None
        best = max(self._held_out(done) for done in self.done.values())
        for how in PASSES:
            for place in self.ranking.places:
                what, share = Attempt(place.part, how), self._share(how)
                probed = self._probed(place.part)
                if (
                    what not in self.done
                    and probed + share * (1 - probed) - best >= LEAST_GAIN
                    and not self._has_time(what)
                ):
                    return True
        return False

    def _tried(self) -> list[Tried]:
        rows = []
        for what, done in self.done.items():
            measures = done.measures(self.open)
            known = self.ranking is not None and what.how in PASSES
            rows.append(
                Tried(
                    network=what.network,
                    how=what.how,
                    expected=self._expected(what.network) if known else None,
                    held_out=measures.get("accuracy", measures.get("r2")),
                    log_loss=log_loss(done, self.open) if "nll" in measures else None,
                    seconds=done.seconds,
                )
            )
        rows.sort(key=lambda one: -(one.held_out if one.held_out is not None else -math.inf))
        failed = [Tried(w.network, w.how, why_not=why) for w, why in self.failed.items()]
        return rows + failed
