"""Every flag, default and limit is declared once; a way to train is one file and one row."""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path
from types import ModuleType

import pytest
from cli.console import call

import dovetail
from dovetail import reuse
from dovetail.cli import main as door
from dovetail.core.errors import SettingsError
from dovetail.core.settings import Setting, Settings, setting
from dovetail.parts.part import as_part
from dovetail.settings.reuse import USES
from dovetail.settings.train import WAYS, EndToEnd, Loop, Steps, Way
from dovetail.shelf.store import Shelf
from dovetail.train.end_to_end import end_to_end
from dovetail.train.fit import Fit
from dovetail.train.options import LoopOptions, Options

PACKAGE = Path(dovetail.__file__).parent
FUNCTIONS = {
    "domain": reuse.adapt_domain,
    "replace": reuse.replace_front,
    "devices": reuse.shared_head,
    "extend": reuse.extend_classes,
    "transfer": reuse.transfer,
}
DECLARED = [
    *((way.load(), way.settings) for way in WAYS.values()),
    *((FUNCTIONS[use], settings) for use, (settings, _) in USES.items()),
    (Options, Loop),
]


@pytest.mark.parametrize(("function", "settings"), DECLARED, ids=lambda one: one.__name__)
def test_a_signature_has_the_declared_defaults(function, settings):
    usual = {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    declared = {name: one.default for name, one in settings.declared.items()}
    both = usual.keys() & declared.keys()
    assert both
    assert {name: usual[name] for name in both} == {name: declared[name] for name in both}


def test_trainers_name_the_same_options_of_the_loop():
    assert set(LoopOptions.__annotations__) == set(Options.__annotations__)
    assert set(Loop.declared) < set(Options.__annotations__)


def test_no_flag_of_a_declared_setting_is_written_by_hand():
    """In ``cli/train.py`` and ``cli/reuse.py`` flags come from the declarations."""
    flags = {one.flag for way in WAYS.values() for one in way.settings.declared.values()}
    flags |= {one.flag for settings, _ in USES.values() for one in settings.declared.values()}
    for name in ("train", "reuse"):
        tree = ast.parse((PACKAGE / "cli" / f"{name}.py").read_text())
        words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        assert not flags & words


def test_every_setting_has_words_and_a_type_that_the_command_line_reads():
    known = ("int", "float", "str", "bool", "tuple[str, ...]", "tuple[int, ...]")
    for settings in [*(w.settings for w in WAYS.values()), *(s for s, _ in USES.values())]:
        for one in settings.declared.values():
            assert one.help
            assert one.kind in known


class Limits(Settings):
    """All kinds of limits."""

    count: int = setting(3, "how many", least=1)
    share: float = setting(0.5, "of it", least=0, most=1)
    length: float | None = setting(None, "longer than nothing", above=0)
    way: str = setting("slow", "how", choices=("slow", "fast"))
    penalty: float | str = setting("auto", "a number, or auto")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": 0}, "count must be at least 1, got 0"),
        ({"count": 2.5}, "count must be a whole number of at least 1, got 2.5"),
        ({"count": None}, "count must be a whole number of at least 1, got None"),
        ({"share": 1.5}, "share must be at most 1, got 1.5"),
        ({"share": float("nan")}, "share must be a number of at least 0, got nan"),
        ({"share": "much"}, "share must be a number, got 'much'"),
        ({"length": 0}, "length must be above 0, got 0"),
        ({"way": "fats"}, "unknown way 'fats'; did you mean fast"),
    ],
)
def test_limits_are_checked(values, message):
    with pytest.raises(SettingsError, match=message):
        Limits.check(values)


def test_what_is_allowed_is_allowed():
    Limits.check({"count": 1, "share": 1, "length": None, "way": print, "penalty": "auto"})
    Limits.check({"penalty": 0.5, "other": -1})
    assert (Limits.count, Limits.length, Limits.way) == (3, None, "slow")
    assert isinstance(Limits.declared["way"], Setting)


class Patient(Steps):
    """End to end, after a while."""

    wait: int = setting(2, "how long", least=1)


def patiently(model, task, *, wait=Patient.wait, seed=0, **options):
    """A way to train: what it adds is in its record."""
    Patient.check({"wait": wait})
    fit = end_to_end(as_part(model), task, seed=seed, **options)
    settings = {**fit.record.settings, "wait": wait}
    return Fit(fit.parts, type(fit.record)(**{**vars(fit.record), "settings": settings}))


@pytest.fixture
def patient_way(monkeypatch):
    module = ModuleType("patient_way")
    module.patiently = patiently
    monkeypatch.setitem(sys.modules, "patient_way", module)
    way = Way("patient", "patient_way:patiently", Patient, "dovetail train digits --how patient")
    monkeypatch.setitem(WAYS, "patient", way)


def test_a_way_to_train_is_one_file_and_one_row(patient_way, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    helped = call(capsys, "train", "--how", "patient", "--help").out
    assert "how long (default: 2)" in helped
    assert "End to end, after a while." in helped
    refused = call(capsys, "train", "digits", "--how", "patient", "--wait", 0)
    assert (refused.code, refused.err) == (2, "dovetail: --wait must be at least 1, got 0\n")
    stray = call(capsys, "train", "digits", "--wait", 3)
    assert "--wait is an option of --how patient, not of --how end-to-end" in stray.err
    words = ("--how", "patient", "--wait", 5, "--net", "mlp", "--epochs", 2, "--record", "records")
    said = call(capsys, "train", "digits", *words, "--name", "slow", "--json")
    assert said.code == 0
    assert said.json["measures"]["test accuracy"] > 0.8
    assert Shelf("shelf", create=False).get("slow").contract.classes is not None
    assert any('"wait": 5' in file.read_text() for file in Path("records").iterdir())


def test_every_command_spells_arguments_its_own_way():
    parser = door._parser()
    args = parser.parse_args(["train", "digits", "--how", "compatible"])
    spelled = {name: args.parser.spell(name, value) for name, value in (
        ("auxiliaries", "="), ("by", "=('rp',)"), ("resume", "=False"), ("start", ""),
        ("set.classes", "=10"), ("task_set.unreadable", "='skip'"), ("weights", "="),
    )}  # fmt: skip
    assert spelled == {
        "auxiliaries": "--auxiliary",
        "by": "--by rp",
        "resume": "--no-resume",
        "start": "--from",
        "set.classes": "--set classes=10",
        "task_set.unreadable": "--task-set unreadable=skip",
        "weights": "weights=",
    }
    assert EndToEnd.declared["epochs"] is Loop.declared["epochs"]
