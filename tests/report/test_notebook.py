"""What notebooks show: escaped, bounded, without scripts or anything from elsewhere."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
import torch
from report.gallery import gallery

from dovetail.core.notebook import html_of
from dovetail.core.views import Figure, Series, Table, Text
from dovetail.measure.familiar import familiar_with
from dovetail.parts.part import build
from dovetail.tasks.task import Task

NASTY = """</script><script>alert(1)</script><img src=x onerror=alert(1)>"'&<!--"""
VOID = {"img"}


class Checker(HTMLParser):
    """Balanced, and nothing that runs or is fetched."""

    def __init__(self):
        super().__init__()
        self.open, self.words, self.pictures = [], [], []

    def handle_starttag(self, tag, attributes):
        assert tag not in ("script", "link", "iframe", "object", "style", "meta")
        for name, value in attributes:
            assert not name.startswith("on")
            assert name != "href"
            if name == "src":
                kind, _, data = value.partition(",")
                assert kind == "data:image/svg+xml;base64"
                self.pictures.append(base64.b64decode(data).decode())
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def checked(html):
    found = Checker()
    found.feed(html)
    found.close()
    assert not found.open
    for picture in found.pictures:
        for element in ElementTree.fromstring(picture).iter():
            assert not element.tag.endswith(("script", "image", "use", "a"))
            assert not any(re.search(r"href|src|^on", name) for name in element.attrib)
            if element.tag.endswith("style"):
                assert not re.search(r"url\((?!#)|@import", element.text)
    return found


@pytest.mark.parametrize("record", gallery(), ids=lambda record: record.title)
def test_every_block_is_drawn_whole_and_inert(record):
    assert record.title in " ".join(checked(record._repr_html_()).words)


def test_words_are_escaped_everywhere():
    line = Figure("line", NASTY, (Series(NASTY, (1, 2), (0.5, 0.25)),))
    blocks = (Text(NASTY), Text(NASTY, "code"), Table((NASTY,), ((NASTY,),), (), NASTY), line)
    found = checked(html_of(NASTY, blocks))
    assert NASTY in " ".join(found.words)


def test_tasks_parts_and_records_show_themselves():
    task = Task(torch.rand(60, 4), ["<b>", "c"] * 30, name="<i>task", notes=("<u> was skipped",))
    part = build("mlp", shape=(4,), hidden=(8,), classes=2)
    part = part.changed(familiar=familiar_with(part, task))
    words = " ".join(checked(task._repr_html_()).words)
    assert "Task: <i>task" in words
    assert "<u> was skipped" in words
    assert "<b>, c" in words
    words = " ".join(checked(part._repr_html_()).words)
    assert "Part: mlp" in words
    assert "what 'head' takes" in words


@pytest.mark.parametrize(
    "block",
    [
        Table(("a", "b"), ((1, "x" * 100_000),) * 10_000),
        Table(tuple(f"column {i}" for i in range(3000)), ((1.0,) * 3000,) * 3),
        Text("x" * 10_000_000),
        Figure("line", "long", (Series("a", tuple(range(60_000)), (0.5,) * 60_000),)),
    ],
    ids=["rows", "columns", "text", "figure"],
)
def test_what_is_long_is_cut(block):
    assert len(html_of("long", (block,) * 40)) < 1_200_000


def test_cut_tables_say_how_much_is_missing():
    words = " ".join(checked(html_of("t", (Table(("a",), ((1,),) * 100),))).words)
    assert "60 more rows not shown" in words


def test_nothing_is_drawn_before_a_notebook_asks():
    code = "import sys, dovetail as dt; dt.Task, dt.Part; print('dovetail.report' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
