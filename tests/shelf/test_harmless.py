"""Names that would steer a terminal, of folders, files, builders and tags: none is printed."""

import json
import os

import pytest
from hostile.liar import edit_json, vouch

from dovetail.cli.main import main
from dovetail.shelf.store import Shelf

EVIL = "a\x1b[2J\x1b]0;title\x07\x9b31m\u202e[bold]\nb"


@pytest.fixture
def evil(tmp_path, tiny):
    """A shelf in a folder of an evil name, with evil names wherever there can be one."""
    shelf = Shelf(tmp_path / EVIL / "shelf")
    for name in ("good", "builder", "listed", "class", "note"):
        shelf.add(tiny(), name)
    folder = shelf.folder

    def recipe(config):
        config["recipe"]["build"] = EVIL

    def contract(config):
        config["contract"]["classes"] = [EVIL, "b"]
        config["contract"]["gives"][0]["space"] = EVIL
        config["origin"].update(task=EVIL, how=EVIL, settings={EVIL: EVIL})

    edit_json(folder / "builder" / "1" / "config.json", recipe)
    edit_json(folder / "class" / "1" / "config.json", contract)
    for name in ("builder", "class"):
        vouch(folder / name / "1")
    edit_json(folder / "listed" / "1" / "manifest.json", lambda m: m["files"].update({EVIL: {}}))
    edit_json(folder / "note" / "1.json", lambda note: note.update(tags=[EVIL]))
    (folder / EVIL).write_text("foreign")
    (folder / "good" / EVIL).mkdir()
    (folder / "good" / "1" / EVIL).write_text("foreign")
    (folder / "_fits").mkdir()
    (folder / "_fits" / f"{EVIL}.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("ls",), 0),
        (("find", "--task", EVIL), 0),
        (("show", "class"), 0),
        (("show", "builder"), 0),
        (("show", "listed"), 0),
        (("show", "note"), 0),
        (("show", EVIL), 2),
        (("show", f"good@{EVIL}"), 2),
        (("path", "good", "class"), 2),
        (("verify",), 1),
        (("rm", EVIL), 2),
        (("add", EVIL), 2),
        (("add", EVIL, "--name", EVIL, "--tag", EVIL), 2),
        (("add", "{shelf}/listed/1"), 2),
        (("add", "{shelf}/builder/1"), 2),
        (("add", "{shelf}/good/1", "--tag", EVIL), 2),
        (("no-such-action" + EVIL,), 2),
    ],
)
def test_nothing_that_steers_a_terminal_is_printed(evil, words, code, capsys):
    command = [word.replace("{shelf}", str(evil)) for word in words]
    try:
        found = main(["shelf", *command, "--shelf", str(evil)])
    except SystemExit as stopped:
        found = stopped.code
    printed = capsys.readouterr()
    strange = {c for c in printed.out + printed.err if not (c.isprintable() or c == "\n")}
    assert (found, strange) == (code, set())


def test_json_for_machines_is_ascii(evil, capsys):
    assert main(["shelf", "ls", "--json", "--shelf", str(evil)]) == 0
    out = capsys.readouterr().out
    assert out.isascii()
    assert EVIL in {row["task"] for row in json.loads(out)["rows"]}


def test_a_progress_bar_shows_names_as_they_are_and_no_more(capfd, monkeypatch):
    from dovetail.core.progress import progress

    monkeypatch.setitem(os.environ, "COLUMNS", "200")
    with progress("packing", 1, show=True) as step:
        step(EVIL)
    shown = capfd.readouterr().err
    assert "�]0;title�" in shown
    assert "[bold]" in shown  # a name, not a style
    assert not {"\x07", "\x9b", "\u202e"} & set(shown)
