"""Which of our methods hold on released networks?  One table, of what was measured elsewhere.

Nothing is run here: the lines are read from the records of ``real_stitching.py``,
``real_modules.py``, ``real_sizes.py`` and ``real_adaptation.py``, and each is judged by the claims
that the docstring of its script fixed beforehand.  A method holds when all claims about it do, and
so far when its script was not run to the end.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from real.common import mean

from dovetail.core.evidence import Evidence, environment
from dovetail.core.records import load_record

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("reproduce/results"))
    args = parser.parse_args()
    rows: list[Row] = []
    for name, lines in (
        ("real_stitching", stitching),
        ("real_modules", modules),
        ("real_sizes", sizes),
        ("real_adaptation", adaptation),
    ):
        record = load_record(args.results / f"{name}.json")
        assert isinstance(record, Evidence)
        for method, judged_by, figure, beside in lines(record):
            verdicts = record.settings["verdicts"]
            claims = [holds for claim, holds in verdicts.items() if claim.startswith(judged_by)]
            assert claims, f"{name} has no claim that begins with {judged_by!r}"
            whole = all(holds for claim, holds in verdicts.items() if claim.endswith("run"))
            rows.append(
                {
                    "method": method,
                    "holds": ("yes" if whole else "so far") if all(claims) else "no",
                    "claims": f"{sum(claims)} of {len(claims)}",
                    "figure": figure,
                    "beside": beside,
                    "script": f"{name}.py",
                }
            )
    Evidence(
        claim="every method that was tried on released networks holds there",
        holds=all(row["holds"] == "yes" for row in rows),
        rows=tuple(rows),
        command="python reproduce/real_networks.py",
        settings=environment(),
    ).save(args.results / "real_networks.json")
    for row in rows:
        print(" | ".join(map(str, row.values())))


Line = tuple[str, str | tuple[str, ...], str, str]


def stitching(record: Evidence) -> list[Line]:
    rows = record.rows
    along = ", ".join(row["cut"] for row in rows)

    def by_cut(word: str) -> str:
        return ", ".join(f"{row[word]:.3f}" for row in rows) + f" at {along}"

    reports = record.settings["reports"]
    said = "; ".join(
        f"{one['best']} {one['said'][one['best']]:.3f}, on test {one['test'][one['best']]:.3f}"
        for one in reports
    )
    others = "; ".join(
        ", ".join(f"{name} {value:.3f}" for name, value in one["test"].items()) for one in reports
    )
    own = by_cut("bound")
    return [
        ("the contract refuses the join", "forced joins", by_cut("forced"), "chance 0.1"),
        ("closed_form.stitch", "solved", by_cut("solved"), f"the lesser network {own}"),
        ("train.stitch, from the solved one", "trained", by_cut("trained"), f"likewise {own}"),
        ("explain_fit's first repair", "explain_fit", said, f"all repairs on test: {others}"),
    ]


def modules(record: Evidence) -> list[Line]:
    rows = {(row["way"], row["start"]): row for row in record.rows}
    probes = [row for (_, start), row in rows.items() if not start]
    lines: list[Line] = []
    for start in ("fresh", "released"):
        al, pairs, end = (rows[way, start] for way in ("al", "al, pairs", "end to end"))
        name = f"train.modular of a {start} last stage"
        lines += [
            (
                f"{name}, all labels",
                (f"{start}: al within", f"{start}: al at most"),
                f"{al['all labels']:.3f}",
                f"end to end {end['all labels']:.3f}, probes {_each(probes, 'all labels')}",
            ),
            (
                f"{name}, one label a class for the head",
                f"{start}: one label",
                f"{al['one label a class']:.3f}",
                f"{al['all labels']:.3f} with all, "
                f"probes of one label {_each(probes, 'one label a class')}",
            ),
            (
                f"{name}, from 5000 pairs and one label a class",
                f"{start}: pairs",
                f"{pairs['one label a class']:.3f}",
                f"probes of one label {_each(probes, 'one label a class')}",
            ),
        ]
    neo, al = rows["nmse-neo", "fresh"]["all labels"], rows["al", "fresh"]["all labels"]
    only = "train.modular, told only what differs"
    lines.append((only, "nmse-neo", f"{neo:.3f}", f"al {al:.3f}"))
    return lines


def _each(rows: list[Row], word: str) -> str:
    return " and ".join(f"{row[word]:.3f}" for row in rows)


def sizes(record: Evidence) -> list[Line]:
    lines = []
    for name, figures in record.settings["by set"].items():
        candidates = [row for row in record.rows if row["set"] == name]
        best = max(row["probe on test"] for row in candidates)
        said = f"regret {figures['regret']:.3f}, tau {figures['tau']:.2f}, "
        said += f"{figures['covered']:.0%} of intervals hold"
        beside = f"{len(candidates)} candidates, best {best:.3f}, "
        beside += f"mean {mean([row['probe on test'] for row in candidates]):.3f}"
        lines.append((f"rank over sizes, {name}", f"{name}: ", said, beside))
    return lines


def adaptation(record: Evidence) -> list[Line]:
    """What there is of it: its own record says how many cells were run."""
    lines: list[Line] = []
    for way in ("finetune", "linearized"):
        gain = record.settings["means"].get(f"{way} less probe")
        if gain is not None:
            said = f"{100 * gain['accuracy']:+.1f} points of accuracy, "
            said += f"{gain['log loss']:+.2f} of log loss, worst cell "
            said += f"{100 * gain['worst cell']:+.1f} points"
            lines.append((f"adapt, {way}", f"{way}: ", said, "a probe on the same labels"))
    return lines


if __name__ == "__main__":
    main()
