"""Every flag, default and limit is declared once; a way to train is one file and one row."""

from __future__ import annotations

import argparse
import ast
import inspect
import pkgutil
import sys
import textwrap
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from cli.console import call

import dovetail
import dovetail.settings
from dovetail import ranking, reuse, train
from dovetail.adapt.ways import Choices
from dovetail.cli import main as door
from dovetail.core.errors import SettingsError
from dovetail.core.settings import Setting, Settings, setting
from dovetail.jobs import (
    adapt,
    cut,
    data,
    demo,
    fit,
    join,
    pack,
    predict,
    rank,
    report,
    shelf,
)
from dovetail.jobs import (
    inspect as inspecting,
)
from dovetail.pack.compressing import compress
from dovetail.pack.quality import smallest_within
from dovetail.pack.rules import Rules
from dovetail.parts.part import as_part
from dovetail.settings.adapt import Adapt
from dovetail.settings.common import Common
from dovetail.settings.export import Export
from dovetail.settings.fit import Fitting
from dovetail.settings.inspect import Inspect
from dovetail.settings.join import Cut, Join, Joined, Recombine, Repairs
from dovetail.settings.pack import MARGIN, Bits, Pack, Unpack
from dovetail.settings.rank import Rank
from dovetail.settings.reuse import USES
from dovetail.settings.shelf import Add, Pull, Push, Remove, Verify
from dovetail.settings.show import Data, Demo, Predict, Report
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
    (dovetail.join, Join),
    (dovetail.recombine, Recombine),
    (dovetail.explain_fit, Repairs),
    (dovetail.rank, Rank),
    (dovetail.fit, Fitting),
    (fit.fit, Fitting),
    (dovetail.pack_part, Pack),
    (train.stitch, Joined),
    (reuse.judge_adaptation, Joined),
    (reuse.judge_extension, Joined),
    (reuse.judge_replacement, Joined),
    (compress, Bits),
    (Rules, Bits),
    (Choices, Adapt),
    (adapt.adapt, Adapt),
    (cut.cut, Cut),
    (data.get, Data),
    (demo.demo, Demo),
    (demo.demo, Common),
    (join.join, Join),
    (join.explain, Join),
    (pack.pack, Pack),
    (pack.unpack, Unpack),
    (dovetail.export, Export),
    (dovetail.lens.inspect, Inspect),
    (inspecting.inspect, Inspect),
    (predict.predict, Predict),
    (rank.rank, Rank),
    (report.report, Report),
    (shelf.add, Add),
    (shelf.pull, Pull),
    (shelf.push, Push),
    (shelf.rm, Remove),
    (shelf.verify, Verify),
]
DECLARING = [
    one
    for module in pkgutil.iter_modules(dovetail.settings.__path__)
    for one in vars(import_module(f"dovetail.settings.{module.name}")).values()
    if isinstance(one, type) and issubclass(one, Settings) and one.declared
]


def usual(function, settings):
    """The defaults of a signature that are declared, and how each is written."""
    signature = inspect.signature(function).parameters
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body[0]
    if isinstance(tree, ast.ClassDef):
        written = {n.target.id: n.value for n in tree.body if isinstance(n, ast.AnnAssign)}
    else:
        both = tree.args.posonlyargs + tree.args.args
        last = both[len(both) - len(tree.args.defaults) :]
        written = {one.arg: value for one, value in zip(last, tree.args.defaults, strict=True)}
        each = zip(tree.args.kwonlyargs, tree.args.kw_defaults, strict=True)
        written |= {one.arg: value for one, value in each if value is not None}
    return {
        name: (signature[name].default, written[name])
        for name in settings.declared
        if name in written and name in signature
    }


@pytest.mark.parametrize(("function", "settings"), DECLARED, ids=lambda one: one.__qualname__)
def test_a_signature_takes_its_defaults_from_the_declaration(function, settings):
    """None, which says that nothing was said, may be written: there is no second figure in it."""
    defaults = usual(function, settings)
    assert defaults
    declared = {name: settings.declared[name].default for name in defaults}
    assert {name: value for name, (value, _) in defaults.items()} == declared
    by_hand = [
        name
        for name, (value, written) in defaults.items()
        if value is not None and not isinstance(written, ast.Attribute)
    ]
    assert by_hand == []


def test_the_margin_of_a_budget_is_the_declared_one():
    assert inspect.signature(smallest_within).parameters["margin"].default is MARGIN


def test_the_norms_are_declared_in_one_place_with_the_reason():
    owners = {id(one.declared["norms"]) for one in DECLARING if "norms" in one.declared}
    assert owners == {id(one.declared["norms"]) for one in (Joined, Recombine)}
    assert {one.norms for one in DECLARING if "norms" in one.declared} == {"auto"}
    assert len(Joined.__doc__.splitlines()) > 2


def test_trainers_name_the_same_options_of_the_loop():
    assert set(LoopOptions.__annotations__) == set(Options.__annotations__)
    assert set(Loop.declared) < set(Options.__annotations__)


DOORS = {
    *("-h", "--help", "--json", "--record", "--name", "--set", "--task-set"),
    *("rank --part", "join --explain", "data get --all", "pack --all", "unpack --all"),
    *("recombine --heads", "recombine --task", "train --net", "train --from", "train --how"),
    *("reuse replace --net", "reuse replace --from", "reuse devices --net", "reuse devices --from"),
    "reuse extend --front",
}
"""What no function takes as it is said, or what names the things a command works on."""


