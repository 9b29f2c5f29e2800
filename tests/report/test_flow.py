"""``dovetail report``: the suffix chooses the format, and a mistake costs one line."""

import json

import pytest
from report.gallery import gallery

from dovetail.cli.main import main


@pytest.fixture
def records(tmp_path):
    for number, record in enumerate(gallery()):
        record.save(tmp_path / "records" / f"{number}.json")
    return tmp_path / "records"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("output", "begins", "beside"),
    [
        ("report.html", "<!DOCTYPE html>", []),
        ("REPORT.HTM", "<!DOCTYPE html>", []),
        ("report.md", "# Mine", ["report_files"]),
    ],
)
def test_the_suffix_chooses_the_format(records, tmp_path, capsys, output, begins, beside):
    path = tmp_path / output
    assert main(["report", str(records), "-o", str(path), "--title", "Mine"]) == 0
    assert path.read_text(encoding="utf-8").startswith(begins)
    assert names(tmp_path) == sorted(["records", output, *beside])
    assert f"{path} holds 8 records." in capsys.readouterr().out


def test_figures_alone(records, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(records), "--figures", "drawn", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert "report" not in told
    assert [tmp_path / name for name in told["figures"]] == sorted((tmp_path / "drawn").iterdir())
    assert names(tmp_path) == ["drawn", "records"]


def test_figures_beside_a_report(records, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(records), "--figures", "drawn", "-o", "r.html"]) == 0
    assert names(tmp_path) == ["drawn", "r.html", "records"]


def test_without_an_output_the_page_is_report_html(records, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(records)]) == 0
    assert names(tmp_path) == ["records", "report.html"]


@pytest.mark.parametrize("output", ["report.pdf", "report", "report.docx"])
def test_an_unknown_suffix_is_a_users_mistake(records, tmp_path, capsys, output):
    assert main(["report", str(records), "-o", str(tmp_path / output)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("dovetail: a report is .html or .md")
    assert said.count("\n") == 1
    assert names(tmp_path) == ["records"]


def test_an_unknown_format_of_figures_is_a_users_mistake(records, tmp_path, capsys):
    words = ["report", str(records), "--figures", str(tmp_path / "f"), "--format", "gif"]
    assert main(words) == 2
    assert "unknown --format 'gif'; there is svg, png" in capsys.readouterr().err
