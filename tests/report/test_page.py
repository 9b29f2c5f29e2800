"""The page: whole, inert, self-contained, and the same for a record read back from a file."""

import json
import math
import re
import subprocess
import sys
from dataclasses import dataclass
from html.parser import HTMLParser

import pytest

from dovetail.core import records as stored
from dovetail.core.records import Record, StoredRecord, load_record
from dovetail.core.views import Figure, Heatmap, Series, Table, Text, View
from dovetail.report import render_page, write_report
from dovetail.report.axes import HALF, NARROW, WIDTH
from dovetail.report.sections import sections

VOID = {"meta", "br", "img", "link", "input", "hr"}
NASTY = """</script><script>alert(1)</script><img src=x onerror=alert(1)>"'&<!--"""


@dataclass(frozen=True, kw_only=True)
class Sample(Record, kind="report-sample"):
    heading: str = "A sample"
    blocks: View = ()
    score: float = 0.5

    @property
    def title(self):
        return self.heading

    def view(self):
        return self.blocks


def every_block(word):
    return (
        Text(f"{word} plain"),
        Text(f"{word} heading", "heading"),
        Text(f"{word} note", "note"),
        Text(f"{word} warning", "warning"),
        Table(
            (f"{word} column", "n"),
            ((f"{word} cell", 0.125), (None, math.nan), ("inf", math.inf), ("x", 3)),
            ("", ".1%"),
            f"{word} caption",
        ),
        Figure("line", f"{word} line", (Series(f"{word} one", (1, 2), (1.0, None)),), f"{word} x"),
        Figure("scatter", f"{word} scatter", (Series("s", (1, 2), (1.0, 2.0)),), "", f"{word} y"),
        Figure("bar", f"{word} bar", (Series("s", (f"{word} place", "b"), (1.0, -2.0)),)),
        Figure(
            "interval",
            f"{word} interval",
            (Series(f"{word} rows", (f"{word} long", "b"), (1.0, 2.0), (0.0,), (1.5,)),),
        ),
        Figure(
            "polar", f"{word} polar", (Series(f"{word} web", (f"{word} way", "b"), (1.0, 2.0)),)
        ),
        Heatmap(f"{word} map", (f"{word} row",), ("c", "d"), ((1.0, None),), format=".2f"),
    )


