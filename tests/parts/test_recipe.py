"""Recipes: a closed language, parsed strictly, that rebuilds what it describes."""

from __future__ import annotations

import json
from collections import OrderedDict
from contextlib import suppress

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dovetail.core.errors import DovetailError, RecipeError
from dovetail.core.plain import dumps, to_plain
from dovetail.parts.builders import builder, find_builder, known_builders
from dovetail.parts.cutting import cut
from dovetail.parts.foreign.adopting import adopt
from dovetail.parts.part import build
from dovetail.parts.recipe import (
    DEEPEST,
    Adapter,
    Build,
    Cut,
    Join,
    check_recipe,
    in_words,
    read_recipe,
    rebuild,
)

words = st.text(max_size=8)
counts = st.integers(1, 10**6)
leaves = st.builds(
    Build, st.just("mlp"), st.fixed_dictionaries({}, optional={"classes": counts})
) | st.builds(Adapter, counts, counts, st.booleans())
recipes = st.recursive(
    leaves,
    lambda inner: (
        st.builds(Cut, inner, words, st.sampled_from(["front", "back"]))
        | st.builds(
            Join,
            st.lists(inner, min_size=2, max_size=3).map(tuple),
            st.sampled_from(["stored", "batch"]),
        )
    ),
    max_leaves=6,
)


@given(recipes)
def test_to_json_and_back_changes_nothing(recipe):
    assert read_recipe(to_plain(recipe)) == recipe
    assert read_recipe(json.loads(dumps(recipe))) == recipe
    assert in_words(recipe)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | words | st.just("mlp"),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "build",
                        "cut",
                        "join",
                        "adapter",
                        "args",
                        "of",
                        "at",
                        "side",
                        "parts",
                        "takes",
                    ]
                )
                | words,
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_whatever_is_no_recipe_is_refused_with_our_error(value):
    with suppress(DovetailError):  # any other error fails
        assert isinstance(read_recipe(value), Build | Cut | Join | Adapter)


MLP = {"build": "mlp"}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "recipe: expected an operator, found NoneType"),
        ({}, "unknown operator 'nothing'"),
        ({"bild": "mlp"}, "unknown operator 'bild'; did you mean build"),
        ({"build": "mlpp"}, "unknown builder 'mlpp'; did you mean mlp"),
        ({"build": "os.system", "args": {"command": "ls"}}, "unknown builder 'os.system'"),
        ({"build": 3}, "recipe.build: expected str, found int 3"),
        ({"build": "mlp", "args": []}, "recipe.args: expected dict"),
        ({"build": "mlp", "args": {"clases": 3}}, "no argument 'clases'; did you mean classes"),
        ({"build": "mlp", "args": {"classes": "3"}}, "classes: expected int, found str '3'"),
        ({"build": "mlp", "args": {"norm": "bach"}}, "norm: expected"),
        ({"build": "mlp", "extra": 1}, "unknown field 'extra'"),
        ({"build": "mlp", "cut": {}}, "unknown field 'cut'"),
        ({"cut": {"of": MLP, "at": "head"}}, "recipe.cut: field 'side' is missing"),
        ({"cut": {"of": MLP, "at": "head", "side": "left"}}, "recipe.cut.side: expected"),
        ({"cut": {"at": "head", "side": "front"}}, "recipe.cut.of: expected an operator"),
        ({"cut": MLP, "join": {}}, "'cut' stands alone"),
        ({"cut": "head"}, "'cut' needs named fields"),
        ({"join": {"parts": [MLP]}}, "at least two parts"),
        ({"join": {"parts": {"0": MLP, "1": MLP}}}, "at least two parts"),
        ({"join": {"parts": [MLP, {"x": 1}]}}, "recipe.join.parts[1]: unknown operator 'x'"),
        ({"join": {"parts": [MLP, MLP], "norms": "recalibrated"}}, "recipe.join.norms"),
        ({"adapter": {"takes": 0, "gives": 1, "maps": True}}, "at least one channel"),
        ({"adapter": {"takes": 1, "gives": 1, "maps": 1}}, "recipe.adapter.maps: expected bool"),
        ({"adapter": {"takes": 1, "gives": 1}}, "field 'maps' is missing"),
    ],
)
def test_refusals_name_the_place_and_the_reason(value, reason):
    with pytest.raises(RecipeError) as caught:
        read_recipe(value)
    assert reason in str(caught.value)


