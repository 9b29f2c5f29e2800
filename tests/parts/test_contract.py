"""Contracts and origins: to JSON and back unchanged, strict, and talkative about misfits."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.errors import ContractError, DovetailError, FormatError
from dovetail.core.plain import dumps, from_plain, to_plain
from dovetail.parts.contract import Contract, Port, Preprocess
from dovetail.parts.facts import Origin

words = st.text(max_size=12)
numbers = st.floats(allow_nan=False)
shapes = st.none() | st.lists(st.none() | st.integers(0, 10**12), max_size=4).map(tuple)
ports = st.builds(
    Port,
    shape=shapes,
    dtype=st.sampled_from(["float32", "float64", "bfloat16", "int64", "bool"]),
    activation=words,
    space=st.none() | words,
)
preprocesses = st.builds(
    Preprocess,
    size=st.none() | st.tuples(st.integers(), st.integers()),
    channels=st.none() | st.integers(),
    scale=numbers,
    mean=st.lists(numbers, max_size=3).map(tuple),
    std=st.lists(numbers, max_size=3).map(tuple),
)
several = st.lists(ports, max_size=3).map(tuple)
contracts = st.builds(
    Contract,
    takes=several,
    gives=several,
    preprocess=st.none() | preprocesses,
    classes=st.none() | st.lists(words, max_size=4, unique=True).map(tuple),
)
plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
origins = st.builds(
    Origin,
    how=words,
    parents=st.lists(words, max_size=3).map(tuple),
    task=st.none() | words,
    task_fingerprint=st.none() | words,
    settings=st.dictionaries(words, plain_values, max_size=3),
    measured=st.dictionaries(words, numbers, max_size=3),
)


@pytest.mark.parametrize(
    ("kind", "values"),
    [(Port, ports), (Preprocess, preprocesses), (Contract, contracts), (Origin, origins)],
)
@given(data=st.data())
def test_to_json_and_back_changes_nothing(kind, values, data):
    value = data.draw(values)
    assert from_plain(kind, to_plain(value)) == value
    text = dumps(value)
    assert from_plain(kind, json.loads(text)) == value
    assert dumps(from_plain(kind, json.loads(text))) == text


@pytest.mark.parametrize("kind", [Port, Preprocess, Contract, Origin])
def test_an_unknown_field_is_refused(kind):
    value = to_plain(kind()) | {"colour": "red"}
    with pytest.raises(FormatError, match=r"^here: unknown field 'colour'$"):
        from_plain(kind, value, "here")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "contract: expected Contract, found list []"),
        ({"takes": {}}, "contract.takes: expected tuple, found dict {}"),
        ({"takes": [{"shape": "abc"}]}, "contract.takes[0].shape: expected tuple, found str 'abc'"),
        (
            {"takes": [{"shape": [1.5]}]},
            "contract.takes[0].shape[0]: expected int, found float 1.5",
        ),
        (
            {"takes": [{}, {"shape": [True]}]},
            "contract.takes[1].shape[0]: expected int, found bool True",
        ),
        ({"gives": [{"space": 3}]}, "contract.gives[0].space: expected str, found int 3"),
        ({"classes": "ab"}, "contract.classes: expected tuple, found str 'ab'"),
        ({"classes": [1]}, "contract.classes[0]: expected str, found int 1"),
        ({"preprocess": {"size": [1]}}, "contract.preprocess.size: expected 2 items, found 1"),
        (
            {"preprocess": {"scale": "a"}},
            "contract.preprocess.scale: expected float, found str 'a'",
        ),
        (
            {"preprocess": {"scale": 10**400}},
            "contract.preprocess.scale: expected float, found int 1000",
        ),
    ],
)
def test_a_wrong_type_names_the_place(value, message):
    with pytest.raises(FormatError) as caught:
        from_plain(Contract, value, "contract")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("lie", [{"dtype": "save"}, {"dtype": "float31"}, {"shape": (-1,)}])
def test_impossible_ports_are_refused(lie):
    with pytest.raises(ContractError):
        Port(**lie)
    with pytest.raises(DovetailError):
        from_plain(Port, to_plain(lie))


def test_each_mismatch_is_a_sentence():
    a = Port((16, 4, 4), "float32", "relu", "x/1")
    b = Port((32, None, 4), "float16", "tanh", None)
    assert a.mismatches(b) == [
        "shape 16×4×4 -> 32×?×4",
        "dtype float32 -> float16",
        "activation 'relu' -> 'tanh'",
        "space 'x/1' -> unknown",
    ]
    assert a.obstacles(b) == a.mismatches(b)[:2]


@given(ports)
def test_a_port_fits_itself_exactly_when_it_has_a_space(port):
    assert (port.mismatches(port) == []) == (port.space is not None)
    assert port.obstacles(port) == []


@pytest.mark.parametrize(
    ("a", "b", "fits"),
    [
        (None, (3,), True),
        ((3,), None, True),
        ((None, 4), (3, 4), True),
        ((3,), (3, 1), False),
        ((), (1,), False),
        ((3, 4), (None, 5), False),
    ],
)
def test_unknown_axes_stand_in_nobodys_way(a, b, fits):
    assert (Port(a).obstacles(Port(b)) == []) == fits


def test_unknown_spaces_match_nothing():
    assert Port().mismatches(Port()) == ["space unknown -> unknown"]


def test_the_number_of_tensors_is_compared_first():
    one, two = Contract(gives=(Port(),)), Contract(takes=(Port(), Port()))
    assert one.mismatches(two) == ["gives 1 tensors, but 2 are taken"]


def test_a_contract_in_a_line():
    contract = Contract(
        (Port((3, None, 8)),), (Port((4,), activation="relu", space="fc/1f"),), classes=("a", "b")
    )
    assert str(contract) == "3×?×8 -> 4 after relu in fc/1f, 2 classes"


class Counted(str):
    """Text that counts how often it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Counted.compared += 1
        assert Counted.compared < 10_000, "every name is compared with every other"
        return str.__eq__(self, other)


def test_a_class_named_twice_is_found_without_comparing_all_with_all(monkeypatch):
    monkeypatch.setattr(Counted, "compared", 0)
    names = tuple(Counted(f"class {i}") for i in range(5_000))
    assert Contract(classes=names).classes == names
    with pytest.raises(ContractError, match="'class 4999' is named twice"):
        Contract(classes=(*names, Counted("class 4999")))
