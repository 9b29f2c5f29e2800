"""The Markdown report, read back by a Markdown parser: words stay words, tables stay tables."""

import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from report.gallery import gallery, stored

from dovetail.core.errors import FormatError, SettingsError
from dovetail.core.views import Table, Text
from dovetail.report import render_markdown, write_report

NASTY = st.text(
    st.sampled_from("<>&\"'`*_~#|\\[](){}!-+=:1.)$ \n\tab漢\0\ud800\u2028"), max_size=14
)


class Cells(HTMLParser):
    """The text of each table cell, heading and paragraph."""

    def __init__(self, markdown):
        super().__init__(convert_charrefs=True)
        self.found, self.now = [], None
        self.feed(MarkdownIt("commonmark").enable("table").enable("strikethrough").render(markdown))

    def handle_starttag(self, tag, attrs):
        if tag in ("td", "th", "p", "h1", "h2", "h3"):
            self.now = [tag, ""]
            self.found.append(self.now)
        elif tag == "br" and self.now:
            self.now[1] += "\n"
        elif tag not in ("table", "thead", "tbody", "tr", "sub", "details", "summary", "strong"):
            self.found.append([tag, ""])

    def handle_data(self, data):
        if self.now:
            self.now[1] += data

    def texts(self, *tags):
        return [" ".join(text.split()) for tag, text in self.found if tag in tags]


def plain(text):
    return " ".join("".join("�" if c in "\0\ud800" else c for c in text).split())


@settings(max_examples=100, deadline=None)
@given(NASTY, NASTY)
def test_words_of_a_record_stay_words(one, other):
    record = stored(
        "x", Text(one), Text(one, "note"), Table(("name",), ((one,), (other,))), Text("end")
    )
    page = Cells(render_markdown([record], title="t"))
    assert {tag for tag, _ in page.found} == {"h1", "h2", "p", "th", "td"}
    said = [plain(one)] * 2 if plain(one) else []
    assert page.texts("p") == [*said, "end"]
    assert page.texts("td") == [plain(one), plain(other)]


def test_numbers_stand_to_the_right_and_gaps_show():
    table = Table(("name", "share"), (("a", 0.25), ("b", None)), ("", ".0%"), "Shares")
    lines = render_markdown([stored("x", table)], title="t").splitlines()
    start = lines.index("**Shares**") + 2
    assert lines[start : start + 4] == [
        "| name | share |",
        "| --- | ---: |",
        "| a | 25% |",
        "| b | – |",
    ]


def test_code_keeps_its_lines_and_its_fences():
    text = render_markdown([stored("x", Text("a\n```\n  b", "code"))], title="t")
    assert "````text\na\n```\n  b\n````" in text


def test_records_of_one_title_are_told_apart_and_linked():
    text = render_markdown(gallery(), title="t")
    assert "5. [A run (seed 1)](#record-5)\n6. [A run (seed 2)](#record-6)" in text
    assert '<a id="record-6"></a>\n\n## A run (seed 2)' in text


def test_every_figure_is_a_file_beside_the_report(tmp_path):
    report = write_report(gallery(), tmp_path / "my report.md", title="t")
    html = MarkdownIt("commonmark").render(report.read_text(encoding="utf-8"))
    images = [e.split('"')[0] for e in html.split('<img src="')[1:]]
    assert len(images) == len(set(images)) == 16
    files = [tmp_path / image.replace("%20", " ") for image in images]
    assert {file.parent.name for file in files} == {"my report_files"}
    assert sorted(files) == sorted((tmp_path / "my report_files").iterdir())
    assert all(ET.parse(file).getroot().tag.endswith("svg") for file in files)


def test_a_second_report_leaves_no_figure_of_the_first(tmp_path):
    write_report(gallery(), tmp_path / "r.md", title="t")
    write_report(gallery()[3:4], tmp_path / "r.md", title="t")
    assert len(list((tmp_path / "r_files").iterdir())) == 2


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path):
    mine = tmp_path / "r_files" / "thesis.tex"
    mine.parent.mkdir()
    mine.write_text("years of work")
    with pytest.raises(FormatError, match=r"thesis\.tex is not one of them"):
        write_report(gallery(), tmp_path / "r.md", title="t")
    assert mine.read_text() == "years of work"
    assert not (tmp_path / "r.md").exists()


@pytest.mark.parametrize("name", ["report.pdf", "report", "report.txt"])
def test_an_unknown_suffix_is_told_before_anything_is_written(tmp_path, name):
    with pytest.raises(SettingsError, match=r"\.html or \.md"):
        write_report(gallery(), tmp_path / name, title="t")
    assert list(Path(tmp_path).iterdir()) == []
