import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.errors import ShelfError
from dovetail.shelf.names import LONGEST, check_name, check_tags, is_name, read_reference

ALLOWED = string.ascii_letters + string.digits + "-_."


def allowed_read_aloud(name):
    """Letters, digits and -_. ; begins with a letter or digit; no two dots; no dot at the end."""
    return (
        0 < len(name) <= LONGEST
        and all(letter in ALLOWED for letter in name)
        and name[0] in string.ascii_letters + string.digits
        and ".." not in name
        and not name.endswith(".")
    )


@given(st.text(ALLOWED + "/\\@ é\n\0", max_size=8) | st.text(ALLOWED, max_size=LONGEST + 3))
def test_a_name_is_what_the_rule_says(name):
    assert is_name(name) == allowed_read_aloud(name)


@given(st.text(max_size=20))
def test_no_name_leaves_the_shelf(name):
    if is_name(name):
        assert not {"/", "\\", "\0", "@", ":"} & set(name)
        assert not name.startswith((".", "-"))
    else:
        with pytest.raises(ShelfError, match="a name has letters"):
            check_name(name)


@given(st.text(ALLOWED, min_size=1, max_size=9).filter(is_name), st.integers(1, 10**9 - 1))
def test_references_are_read_as_they_are_written(name, version):
    assert str(read_reference(f"{name}@{version}")) == f"{name}@{version}"
    assert read_reference(name) == (name, None)


@pytest.mark.parametrize("text", ["a@", "a@0", "a@01", "a@-1", "a@1@2", "a@x", "a@١", "a@1\n"])
def test_what_is_no_version_is_refused(text):
    with pytest.raises(ShelfError, match="a version is a whole number"):
        read_reference(text)


@pytest.mark.parametrize("text", ["", "@1", "../a@1", "a/b", None, 3])
def test_what_is_no_reference_is_refused(text):
    with pytest.raises(ShelfError):
        read_reference(text)


@pytest.mark.parametrize("tags", ["word", [""], [" "], ["a\nb"], ["x" * (LONGEST + 1)]])
def test_what_is_no_tag_is_refused(tags):
    with pytest.raises(ShelfError, match="tag"):
        check_tags(tags)
