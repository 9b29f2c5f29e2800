"""What a shelf said is said again only while it is true."""

import os
import re

import pytest

from dovetail.cli.main import main
from dovetail.parts.part import build
from dovetail.shelf import glance
from dovetail.shelf.store import Shelf


@pytest.fixture
def shelf(tmp_path):
    shelf = Shelf(tmp_path / "shelf")
    shelf.add(build("mlp", shape=(4,), hidden=(3,), classes=2), "net", tags=["first"])
    return shelf


@pytest.fixture
def ask(shelf, capsys, monkeypatch):
    """What the command line says of the shelf; told to, it must know it by heart."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def asked(*words, by_heart=False):
        with monkeypatch.context() as patch:
            if by_heart:
                patch.setattr("dovetail.cli.shelf._outcome", None)
            assert main(["shelf", *words, "--shelf", str(shelf.folder)]) == 0
        return capsys.readouterr().out

    return asked


@pytest.mark.parametrize("words", [["ls"], ["ls", "--json"], ["show", "net"]], ids=" ".join)
def test_the_same_is_said_again(ask, words):
    said = ask(*words)
    assert "net@1" in said
    assert ask(*words, by_heart=True) == said


def test_a_terminal_hears_what_suits_its_width(ask, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    said = {}
    for columns in ("40", "120"):
        monkeypatch.setenv("COLUMNS", columns)
        said[columns] = ask("ls")
        assert ask("ls", by_heart=True) == said[columns]
        bare = re.sub(r"\x1b\[[0-9;]*m", "", said[columns])
        assert max(map(len, bare.splitlines())) <= int(columns)
    assert "\x1b[1m" in said["40"]  # the head of the list is bold
    assert said["40"] != said["120"]


def test_a_command_that_changes_a_shelf_keeps_its_list(ask, shelf, capsys):
    at = ["--shelf", str(shelf.folder)]
    for words, there in (
        (["cut", "net", "--at", "hidden1"], True),
        (["shelf", "rm", "net.front@1"], False),
    ):
        assert main([*words, *at]) == 0
        capsys.readouterr()
        assert ("net.front@1" in ask("ls", by_heart=True)) is there


def test_a_change_is_seen(ask, shelf):
    ask("ls"), ask("show", "net")
    shelf.add(build("mlp", shape=(4,), hidden=(3,), classes=2), "net", tags=["second"])
    assert "second" in ask("ls")
    assert "second" in ask("show", "net")
    shelf.add(build("mlp", shape=(4,), hidden=(3,), classes=2, seed=1), "other")
    assert "other@1" in ask("ls")
    shelf.rm("other@1")
    assert "other@1" not in ask("ls")


def test_an_empty_shelf_says_what_its_list_says(tmp_path, capsys):
    empty = Shelf(tmp_path / "empty")
    at = ["--shelf", str(empty.folder)]
    assert main(["shelf", "ls", *at]) == 0
    assert capsys.readouterr().out == f"{empty.ls().view()[0].text}\n\n"
    assert main(["shelf", "ls", "--json", *at]) == 0
    said = capsys.readouterr().out
    assert main(["shelf", "find", "--json", *at]) == 0
    assert capsys.readouterr().out == said
    assert list(empty.folder.iterdir()) == []  # any folder is an empty shelf: leave nothing in it


def test_damage_is_never_remembered(ask, shelf):
    (shelf.folder / "net" / "1" / "manifest.json").write_text("{}")
    assert "Damaged" in ask("ls")
    assert not (shelf.folder / glance.FILE).exists()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(file.read_bytes()[:-1]),
        lambda file: file.write_bytes(file.read_bytes().replace(b"first", b"other")),
        lambda file: file.write_bytes(b"[" * 100_000),
        lambda file: (file.unlink(), os.mkfifo(file)),
        lambda file: (file.unlink(), file.mkdir()),
        lambda file: (file.unlink(), file.symlink_to("/dev/zero")),
    ],
    ids=["empty", "cut short", "changed", "deep", "pipe", "folder", "link"],
)
def test_a_file_that_is_none_of_ours_is_passed_over(ask, shelf, spoil):
    said = ask("ls")
    spoil(shelf.folder / glance.FILE)
    assert ask("ls") == said


def test_words_that_steer_a_terminal_are_not_said(shelf):
    now = glance.stamps(shelf.folder)
    glance.remember(shelf.folder, "ls", now, "net\x1b[2J")
    assert glance.remembered(shelf.folder, "ls", now) is None


def test_few_answers_are_kept_and_none_of_a_large_shelf(shelf, monkeypatch):
    now = glance.stamps(shelf.folder)
    for i in range(glance.LAST + 1):
        glance.remember(shelf.folder, f"show {i}", now, "card")
    assert glance.remembered(shelf.folder, "show 0", now) is None
    assert glance.remembered(shelf.folder, "show 1", now) == "card"
    (shelf.folder / glance.FILE).unlink()
    monkeypatch.setattr(glance, "FEW", 0)
    glance.remember(shelf.folder, "ls", now, "list")
    assert not (shelf.folder / glance.FILE).exists()


def test_it_is_no_stranger_on_the_shelf(ask, shelf):
    ask("ls")
    assert (shelf.folder / glance.FILE).is_file()
    found = shelf.verify()
    assert (found.ok, found.foreign, found.leftovers) == (True, (), ())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_shelf_that_may_not_be_written_is_listed(ask, shelf):
    shelf.folder.chmod(0o500)
    assert "net@1" in ask("ls")
