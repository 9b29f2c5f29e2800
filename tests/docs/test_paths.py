"""Files that the README, CONTRIBUTING and the page of rooms name are there."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", "docs/where.md")
PLACES = (ROOT, ROOT / "src", ROOT / "src" / "dovetail", ROOT / "docs")
NAMED = re.compile(r"`([\w.<>-]+(?:/[\w.<>-]*)*)`")
ENDINGS = (".py", ".md", ".txt", ".toml", "/")
MADE = {"site/"}
"""What only is there once something has been run."""


def named_in(text):
    """Files and folders that a page names; a bare file follows one whose folder is its own.

    >>> named_in("`train/group.py`, `group_parts.py`; `parts/zoo/` and `dt.join`")
    ['train/group.py', 'train/group_parts.py', 'parts/zoo/']
    """
    found, folder = [], ""
    for name in NAMED.findall(text):
        if not name.endswith(ENDINGS) or name.startswith("."):
            continue
        if "/" in name:
            folder = name.rpartition("/")[0]
        elif folder and any((place / folder / name).exists() for place in PLACES):
            name = f"{folder}/{name}"
        found.append(name)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_is_named_is_there(page):
    missing = []
    for line in (ROOT / page).read_text().splitlines():
        for name in named_in(line):
            pattern = re.sub(r"<\w+>", "*", name).rstrip("/")
            if name not in MADE and not any(any(place.glob(pattern)) for place in PLACES):
                missing.append(name)
    assert missing == []


def test_a_file_that_is_not_there_is_seen():
    assert named_in("`jobs/train_ways.py`, `locate.py`") == ["jobs/train_ways.py", "locate.py"]
    assert named_in("`train/group.py`, `group_parts.py`")[1] == "train/group_parts.py"
    assert not any(any(place.glob("jobs/train_ways.py")) for place in PLACES)


def test_where_things_live_is_on_one_screen():
    """Of 50 lines and 120 columns, with nothing wrapped."""
    lines = (ROOT / "docs" / "where.md").read_text().splitlines()
    assert len(lines) <= 50
    assert [line for line in lines if len(line) > 120] == []


def test_the_page_of_settings_is_what_is_declared():
    made = runpy.run_path(str(ROOT / "scripts" / "settings_docs.py"))["page"]()
    page = ROOT / "docs" / "settings.md"
    assert page.read_text() == made, "run `python scripts/settings_docs.py`"