def options_of(*words):
    """The options of a command by flag."""
    found = []

    class Seen(Exception):
        pass

    def parse(self, args=None, namespace=None):
        found.extend(self._actions)
        raise Seen

    with pytest.MonkeyPatch.context() as patch:
        known = argparse.ArgumentParser.parse_known_args
        patch.setattr(
            argparse.ArgumentParser,
            "parse_known_args",
            lambda self, *args, **more: (
                parse(self) if self.prog == f"dovetail {' '.join(words)}" else known(self, *args)
            ),
        )
        with pytest.raises(Seen):
            door._parser().parse_args([*words])
    return {flag: one for one in found for flag in one.option_strings}


COMMANDS = [
    *((name,) for name in door._COMMANDS if name not in ("data", "shelf", "reuse")),
    *(("data", action) for action in ("ls", "get")),
    *(("reuse", use) for use in USES),
    *(("shelf", action) for action in ("ls", "find", "path", "show", "add", "rm", "verify")),
    *(("shelf", action) for action in ("push", "pull")),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_option_is_declared_or_the_doors_own(command):
    declared = {flag: one for s in DECLARING for one in s.declared.values() for flag in flags(one)}
    for flag, option in options_of(*command).items():
        if flag in DOORS or f"{' '.join(command)} {flag}" in DOORS:
            continue
        assert flag in declared, f"{flag} of {command} is written by hand"
        assert option.default in (None, Common.shelf)


def flags(one):
    """A setting's flags; of one that is on by default also how to switch it off."""
    off = [f"--no-{one.flag.removeprefix('--')}"] if one.default is True else []
    return [*one.flag.split(), *off]


@pytest.mark.parametrize("file", sorted((PACKAGE / "cli").glob("*.py")), ids=lambda f: f.stem)
def test_no_flag_of_a_declared_setting_is_written_by_hand(file):
    """A command's flags come from the classes it imports."""
    module = import_module(f"dovetail.cli.{file.stem}")
    mine = {one for one in vars(module).values() if isinstance(one, type)} & {*DECLARING}
    mine |= {way.settings for way in WAYS.values()} if file.stem == "train" else set()
    mine |= {settings for settings, _ in USES.values()} if file.stem == "reuse" else set()
    declared = {flag for one in mine for each in one.declared.values() for flag in flags(each)}
    calls = [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Call)]
    adding = [n for n in calls if getattr(n.func, "attr", "") == "add_argument"]
    written = {a.value for n in adding for a in n.args if isinstance(a, ast.Constant)}
    assert not declared & written


def test_every_setting_has_words_and_a_type_that_the_command_line_reads():
    words = ("str", "Folder", "Norms", "Split", "Pooling", "Rule", "Way", "Literal['svg', 'png']")
    numbers = ("int", "float", "bool", "tuple[int, int]", "tuple[int")
    several = ("tuple[str, ...]", "tuple[int, ...]", "tuple[int | str, ...]", "tuple[Norms, ...]")
    for settings in DECLARING:
        for one in settings.declared.values():
            assert one.help
            assert one.kind in (*words, *numbers, *several), (settings, one.name)


POSITIONS = (
    ("model", "models", "part", "parts", "front", "fronts", "new"),
    ("adapted", "old", "onto", "rp_head", "old_head", "new_head"),
    ("head", "heads"),
    ("task", "tasks", "inputs"),
)
"""What a function is about, in the order in which it takes it."""

PUBLIC = {
    one.__qualname__: one
    for room in (dovetail, train, reuse, ranking)
    for name in room.__all__
    if inspect.isfunction(one := getattr(room, name))
} | {f"{way.name}": way.load() for way in WAYS.values()}


@pytest.mark.parametrize("name", PUBLIC)
def test_arguments_have_the_agreed_names_and_order(name):
    parameters = inspect.signature(PUBLIC[name]).parameters
    assert "random_state" not in parameters
    assert not {"dataset", "network", "target", "norm", "cut_at"} & set(parameters)
    keyword = inspect.Parameter.KEYWORD_ONLY
    first = [n for n, one in parameters.items() if one.kind is not keyword]
    places = [i for n in first for i, names in enumerate(POSITIONS) if n in names]
    if "old" not in first:  # the judges compare the old with the new
        assert places == sorted(places)
    if "seed" in parameters and "per_example" not in parameters:
        assert (parameters["seed"].kind, parameters["seed"].default) == (keyword, Common.seed)
    for word in ("norms", "how"):
        assert word not in parameters or parameters[word].kind is keyword
    for word in ("at", "by"):  # a cut is by its point, a score by its name
        alone = PUBLIC[name] in (dovetail.cut, ranking.score, ranking.ntk_score)
        assert word not in parameters or alone or parameters[word].kind is keyword


class Limits(Settings):
    """All kinds of limits."""

    count: int = setting(3, "how many", least=1)
    share: float = setting(0.5, "of it", least=0, most=1)
    length: float | None = setting(None, "longer than nothing", above=0)
    way: str = setting("slow", "how", choices=("slow", "fast"))
    penalty: float | str = setting("auto", "a number, or auto")
    several: tuple[int, ...] = setting((1, 10), "some", least=1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"several": (3, 0)}, "several must be at least 1, got 0"),
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
