"""Rows of a table that has no target, to classes and to numbers."""

from __future__ import annotations

import json
import random

import pytest

from dovetail.cli.main import main

TOWNS = {"Bonn": 2, "Kiel": 1, "Ulm": 0}


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    tables = {"price": ["rooms,town,area,price"], "dear": ["rooms,town,area,dear"]}
    for _ in range(200):
        rooms, town = draw.randint(1, 6), draw.choice(sorted(TOWNS))
        area = 20 * rooms + 10 * draw.random()
        price = 3 * rooms + area / 10 + TOWNS[town]
        tables["price"].append(f"{rooms},{town},{area},{price}")
        tables["dear"].append(f"{rooms},{town},{area},{'yes' if price > 18 else 'no'}")
    for target, rows in tables.items():
        (tmp_path / f"{target}.csv").write_text("\n".join(rows))
        options = ["--how", "closed-form", "--set", "hidden=[20]", "--name", target]
        assert main(["train", f"{target}.csv", "--target", target, *options]) == 0
    return tmp_path


def said(capsys, *arguments):
    capsys.readouterr()
    assert main(["predict", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["predictions"]


def test_new_rows_in_any_order_of_columns_and_towns(shelf, capsys):
    (shelf / "new.csv").write_text("town,area,remark,rooms\nUlm,61,-,3\nBonn,125,-,6\n")
    numbers = said(capsys, "price", "new.csv")
    assert [row["input"] for row in numbers] == ["line 2", "line 3"]
    assert [row["number"] for row in numbers] == pytest.approx([15.1, 32.5], abs=0.3)
    classes = said(capsys, "dear", "new.csv")
    assert [row["class"] for row in classes] == ["no", "yes"]
    (first,) = said(capsys, "dear", "new.csv", "--most", "1")
    assert (first["input"], first["class"]) == ("line 2", "no")


def test_a_table_with_its_target_is_a_task(shelf, capsys):
    rows = said(capsys, "price", "price.csv", "--target", "price")
    assert len(rows) == 40
    assert all(row["number"] == pytest.approx(row["true number"], abs=0.5) for row in rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("town,rooms\nUlm,3\n", "no column 'area'"),
        (
            "town,area,rooms\nBerlin,60,3\n",
            "line 2: column 'town' has 'Berlin', which",
        ),
        ("town,area,rooms\nUlm,,3\n", "line 2: column 'area' has no value"),
        ("town,area,rooms\nUlm,wide,3\n", "column 'area' is text"),
        ("town,area,rooms\n", "no rows"),
    ],
)
def test_rows_that_the_part_cannot_take_are_named(shelf, capsys, text, message):
    (shelf / "new.csv").write_text(text)
    assert main(["predict", "price", "new.csv"]) == 2
    assert message in capsys.readouterr().err
