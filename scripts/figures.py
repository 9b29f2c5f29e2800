"""Write docs/figures.md from the records that benchmarks/ and reproduce/ left behind."""

from __future__ import annotations

from pathlib import Path

from dovetail.core.evidence import Evidence
from dovetail.core.records import load_record
from dovetail.core.views import Table, Text

ROOT = Path(__file__).parents[1]
HEAD = """# Figures

Every figure in this documentation comes from a script that compares in one run and leaves a record;
this page is made of these records by `python scripts/figures.py`. Absolute times depend on the
machine and its load, so look at ratios.
"""


def page() -> str:
    """The whole page."""
    files = sorted(ROOT.glob("benchmarks/results/*.json")) + sorted(
        ROOT.glob("reproduce/results/*.json")
    )
    return "\n".join([HEAD, *(section(file) for file in files)])


def section(file: Path) -> str:
    """One record as Markdown."""
    record = load_record(file)
    assert isinstance(record, Evidence), f"{file} is no evidence"
    lines = [f"## {record.title}", ""]
    for block in record.view():
        if isinstance(block, Text):
            lines += [block.text, ""]
        elif isinstance(block, Table):
            lines += [row(block.columns), row(["---"] * len(block.columns))]
            lines += [row(cells) for cells in block.shown()] + [""]
    plain = {n: v for n, v in record.settings.items() if not isinstance(v, dict | list)}
    settings = ", ".join(f"{name} {value}" for name, value in plain.items())
    return "\n".join([*lines, f"Measured with {settings}.", ""])


def row(cells: object) -> str:
    """A table row."""
    return f"| {' | '.join(str(cell) for cell in cells)} |"  # type: ignore[attr-defined]


if __name__ == "__main__":
    (ROOT / "docs" / "figures.md").write_text(page())
