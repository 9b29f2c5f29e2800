"""Figures as files: each one, whole, in colours every program understands; and PNG."""

import struct
import sys
import types
import xml.etree.ElementTree as ET

import pytest
from report.gallery import figures, gallery, maps, planes, rankings, stored

from dovetail.core.errors import MissingExtraError, SettingsError
from dovetail.core.views import Heatmap, Text
from dovetail.report import draw_figure, draw_heatmap, export_figures, standalone
from dovetail.report.export import _font, draw, to_png
from dovetail.report.text import text_width

SVG = "{http://www.w3.org/2000/svg}"


def test_each_figure_has_a_file_of_its_own(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    files = export_figures(gallery(), tmp_path)
    assert len(files) == 16
    assert {*files, tmp_path / "notes.txt"} == set(tmp_path.iterdir())
    assert files[0].name == "3-figures-1-loss-and-accuracy-of-a-training-that-too.svg"


@pytest.mark.parametrize("theme", ["auto", "light", "dark"])
@pytest.mark.parametrize(
    "block",
    [
        block
        for block in (*figures(), *maps(), *planes(), *rankings())
        if not isinstance(block, Text)
    ],
    ids=lambda block: block.title[:12],
)
def test_a_file_needs_no_variables_and_no_page(block, theme):
    drawing = draw(block)
    root = ET.fromstring(standalone(drawing, theme=theme))
    style = root.find(SVG + "style").text
    assert "var(" not in style
    assert "--" not in style
    assert ("@media" in style) == (theme == "auto")


def test_a_file_has_margins(tmp_path):
    drawing = draw_heatmap(maps()[0])
    inner = ET.fromstring(drawing)
    outer = ET.fromstring(standalone(drawing))
    left, top, wide, tall = (float(v) for v in outer.get("viewBox").split())
    assert (left, top) == (-12, -12)
    assert wide == pytest.approx(float(inner.get("width")) + 24)
    assert tall == pytest.approx(float(inner.get("height")) + 24)
    assert float(outer.get("width")) == wide


@pytest.mark.parametrize("length", [1, 8, 40])
@pytest.mark.parametrize("columns", [1, 3, 12])
def test_a_title_is_whole_and_within_the_picture(columns, length):
    words = " ".join(["accuracy"] * length)
    names = tuple(f"c{j}" for j in range(columns))
    root = ET.fromstring(draw_heatmap(Heatmap(words, ("r",), names, ((0.5,) * columns,))))
    lines = [e.text for e in root.iter(SVG + "text") if e.get("class") == "title"]
    assert " ".join(lines) == words
    assert max(text_width(line, 16.5) for line in lines) <= float(root.get("width")) + 0.01
    assert float(root.get("width")) <= 801


def size_of(png):
    assert png.startswith(b"\x89PNG\r\n")
    return struct.unpack(">II", png[16:24])


@pytest.fixture
def rasteriser():
    resvg = pytest.importorskip("resvg_py", reason="PNG needs the extra 'plots'")
    if _font(resvg) is None:
        pytest.skip("PNG needs a sans-serif font, such as DejaVu Sans")


@pytest.mark.usefixtures("rasteriser")
def test_a_png_has_the_size_asked_for_and_words_in_it():
    drawing = draw_heatmap(maps()[0])
    root = ET.fromstring(standalone(drawing))
    wide, tall = float(root.get("width")), float(root.get("height"))
    png = to_png(drawing, scale=2.0)
    assert size_of(png) == pytest.approx((2 * wide, 2 * tall), abs=2)
    assert png != to_png(drawing, theme="dark")
    without = drawing.replace(">100%<", "><")
    assert without != drawing
    assert to_png(without) != png


@pytest.mark.usefixtures("rasteriser")
@pytest.mark.parametrize("block", [rankings()[0], rankings()[2]], ids=lambda block: block.kind)
def test_a_png_shows_the_marks_of_named_values(block):
    drawing = draw_figure(block)
    for mark in ("dot", "guide", *(["whisker"] if block.kind == "interval" else ["line fine"])):
        without = drawing.replace(f'class="{mark}"', 'visibility="hidden"')
        assert without != drawing
        assert to_png(without, scale=0.5) != to_png(drawing, scale=0.5)


@pytest.mark.usefixtures("rasteriser")
def test_png_files_are_written(tmp_path):
    (file,) = export_figures([stored("x", maps()[0])], tmp_path, format="png", scale=1.0)
    assert file.suffix == ".png"
    assert size_of(file.read_bytes())[0] > 200


def test_without_the_extra_the_way_out_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", None)  # hides an installed one
    with pytest.raises(MissingExtraError, match=r'pip install "dovetail\[plots\]"'):
        to_png(draw_heatmap(maps()[0]))


def test_without_a_font_no_wordless_png_is_made(monkeypatch):
    module = types.ModuleType("resvg_py")
    module.svg_to_bytes = lambda **_: b"blank"  # what text without a font looks like
    monkeypatch.setitem(sys.modules, "resvg_py", module)
    with pytest.raises(SettingsError, match="no sans-serif font"):
        to_png(draw_heatmap(maps()[0]))


@pytest.mark.parametrize("wrong", [{"format": "gif"}, {"scale": 0.0}, {"scale": 1e9}])
def test_settings_out_of_range_are_refused(tmp_path, wrong):
    with pytest.raises(SettingsError):
        export_figures(gallery(), tmp_path, **wrong)
    assert list(tmp_path.iterdir()) == []
