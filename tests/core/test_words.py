"""What errors and terminals say of files: harmless, and never too long."""

from __future__ import annotations

import pickle

import pytest

from dovetail.core.errors import (
    ContractError,
    FormatError,
    MissingExtraError,
    ShelfError,
    first_line,
    nearest,
)
from dovetail.core.words import harmless, one_line, shortened

STEERING = "\x1b[2J\x1b]0;owned\x07 \x9b31m \r \u202e \x00 \udcff"


@pytest.mark.parametrize("clean", [harmless, one_line])
def test_nothing_that_steers_a_terminal_is_left(clean):
    words = clean(f"part {STEERING}, 99 % of näıve 木 🪵")
    assert words.isprintable()
    assert words.startswith("part �[2J")
    assert words.endswith("99 % of näıve 木 🪵")


def test_lines_stay_lines_unless_there_may_be_one():
    assert harmless("a\n\tb") == "a\n\tb"
    assert one_line("a\n\tb") == "a  b"


@pytest.mark.parametrize("length", [80, 81, 1000, 10_000_000])
def test_what_is_too_long_says_how_much_is_missing(length):
    words = shortened("a" * (length - 1) + "z", 80)
    assert len(words) <= 80
    assert words[0] == "a"
    assert words[-1] == "z"
    assert shortened(words, 80) == words
    assert ("left out" in words) == (length > 80)


@pytest.mark.parametrize("kind", [ContractError, FormatError, MissingExtraError, ShelfError])
def test_no_message_is_long_or_steers(kind):
    error = kind(f"{'x' * 300_000}{STEERING}" * 3 + "\n" + "y\n" * 300_000 + "; do that instead")
    for words in (str(error), repr(error), *error.args):
        assert len(words) < 20_000
        assert harmless(words) == words
    assert str(error).startswith("xxx")
    assert str(error).endswith("; do that instead")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_reasons_keep_their_lines_and_the_name_of_a_file_makes_none():
    reasons = "they do not fit:\n  - 16 channels meet 32\n  - another space\nTrain one of them."
    assert str(ContractError(reasons)) == reasons
    assert str(FormatError("a\nAll is well: not JSON")) == "a All is well: not JSON"


def test_what_others_say_and_what_was_meant_is_short_too():
    assert len(first_line(ValueError("x" * 300_000))) <= 300
    assert len(nearest("a", ["b" * 300_000] * 5)) < 500
    assert harmless(nearest("a", [STEERING])) == nearest("a", [STEERING])
