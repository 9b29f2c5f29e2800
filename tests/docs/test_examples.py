"""Every Python example of the README and the documentation runs, and prints what the page says.

A comment behind a ``print`` that holds a figure or an ellipsis shows what is printed, on any
processor: ``...`` stands for anything, ``about 0.7`` for a first number near that.  Other comments
are words for people.
"""

import ast
import io
import math
import re
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NEAR = 0.15


def examples(page: Path) -> list[str]:
    return FENCE.findall(page.read_text())


WITH_EXAMPLES = [page for page in PAGES if examples(page)]
TRAIN_LONG = ("howto-devices.md", "howto-domain.md", "howto-replace.md", "howto-transfer.md")


def shown_by(code: str) -> dict[int, str]:
    """For the first line of each ``print`` what the comment behind it shows."""
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    comments = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    prints = [
        node
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    found = {node.lineno: comments.get(node.end_lineno, "") for node in prints}
    return {line: said for line, said in found.items() if re.search(r"\d|\.\.\.", said)}


def is_shown(printed: str, comment: str) -> bool:
    if about := re.fullmatch(r"about ([\d.]+)( %)?", comment):
        number, share = float(about[1]), about[2]
        first = re.search(r"(\d+\.?\d*)%" if share else r"(\d+\.?\d*)", printed)
        return first is not None and math.isclose(float(first[1]), number, rel_tol=NEAR)
    pattern = ".*".join(re.escape(piece) for piece in comment.split("..."))
    return re.fullmatch(pattern, printed, re.DOTALL) is not None


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=[pytest.mark.slow] * (page.name in TRAIN_LONG))
        for page in WITH_EXAMPLES
    ],
)
def test_examples_run_and_print_what_they_show(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "example"}
    for number, code in enumerate(examples(page), start=1):
        file, shown = f"{page.name}, example {number}", shown_by(code)

        def checked(*words, file=file, shown=shown):
            printed, caller = " ".join(map(str, words)), sys._getframe(1)
            comment = shown.get(caller.f_lineno) if caller.f_code.co_filename == file else None
            assert comment is None or is_shown(printed, comment), (file, comment, printed)

        names["print"] = checked
        exec(compile(code, file, "exec"), names)


@pytest.mark.parametrize(
    ("printed", "comment", "right"),
    [
        ("0.9805", "0.9...", True),
        ("0.8805", "0.9...", False),
        ("0.737", "about 0.7", True),
        ("0.437", "about 0.7", False),
        ("accuracy 2: 91.4%", "about 90 %", True),
        ("accuracy 2: 31.4%", "about 90 %", False),
        ("Part(tiny: 1 weight)", "Part(tiny: 2 weights)", False),
    ],
)
def test_what_is_shown_is_compared(printed, comment, right):
    assert is_shown(printed, comment) is right


def test_only_figures_and_gaps_are_taken_for_output():
    code = "print(1)  # 1\nprint(\n    2\n)  # ...\nprint(3)  # words for people\nx = 4  # 5\n"
    assert shown_by(code) == {1: "1", 2: "..."}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
