"""An error names an argument as the command line has it, whoever raised it."""

import argparse

import pytest
from settings.test_declared_once import DECLARING

from dovetail.cli.common import add_settings
from dovetail.cli.parsing import Parser
from dovetail.core.errors import SettingsError

CHOSEN = {
    (settings.__name__, name): (settings, one)
    for settings in DECLARING
    for name, one in settings.declared.items()
    if one.choices
}


@pytest.mark.parametrize("key", CHOSEN, ids=" ".join)
def test_a_setting_with_choices_is_refused_by_its_flag(key):
    settings, one = CHOSEN[key]
    parser = Parser(prog="dovetail")
    add_settings(parser, settings.declared.values())
    flag = next(each for each in one.flag.split() if each.startswith("--"))
    with pytest.raises(SettingsError) as refused:
        settings.check({one.name: "nosuch"})
    assert refused.value.spelled(parser.spell).startswith(f"unknown {flag} 'nosuch'")
    plain = f"{one.name} is one of {', '.join(one.choices)}, got 'nosuch'"
    said = argparse.Namespace(**{one.name: "nosuch"})
    assert parser.spell_first(plain, said).startswith(f"{flag} is one of")
    unsaid = argparse.Namespace(**{one.name: None})
    assert parser.spell_first(plain, unsaid) == plain


def test_a_value_behind_the_name_is_spelled_with_it():
    parser = Parser(prog="train")
    parser.add_argument("--solver")
    said = parser.parse_args(["--solver", "pinv"])
    assert parser.spell_first("solver='pinv' needs all", said) == "--solver pinv needs all"
    assert parser.spell_first("solver", said) == "solver"


def test_what_is_no_option_is_left_as_it_is():
    parser = Parser(prog="rank")
    parser.add_argument("task")
    said = parser.parse_args(["digits"])
    assert parser.spell_first("task must be a Task", said) == "task must be a Task"
    assert parser.spell_first("nothing of it", said) == "nothing of it"
