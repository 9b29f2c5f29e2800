"""What the page holds of a record: every number once, and nothing lost."""

import json
import re

from hypothesis import given, settings
from hypothesis import strategies as st
from report.gallery import stored

from dovetail.core.views import Figure, Series
from dovetail.report import render_page
from dovetail.report.page import MARK, embed


def restored(markup):
    """What the page's script does, in Python."""
    elements = re.findall(r"<script type=\"application/json\"( class=\"lists\")?>\n(.*?)</script>",
                          markup, re.DOTALL)  # fmt: skip
    lists = [line for kind, text in elements if kind for line in text.split("\n")]
    (text,) = [text for kind, text in elements if not kind]
    if not lists:
        return text
    return re.sub(rf'\{{"{MARK}":(\d+)\}}', lambda m: lists[int(m[1])], text)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.sampled_from('<>&/script!-"\\{}:0' + MARK), max_size=20)
    | st.sampled_from([[0.5] * 70, list(range(80)), ["</script>"] * 64]).map(list)
    | st.just({MARK: 0}),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab<", max_size=2), inner),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from("abc"), values))
def test_the_record_comes_back_to_the_last_digit(record):
    markup = embed(record)
    assert json.loads(restored(markup)) == record
    inside = re.sub(r"</?script[^>]*>", "", markup)
    assert "<" not in inside


def test_a_long_list_is_written_once():
    ys = [i / 7 for i in range(5000)]
    figure = Figure("line", "t", (Series("s", tuple(range(5000)), tuple(ys)),))
    one, both = (stored("x", figure, data=data) for data in ({}, {"loss": ys}))
    pages = [len(render_page([record], title="t")) for record in (one, both)]
    assert len(json.dumps(ys)) > 80_000
    assert pages[1] - pages[0] < 200


def test_a_record_that_speaks_of_marks_is_left_whole():
    long = list(range(100))
    record = {"a": long, "b": long, "c": {MARK: 0}}
    assert 'class="lists"' not in embed(record)
    assert 'class="lists"' in embed({"a": long, "b": long})