def test_recipes_nest_to_a_limit():
    recipe = Build("mlp")
    for _ in range(DEEPEST):
        recipe = Cut(recipe, "head", "front")
    assert read_recipe(to_plain(recipe)) == recipe
    with pytest.raises(RecipeError, match="nested deeper than 32"):
        read_recipe(to_plain(Cut(recipe, "head", "front")))


def test_listing_does_not_need_the_builder():
    value = {"build": "somebody-elses"}
    assert read_recipe(value, check=False) == Build("somebody-elses")
    with pytest.raises(RecipeError):
        check_recipe(Build("somebody-elses"))


def test_rebuilding_gives_names_shapes_and_kinds():
    whole = build("resnet8", size=8, width=4)
    for half in cut(whole, at="layer2.0.norm1"):
        twin = rebuild(half.recipe)
        assert {n: t.shape for n, t in twin.state_dict().items()} == {
            n: t.shape for n, t in half.module.state_dict().items()
        }
    assert isinstance(rebuild(Adapter(2, 3, maps=True)), nn.Conv2d)
    assert isinstance(rebuild(Adapter(2, 3, maps=False)), nn.Linear)


def test_rebuilding_on_the_meta_device_allocates_nothing():
    with torch.device("meta"):
        twin = rebuild(Cut(Build("mlp", {"hidden": [10**6, 10**6]}), "hidden2", "front"))
    assert all(t.is_meta for t in twin.state_dict().values())


# Builders -----------------------------------------------------------------------------------------


@builder("test-recipe/small")
def small(*, width: int = 3, kinds: tuple[str, ...] = ("a",)) -> nn.Module:
    return nn.Sequential(OrderedDict(one=nn.Linear(2, width), two=nn.Linear(width, len(kinds))))


def test_what_a_registered_function_makes_knows_its_recipe():
    part = adopt(small(width=4, kinds=("a", "b")))
    assert part.recipe == Build("test-recipe/small", {"width": 4, "kinds": ["a", "b"]})
    assert read_recipe(to_plain(part.recipe)) == part.recipe
    assert "test-recipe/small" in known_builders()


def test_a_named_builder_fills_in_its_defaults():
    part = adopt(nn.Linear(1, 1), builder="test-recipe/small", args={"width": 2})
    assert part.recipe == Build("test-recipe/small", {"width": 2, "kinds": ["a"]})


def test_a_builder_checks_its_arguments():
    with pytest.raises(RecipeError, match="width: expected int, found str 'wide'"):
        small(width="wide")
    with pytest.raises(RecipeError, match="no argument 'depth'"):
        build("test-recipe/small", depth=3)


def test_a_builder_may_insist_on_an_argument():
    @builder("test-recipe/insists")
    def insists(*, width: int) -> nn.Module:
        return nn.Linear(width, 1)

    with pytest.raises(RecipeError, match="needs the argument 'width'"):
        find_builder("test-recipe/insists").build({})


def test_names_are_taken_once():
    with pytest.raises(RecipeError, match="'test-recipe/small' is there already"):

        @builder("test-recipe/small")
        def other() -> nn.Module:
            return nn.Identity()

    with pytest.raises(RecipeError, match="'mlp' is there already"):

        @builder("mlp")
        def mine() -> nn.Module:
            return nn.Identity()


def test_a_bare_decorator_uses_the_functions_name():
    @builder
    def bare_made_in_a_test() -> nn.Module:
        return nn.Linear(1, 1)

    assert adopt(bare_made_in_a_test()).recipe == Build("bare_made_in_a_test", {})


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("mlp", {"classes": 0}),
        ("mlp", {"shape": (0,)}),
        ("mlp", {"hidden": (3, -1)}),
        ("lenet5", {"size": 7}),
        ("lenet5", {"channels": 0}),
        ("resnet8", {"size": 4}),
        ("resnet20", {"width": 0}),
    ],
)
def test_the_zoo_refuses_sizes_that_leave_nothing(name, args):
    with pytest.raises(RecipeError, match=f"builder '{name}'"):
        build(name, **args)


def test_building_is_repeatable_and_leaves_the_random_numbers_alone():
    state = torch.get_rng_state()
    a, b, c = (build("lenet5", size=8, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert a.digest == b.digest != c.digest
    assert a.recipe == b.recipe
    assert read_recipe(to_plain(a.recipe)) == a.recipe
