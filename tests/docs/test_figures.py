"""The page of figures is made of the records, and of nothing else."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_records_say():
    made = runpy.run_path(str(ROOT / "scripts" / "figures.py"))["page"]()
    assert (ROOT / "docs" / "figures.md").read_text() == made, "run `python scripts/figures.py`"