class Page(HTMLParser):
    """What a browser would find: elements with their attributes, and text by element."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.elements, self.text, self.open = [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append((self.open[-1] if self.open else "", data))

    def words(self):
        return "\n".join(data for tag, data in self.text if tag not in ("script", "style"))

    def json(self):
        flags = [a.get("type") for t, a in self.elements if t == "script"]
        texts = [data for tag, data in self.text if tag == "script"]
        pairs = zip(flags, texts, strict=True)
        return [json.loads(text) for flag, text in pairs if flag == "application/json"]


def test_every_block_appears_and_every_element_is_closed():
    page = Page(render_page([Sample(blocks=every_block("my"))], title="All"))
    assert page.open == []
    words = page.words()
    names = "plain heading note warning column cell caption line one x scatter y bar place map row"
    names += " interval rows long polar web way"
    assert [name for name in names.split() if f"my {name}" not in words] == []
    assert "12.5%" in words
    # A figure is drawn for wide and for narrow screens; a heat map scrolls instead.
    assert sum(tag == "svg" for tag, _ in page.elements) == 2 * 5 + 1


def test_only_polar_figures_that_follow_each_other_stand_side_by_side():
    def polar(title):
        return Figure("polar", title, (Series("s", ("a", "b"), (1.0, 2.0)),))

    blocks = (polar("one"), Text("between"), polar("two"), polar("three"), polar("four"))
    page = Page(render_page([Sample(blocks=blocks)], title="t"))
    assert [a["class"] for t, a in page.elements if t == "div"].count("beside") == 1
    widths = [float(a["width"]) for t, a in page.elements if t == "svg"]
    assert widths == [WIDTH, NARROW, *[HALF, NARROW] * 3]
    assert page.open == []


def test_words_of_a_record_stay_words():
    nasty = Sample(
        heading=NASTY, blocks=every_block(NASTY), settings={NASTY: NASTY, "in": {NASTY: [NASTY]}}
    )
    tame = Sample(heading="x", blocks=every_block("x"), settings={"x": "x", "in": {"x": ["x"]}})
    found, expected = (
        Page(render_page([r], title=t, subtitle=t)) for r, t in ((nasty, NASTY), (tame, "x"))
    )

    def shape(page):
        # <title> elements hold names that were cut, which only long names are
        return [(tag, sorted(attrs)) for tag, attrs in page.elements if tag != "title"]

    def counted(page):
        return {tag: sum(t == tag for t, _ in page.elements) for tag in ("script", "img", "button")}

    assert counted(found) == counted(expected) == {"script": 2, "img": 0, "button": 1}
    assert {tag for tag, _ in shape(found)} == {tag for tag, _ in shape(expected)}
    assert not any(name.startswith("on") for _, attrs in found.elements for name in attrs)
    assert NASTY in found.words()
    assert found.json()[0]["title"] == NASTY


def test_the_embedded_json_is_the_record():
    record = Sample(blocks=every_block(NASTY), settings={"seed": 3})
    (embedded,) = Page(render_page([record], title="t")).json()
    assert embedded == record.to_plain()


def test_nothing_is_fetched():
    page = render_page([Sample(blocks=every_block("my"), settings={"a": 1})], title="t")
    without_names = page.replace("http://www.w3.org/2000/svg", "")
    assert page != without_names
    assert (
        re.findall(r"https?://|\bsrc=|url\(|@import|<link|<iframe|javascript:", without_names) == []
    )


def test_the_policy_forbids_the_network():
    elements = Page(render_page([], title="t")).elements
    policies = [
        a["content"] for _, a in elements if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert len(policies) == 1
    assert policies[0].startswith("default-src 'none';")
    assert "connect-src" not in policies[0]


def test_the_script_sets_words_as_text_only():
    script = render_page([], title="t").split("<script>")[1].split("</script>")[0]
    assert (
        re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", script) == []
    )
    assert "textContent" in script
    assert len(script.strip().splitlines()) < 170


def test_a_stored_record_looks_as_it_did(tmp_path, monkeypatch):
    record = Sample(blocks=every_block("my"), settings={"seed": 3, "deep": {"rate": 0.1}})
    file = record.save(tmp_path / "r.json")
    monkeypatch.delitem(stored._KINDS, "report-sample")
    again = load_record(file)
    assert isinstance(again, StoredRecord)
    assert render_page([again], title="t") == render_page([record], title="t")


def test_a_cell_that_no_file_can_hold_is_still_shown():
    page = Page(render_page([Sample(blocks=(Table(("a",), ((True,),)),))], title="t"))
    assert ("td", "True") in page.text


def test_settings_are_shown_folded_and_flat():
    page = Page(render_page([Sample(settings={"deep": {"rate": 0.1}, "on": True})], title="t"))
    assert ("details", {"class": "settings"}) in page.elements
    words = page.words()
    assert "deep.rate" in words
    assert "yes" in words
    assert "Settings" not in Page(render_page([Sample()], title="t")).words()


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_several_records_have_a_list_of_contents(count):
    records = [Sample(heading=f"Record {i}") for i in range(count)]
    elements = Page(render_page(records, title="t")).elements
    links = [a["href"] for tag, a in elements if tag == "a"]
    anchors = [f"#{a['id']}" for tag, a in elements if tag == "section"]
    assert len(anchors) == count
    assert links == (anchors if count > 1 else [])


def test_records_of_one_title_save_under_different_names():
    titles = ["A b", "a-b!", "A b", "...", "a b 2"]
    page = Page(render_page([Sample(heading=t) for t in titles], title="t"))
    names = [a["data-file"] for tag, a in page.elements if tag == "button"]
    assert len(set(names)) == len(titles)
    assert all(re.fullmatch(r"[a-z0-9-]+\.json", name) for name in names)


def test_numbers_keep_their_raw_value_for_sorting():
    table = Table(("a", "b"), (("x", 1 / 3), ("y", None), ("z", -math.inf)), ("", ".0%"))
    page = Page(render_page([Sample(blocks=(table,))], title="t"))
    raw = [a["data-raw"] for tag, a in page.elements if tag == "td"]
    assert raw == ["x", repr(1 / 3), "y", "", "z", "-Infinity"]
    aligned = [a.get("class", "") for tag, a in page.elements if tag == "th"]
    assert aligned == ["", "number"]


def test_a_record_without_valid_unicode_can_still_be_written(tmp_path):
    file = write_report(
        [Sample(heading="\ud800\0", blocks=every_block("\udfff"))], tmp_path / "r.html", title="t"
    )
    assert "�" in file.read_text(encoding="utf-8")


def test_reports_need_neither_torch_nor_rich_to_be_imported():
    code = "import sys, dovetail.report; print({'torch', 'rich', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_records_of_one_title_are_told_apart():
    def asides(*settings):
        found = sections([Sample(heading="A run", settings=one) for one in settings])
        return [section.aside for section in found]

    assert asides({"seed": 0}) == [""]
    assert asides({"a": 1, "seed": 0}, {"a": 2, "seed": 1}) == ["seed 0", "seed 1"]
    assert asides({"rate": 0.1}, {"rate": 0.2}, {}) == ["rate 0.1", "rate 0.2", "rate –"]
    assert asides({"seed": 0}, {"seed": 0}) == ["1 of 2", "2 of 2"]
    assert asides({"note": "a" * 99}, {"note": "b" * 99}) == ["1 of 2", "2 of 2"]
    assert asides({"a": 1}, {"a": 1}, {"a": 2}) == ["1 of 3", "2 of 3", "3 of 3"]


def test_an_aside_stands_in_the_contents_and_in_the_heading():
    runs = [Sample(heading="A run", settings={"seed": seed}) for seed in (7, 8)]
    page = Page(render_page(runs, title="t"))
    told = [data for tag, data in page.text if tag == "span"]
    assert told == ["seed 7", "seed 8"] * 2
