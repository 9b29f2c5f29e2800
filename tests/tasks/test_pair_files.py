import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.errors import DovetailError
from dovetail.tasks.pair_files import read_pairs

WORDS = [("same", "different"), ("1", "0"), ("true", "FALSE"), ("+", "-"), ("Same", "Different")]


def triples(pairs):
    return list(zip(pairs.first.tolist(), pairs.second.tolist(), pairs.same.tolist(), strict=True))


@pytest.mark.parametrize("header", ["", "first,second,same\n", "a,b,label\n", "x,y,\n"])
@pytest.mark.parametrize("words", WORDS)
def test_every_spelling_with_and_without_a_header(tmp_path, words, header):
    file = tmp_path / "pairs.csv"
    file.write_text(f"{header}0,1,{words[0]}\n2,0,{words[1]}\n")
    assert triples(read_pairs(file, 3)) == [(0, 1, True), (0, 2, False)]


labelled = st.dictionaries(
    st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda pair: pair[0] < pair[1]),
    st.booleans(),
    min_size=1,
)


@given(labelled, st.sampled_from(",;\t"), st.randoms(use_true_random=False))
def test_what_is_written_is_read(tmp_path_factory, pairs, mark, random):
    names = [f"img {i}.png" for i in range(8)]
    file = tmp_path_factory.mktemp("pairs") / "pairs.csv"
    lines = []
    for (a, b), same in pairs.items():
        ends = [names[a], names[b]]
        random.shuffle(ends)
        lines += [mark.join((*ends, "same" if same else "different"))] * random.randint(1, 2)
    file.write_text("\n".join(lines))
    found = {(a, b): same for a, b, same in triples(read_pairs(file, names))}
    assert found == pairs


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b,same\na,bb,same\n", "line 2: unknown id 'bb'; did you mean b"),
        ("a,b,same\n\nb,a,different\n", "line 3: 'b' and 'a' are labelled the other way in line 1"),
        ("a,b,maybe\n", "line 1: 'maybe' is neither same nor different"),
        ("a,b,1\nx,y,1\n", "line 2: unknown id 'x'"),
        ("x,y,1\na,b,1\n", "line 1: unknown id 'x'"),
        ("a,b\n", "line 1: 2 cells; expected two ids and a label"),
        ("a,a,same\n", "line 1: a pair of 'a' with itself"),
        ("first,second,same\n", "holds no pairs"),
        ("", "holds no pairs"),
        (b"\xff\xfe", "not UTF-8"),
        ('a,"b,same\n', "2 cells"),
    ],
)
def test_files_that_are_refused(tmp_path, text, words):
    file = tmp_path / "pairs.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DovetailError, match=words):
        read_pairs(file, ["a", "b", "c"])


def test_rows_that_are_not_there(tmp_path):
    file = tmp_path / "pairs.csv"
    file.write_text("0,1,1\n1,5,0\n")
    with pytest.raises(DovetailError, match="line 2: unknown id '5'; row numbers go from 0 to 2"):
        read_pairs(file, 3)
    with pytest.raises(DovetailError, match="the id 'a' names two samples"):
        read_pairs(file, ["a", "b", "a"])
    with pytest.raises(DovetailError, match="no such file"):
        read_pairs(tmp_path / "gone.csv", 3)
