import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.errors import DovetailError, TaskError
from dovetail.tasks.pairs import Pairs, draw_pairs, read_pairs


def make(*triples):
    first, second, same = zip(*triples, strict=True)
    return Pairs(torch.tensor(first), torch.tensor(second), torch.tensor(same))


@given(
    st.lists(st.integers(0, 4), min_size=2, max_size=30).map(torch.tensor),
    st.integers(1, 40),
    st.integers(0, 5),
)
def test_drawn_pairs_are_what_they_say(labels, count, seed):
    pairs = draw_pairs(labels, count, seed)
    assert len(pairs) == count
    for i, j, same in zip(pairs.first, pairs.second, pairs.same, strict=True):
        assert i != j
        assert (labels[i] == labels[j]) == same
    sizes = torch.bincount(labels)
    if sizes.max() == 1:
        assert not pairs.same.any()
    elif sizes.max() == len(labels):
        assert pairs.same.all()
    else:
        assert int(pairs.same.sum()) == count // 2


def test_every_possible_pair_is_drawn():
    labels = torch.tensor([0, 1, 0, 2, 1, 0])
    pairs = draw_pairs(labels, 2000, seed=3)
    drawn = set(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))
    # the only sample of class 2 has no partner of its own class, but partners of others
    assert drawn == {(i, j) for i in range(6) for j in range(6) if i != j}


def test_the_first_ends_are_even():
    labels = torch.tensor([0] * 8 + [1] * 2)
    pairs = draw_pairs(labels, 40_000, seed=0)
    share = torch.bincount(pairs.first[~pairs.same], minlength=10) / 20_000
    assert (share - 0.1).abs().max() < 0.01  # four standard deviations


@pytest.mark.parametrize("count", [0, -1])
def test_counts_that_are_refused(count):
    with pytest.raises(TaskError, match="at least 1"):
        draw_pairs(torch.tensor([0, 1]), count, 0)


def test_one_sample_makes_no_pair():
    with pytest.raises(TaskError, match="one sample makes no pair"):
        draw_pairs(torch.tensor([4]), 1, 0)


def test_within_renumbers_to_positions():
    pairs = make((0, 3, True), (3, 7, False), (7, 9, True))
    local = pairs.within(torch.tensor([3, 7, 9]))
    assert local.first.tolist() == [0, 1]
    assert local.second.tolist() == [1, 2]
    assert local.same.tolist() == [False, True]


@pytest.mark.parametrize(
    ("first", "second", "same", "words"),
    [
        ([0, 1], [1], [True, False], r"shapes \[2\], \[1\], \[2\]"),
        ([0.0], [1.0], [True], "int64 rows"),
        ([0], [1], [1], "booleans"),
        ([0, 2], [1, 2], [True, True], "pair 1 joins a sample with itself"),
    ],
)
def test_pairs_that_are_refused(first, second, same, words):
    with pytest.raises(TaskError, match=words):
        Pairs(torch.tensor(first), torch.tensor(second), torch.tensor(same))


def test_lists_are_refused():
    with pytest.raises(TaskError, match="three tensors"):
        Pairs([0], [1], [True])


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
