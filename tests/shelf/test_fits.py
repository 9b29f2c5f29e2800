import errno
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.cli.main import main
from dovetail.core.errors import FormatError, SettingsError, ShelfError
from dovetail.core.records import load_record
from dovetail.parts.contract import Contract, Port
from dovetail.parts.cutting import cut
from dovetail.parts.part import build
from dovetail.shelf.fits import (
    FOLDER,
    MeasuredFit,
    best,
    neighbours,
    read_fit,
    read_fits,
    write_fit,
)
from dovetail.shelf.store import Shelf


def fit_of(front="1f", head="9c", through=(), accuracy=0.9, **more):
    facts = {"task": "digits", "task_fingerprint": "07", "split": "test", "norms": "batch"}
    facts |= {"chance": 0.1, "n": 360}
    return MeasuredFit(front=front, head=head, through=through, accuracy=accuracy, **facts | more)


@pytest.fixture
def family(shelf):
    """A front, its head, and two more heads of its space, on a shelf; the front first."""
    front, head = cut(build("mlp", shape=(3,), hidden=(4,), classes=2), at="hidden1")
    others = [
        cut(build("mlp", shape=(3,), hidden=(4,), classes=2, seed=s), "hidden1") for s in (1, 2)
    ]
    heads = [head, *(h.changed(contract=head.contract) for _, h in others)]
    entries = [shelf.add(each, f"head-{name}") for each, name in zip(heads, "abc", strict=True)]
    stranger = shelf.add(others[0][1], "head-of-another-space")
    return front, entries, stranger


# Keeping ------------------------------------------------------------------------------------------


def test_what_is_kept_comes_back(shelf):
    fits = [fit_of(accuracy=0.7), fit_of(through=["5a", "6b"], accuracy=0.9), fit_of(split="train")]
    for fit in fits:
        path = shelf.keep_fit(fit)
        assert path.parent == shelf.folder / FOLDER
    assert sorted(map(repr, shelf.fits())) == sorted(map(repr, fits))
    assert shelf.fits()[-1].accuracy == 0.7
    assert Shelf(shelf.folder).fits() == shelf.fits()


@pytest.mark.parametrize(
    "other",
    [
        {"front": "2f"},
        {"head": "8c"},
        {"through": ("5a",)},
        {"task_fingerprint": "08"},
        {"split": "train"},
        {"norms": "stored"},
    ],
)
def test_what_was_measured_is_the_name(shelf, other):
    shelf.keep_fit(fit_of())
    shelf.keep_fit(fit_of(**other))
    assert len(shelf.fits()) == 2


def test_measured_again_it_is_replaced(shelf):
    shelf.keep_fit(fit_of(accuracy=0.9))
    shelf.keep_fit(fit_of(accuracy=0.2, n=10, task="renamed", chance=0.5))
    assert [fit.accuracy for fit in shelf.fits()] == [0.2]


def test_a_chain_is_not_another_with_its_seams_elsewhere():
    names = {fit_of("a", "d", through).name for through in [("b", "c"), ("bc",), ("c", "b"), ()]}
    assert len(names) == 4
    assert fit_of("a", "b").name != fit_of("b", "a").name


@pytest.mark.parametrize(
    "wrong", [{"accuracy": 1.2}, {"accuracy": float("nan")}, {"chance": -0.1}, {"n": 0}]
)
def test_numbers_that_are_none_are_refused(wrong):
    with pytest.raises(SettingsError, match=r"shares from 0 to 1|number of examples"):
        fit_of(**wrong)


def test_a_single_digest_is_no_list():
    with pytest.raises(SettingsError, match="list of digests"):
        fit_of(through="5a")


def _write(folder, start):
    for i in range(start, start + 20):
        write_fit(folder, fit_of(front=f"{i:02x}", accuracy=i / 100))


def test_writers_do_not_meet(shelf):
    with ThreadPoolExecutor(3) as writers:
        list(writers.map(_write, [shelf.folder] * 3, (0, 10, 30)))
    assert len(shelf.fits()) == 50
    assert shelf.verify().ok
    assert not list((shelf.folder / FOLDER).glob(".*"))


def test_a_shelf_that_may_not_be_written_to(shelf, monkeypatch):
    def refused(*_args, **_kwargs):  # a mode would not stop root
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("dovetail.core.files.os.replace", refused)
    with pytest.raises(ShelfError, match="cannot write to the shelf"):
        shelf.keep_fit(fit_of())
    assert shelf.fits() == []
    assert not list((shelf.folder / FOLDER).glob(".*"))


def test_a_file_in_the_way_is_told(shelf):
    (shelf.folder / FOLDER).write_text("no folder")
    with pytest.raises(ShelfError, match="cannot write to the shelf"):
        shelf.keep_fit(fit_of())
    assert shelf.fits() == []


# Damage -------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_changed_byte_is_noticed(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("shelf")
    path = write_fit(folder, fit_of(through=("5a",)))
    whole = path.read_bytes()
    i = data.draw(st.integers(0, len(whole) - 1))
    path.write_bytes(
        whole[:i] + bytes([whole[i] ^ data.draw(st.integers(1, 255))]) + whole[i + 1 :]
    )
    with pytest.raises(FormatError):
        read_fit(path)
    assert read_fits(folder) == []


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[1]", b"null", b"\xff", b"{" * 10_000, b'{"front": 1}', b"x" * 2_000_000]
)
def test_damaged_files_are_skipped_and_verify_tells(shelf, tiny, text):
    shelf.add(tiny(), "net")
    good, bad = shelf.keep_fit(fit_of()), shelf.keep_fit(fit_of(front="2f"))
    bad.write_bytes(text)
    assert [fit.front for fit in shelf.fits()] == ["1f"]
    check = shelf.verify()
    assert [problem.ref for problem in check.problems] == [f"{FOLDER}/{bad.name}"]
    assert shelf.verify("net").ok
    bad.unlink()
    assert shelf.verify().ok
    assert good.exists()


def test_a_renamed_file_is_not_what_it_says(shelf):
    path = shelf.keep_fit(fit_of())
    path.rename(path.with_name("0" * 64 + ".json"))
    assert shelf.fits() == []
    assert not shelf.verify().ok


def test_links_and_folders_are_no_measurements(shelf, tmp_path):
    path = shelf.keep_fit(fit_of())
    path.rename(tmp_path / "elsewhere.json")
    path.symlink_to(tmp_path / "elsewhere.json")
    (path.parent / "folder.json").mkdir()
    assert shelf.fits() == []


def test_the_folder_is_no_part(shelf, tiny):
    shelf.add(tiny(), "net")
    shelf.keep_fit(fit_of())
    shelf.keep_fit(fit_of(front="2f"))
    (shelf.folder / FOLDER / "notes.txt").write_text("mine")
    (shelf.folder / FOLDER / ".dovetail-1f").write_text("half")
    assert [entry.name for entry in shelf] == ["net"]
    assert len(shelf) == 1
    check = shelf.verify()
    assert check.ok
    assert check.foreign == (f"{FOLDER}/notes.txt",)
    assert check.leftovers == (f"{FOLDER}/.dovetail-1f",)
    assert shelf.sweep(older_than=0) == 1
    assert len(shelf.fits()) == 2
    shelf.add(tiny(1), "other")
    with pytest.raises(ShelfError):
        shelf.add(tiny(), FOLDER)


# Ranking ------------------------------------------------------------------------------------------


def test_measured_fits_come_first(shelf, family):
    front, (a, b, c), _ = family
    assert shelf.find(fits=front) == [a, b, c]
    shelf.keep_fit(fit_of(front.digest, b.digest, accuracy=0.6))
    assert shelf.find(fits=front) == [b, a, c]
    shelf.keep_fit(fit_of(front.digest, c.digest, accuracy=0.7))
    assert shelf.find(fits=front) == [c, b, a]
    assert shelf.find("head-[ab]", fits=front) == [b, a]
    assert shelf.find("head-?") == [a, b, c]
    assert shelf.find(fits=front.contract) == [a, b, c]


def test_a_measurement_on_training_data_does_not_win(shelf, family):
    front, (a, b, c), _ = family
    shelf.keep_fit(fit_of(front.digest, b.digest, accuracy=1.0, split="train"))
    shelf.keep_fit(fit_of(front.digest, b.digest, accuracy=0.5, split="test"))
    shelf.keep_fit(fit_of(front.digest, c.digest, accuracy=0.6, split="validation"))
    assert shelf.find(fits=front) == [c, b, a]


def test_what_fits_only_by_force_is_not_listed(shelf, family):
    front, _, stranger = family
    shelf.keep_fit(fit_of(front.digest, stranger.digest, accuracy=1.0))
    assert stranger not in shelf.find(fits=front)


def test_heads_find_their_fronts_and_stitches_both(shelf, family):
    front, (a, *_), _ = family
    first = shelf.add(front, "front")
    twin = build("mlp", shape=(3,), hidden=(4,), classes=2, seed=5)
    other = cut(twin, "hidden1")[0].changed(contract=front.contract)
    second = shelf.add(other, "another-front")
    assert shelf.find(fits=a) == [second, first]
    shelf.keep_fit(fit_of(front.digest, a.digest))
    assert shelf.find(fits="head-a") == [first, second]
    seam = fit_of("f", "h", ("s", "t"))
    assert set(neighbours([seam], "s")) == {"f", "t"}
    assert neighbours([seam], "x") == {}


def test_removed_parts_leave_their_measurements(shelf, family):
    front, (a, b, c), _ = family
    shelf.keep_fit(fit_of(front.digest, b.digest))
    shelf.rm(b)
    assert shelf.find(fits=front) == [a, c]
    assert len(shelf.fits()) == 1
    assert shelf.verify().ok


def test_the_best_is_the_slow_best():
    fits = [fit_of(accuracy=x / 10, split=s) for x in (3, 9, 6) for s in ("train", "test")]
    assert best(fits) == fit_of(accuracy=0.9, split="test")
    assert best(fits[::2]).split == "train"
    assert best([]) is None


def test_the_list_shows_what_was_measured(shelf, family, capsys, tmp_path):
    front, (a, b, _), _ = family
    shelf.add(front, "front")
    assert "joined" not in str(shelf.ls(fits=front).view())
    shelf.keep_fit(fit_of(front.digest, b.digest, accuracy=0.625))
    listed = shelf.ls(fits=front)
    assert [(row.ref, row.joined) for row in listed.rows[:2]] == [(b.ref, 0.625), (a.ref, None)]
    assert load_record(listed.save(tmp_path / "list.json")) == listed
    assert "62.5%" in [row[-1] for row in listed.view()[0].shown()]
    at = ["--shelf", str(shelf.folder)]
    assert main(["shelf", "find", "--fits", "front", "--json", *at]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["ref"] for row in rows] == [row.ref for row in listed.rows]
    assert main(["shelf", "find", "--fits", "front", *at]) == 0
    assert "62.5%" in capsys.readouterr().out


def test_a_contract_of_nobody_has_no_measurements(shelf, family):
    front, (a, *_), _ = family
    shelf.keep_fit(replace(fit_of(front.digest, a.digest), accuracy=0.0))
    assert shelf.find(fits=Contract(gives=(Port((4,), activation="relu", space="x"),))) == []
    assert shelf.find(fits=front)[0] == a
