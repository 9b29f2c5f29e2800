"""Pretexts against their definition, pixel by pixel; and inputs that are none."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references import pretexts as slow

from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.objectives import PRETEXTS, Jigsaw, Pretext, Rotation, Views, pretext_named
from dovetail.objectives.pretexts import spread_out

ALL = [Rotation(), Jigsaw(), Jigsaw(grid=3, permutations=10), Views(), Views(outputs=5)]


def drawn(seed):
    return torch.Generator().manual_seed(seed)


def test_rotations_are_those_of_every_pixel():
    images = torch.rand(3, 2, 5, 5)
    views, targets = Rotation().views(images)
    assert targets.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    expected = [slow.turned(image, turns) for turns in range(4) for image in images]
    assert torch.equal(views, torch.stack(expected))


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 4), st.integers(0, 3), st.integers(0, 3), st.integers(0, 1000))
def test_a_jigsaw_moves_whole_patches(grid, more_rows, more_columns, seed):
    jigsaw = Jigsaw(grid=grid, permutations=7)
    draw = drawn(seed)
    images = torch.rand(4, 2, 2 * grid + more_rows, 3 * grid + more_columns, generator=draw)
    views, targets = jigsaw.views(images, draw)
    for image, view, target in zip(images, views, targets.tolist(), strict=True):
        order = jigsaw.arrangements[target]
        assert torch.equal(view, slow.rearranged(image, grid, order))
        # nothing is lost: the pixels are the same ones
        assert torch.equal(view.flatten(1).sort().values, image.flatten(1).sort().values)


def test_arrangements_are_different_orders_and_far_apart():
    for things, count in [(4, 24), (9, 30), (16, 24), (25, 24)]:
        orders = spread_out(things, count)
        assert orders[0] == tuple(range(things))
        assert len(set(orders)) == count
        assert all(sorted(order) == list(range(things)) for order in orders)
    few = spread_out(9, 9)
    distance = min(
        sum(a != b for a, b in zip(one, two, strict=True))
        for i, one in enumerate(few)
        for two in few[:i]
    )
    assert distance >= 8
    with pytest.raises(SettingsError, match="24 arrangements, not 25"):
        spread_out(4, 25)


def test_every_arrangement_is_drawn_and_named():
    jigsaw = Jigsaw(permutations=5)
    _, targets = jigsaw.views(torch.rand(200, 1, 4, 4), drawn(0))
    assert targets.unique().tolist() == [0, 1, 2, 3, 4]
    assert len(set(jigsaw.answers)) == jigsaw.outputs == 5
    assert Jigsaw(grid=5).answers[0] == "0123456789abcdefghijklmno"


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_contrast_is_that_of_every_pair(temperature):
    rows, targets = torch.randn(10, 6, dtype=torch.float64), torch.arange(5).repeat(2)
    views = Views(outputs=6, temperature=temperature)
    mixed = torch.randperm(10)
    for order in (torch.arange(10), mixed):
        expected = slow.contrast(rows[order], targets[order], temperature)
        assert math.isclose(float(views.loss(rows[order], targets[order])), expected)
        expected = slow.nearest_is_right(rows[order], targets[order])
        assert views.solved(rows[order], targets[order]) == expected


def test_the_gradient_of_contrast():
    rows = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    targets = torch.arange(3).repeat(2)
    assert torch.autograd.gradcheck(lambda r: Views(outputs=4).loss(r, targets), rows)


def test_silent_and_lonely_embeddings_have_a_gradient_that_is_a_number():
    rows = torch.zeros(6, 4, requires_grad=True)
    loss = Views(outputs=4).loss(rows, torch.arange(3).repeat(2))
    assert math.isclose(loss.item(), math.log(5), rel_tol=1e-6)
    loss.backward()
    assert bool(rows.grad.isfinite().all())
    alone = torch.randn(2, 4, requires_grad=True)
    loss = Views(outputs=4).loss(alone, torch.zeros(2))
    loss.backward()
    assert loss.item() == 0
    assert not alone.grad.any()


def test_views_without_changes_are_the_images():
    images = torch.randn(4, 2, 6, 7)
    still = Views(flip=False, crop=1.0, shift=0.0, brightness=0.0, noise=0.0)
    views, targets = still.views(images)
    torch.testing.assert_close(views, images.repeat(2, 1, 1, 1))
    assert targets.tolist() == [0, 1, 2, 3] * 2


def test_a_flip_mirrors_about_half_of_the_views():
    images = torch.rand(1, 1, 4, 4).expand(400, 1, 4, 4)
    flips = Views(crop=1.0, shift=0.0, brightness=0.0, noise=0.0)
    views, _ = flips.views(images, drawn(0))
    mirrored = (views - images[0].flip(2)).abs().amax((1, 2, 3)) < 1e-5
    kept = (views - images[0]).abs().amax((1, 2, 3)) < 1e-5
    assert bool((mirrored ^ kept).all())
    assert 0.4 < float(mirrored.double().mean()) < 0.6


def test_each_change_changes_each_sample_its_own_way():
    images = torch.rand(1, 1, 8, 8).expand(6, 1, 8, 8)
    none = {"flip": False, "crop": 1.0, "shift": 0.0, "brightness": 0.0, "noise": 0.0}
    for change in ({"crop": 0.5}, {"shift": 0.2}, {"brightness": 0.3}, {"noise": 0.1}):
        views, _ = Views(**(none | change)).views(images, drawn(1))
        assert len(views.unique(dim=0)) == 12, change


def test_what_lies_outside_is_zero():
    views, _ = Views(flip=False, crop=1.0, shift=0.5, brightness=0.0, noise=0.0).views(
        torch.ones(50, 1, 8, 8), drawn(0)
    )
    assert views.min() == 0
    assert views.max() <= 1 + 1e-5


@pytest.mark.parametrize("pretext", ALL, ids=repr)
def test_the_protocol(pretext):
    assert isinstance(pretext, Pretext)
    images = torch.rand(6, 3, 12, 12)
    before = images.clone()
    views, targets = pretext.views(images, drawn(3))
    assert torch.equal(images, before)
    assert views.shape[1:] == images.shape[1:]
    assert views.dtype == images.dtype
    assert targets.shape == (len(views),)
    assert pretext.answers is None or len(pretext.answers) == pretext.outputs
    again, same = pretext.views(images, drawn(3))
    assert torch.equal(views, again)
    assert torch.equal(targets, same)
    outputs = torch.randn(len(views), pretext.outputs, requires_grad=True)
    loss = pretext.loss(outputs, targets)
    assert loss.shape == ()
    loss.backward()
    assert bool(outputs.grad.isfinite().all())
    assert 0 <= pretext.solved(outputs, targets) <= 1
    described = json.loads(json.dumps(pretext.described()))
    assert described["name"] == pretext.name in PRETEXTS


@pytest.mark.parametrize("pretext", ALL, ids=repr)
def test_without_a_generator_torchs_own_is_used(pretext):
    images = torch.rand(6, 1, 9, 9)
    torch.manual_seed(5)
    first = pretext.views(images)
    torch.manual_seed(5)
    assert all(map(torch.equal, first, pretext.views(images)))


@pytest.mark.parametrize("pretext", ALL, ids=repr)
def test_a_generator_leaves_torchs_own_alone(pretext):
    state = torch.get_rng_state()
    pretext.views(torch.rand(4, 1, 9, 9, generator=drawn(0)), drawn(1))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("pretext", [Rotation(), Jigsaw()], ids=repr)
def test_right_answers(pretext):
    _, targets = pretext.views(torch.rand(20, 1, 8, 8), drawn(0))
    sure = 100 * torch.eye(pretext.outputs)[targets]
    assert pretext.solved(sure, targets) == 1
    assert float(pretext.loss(sure, targets)) < 1e-6
    assert pretext.solved(-sure, targets) == 0
    even = torch.zeros(len(targets), pretext.outputs)
    expected = -math.log(pretext.chance)
    assert math.isclose(float(pretext.loss(even, targets)), expected, rel_tol=1e-6)


@pytest.mark.parametrize("pretext", ALL, ids=repr)
def test_what_is_not_a_number_is_never_right(pretext):
    _, targets = pretext.views(torch.rand(4, 1, 8, 8), drawn(0))
    broken = torch.full((len(targets), pretext.outputs), math.nan)
    assert pretext.solved(broken, targets) == 0
    assert math.isnan(float(pretext.loss(broken, targets)))


def test_noise_is_right_as_often_as_chance():
    targets = torch.arange(4).repeat(2)
    views, draw = Views(outputs=6), drawn(0)
    shares = [views.solved(torch.randn(8, 6, generator=draw), targets) for _ in range(400)]
    assert abs(sum(shares) / 400 - views.chance_among(4)) < 0.02


@pytest.mark.parametrize("pretext", ALL, ids=repr)
def test_what_is_no_image_is_refused(pretext):
    for shape in [(64,), (3, 8), (2, 1, 8, 8)]:
        with pytest.raises(TaskError, match="needs images"):
            pretext.check(shape)
    for shape in [(1, 1, 1), (1, 8, 1), (0, 8, 8)]:
        with pytest.raises(TaskError, match="at least"):
            pretext.check(shape)
    with pytest.raises(TaskError, match="got none"):
        pretext.views(torch.rand(0, 1, 8, 8))
    with pytest.raises(TaskError, match="needs images"):
        pretext.views(torch.rand(5, 64))


def test_rotation_refuses_what_is_not_square():
    with pytest.raises(TaskError, match="8×6 change their shape when turned"):
        Rotation().views(torch.rand(2, 1, 8, 6))


def test_a_jigsaw_refuses_images_smaller_than_its_pieces():
    Jigsaw(grid=3).check((1, 6, 6))
    with pytest.raises(TaskError, match="at least 6×6"):
        Jigsaw(grid=3).check((1, 5, 6))


def test_views_refuse_bytes_and_single_views():
    with pytest.raises(TaskError, match="uint8"):
        Views().views(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))
    for targets in ([0, 1, 2, 3], [0, 0, 0, 1]):
        with pytest.raises(TaskError, match="exactly two views"):
            Views().loss(torch.rand(4, 32), torch.tensor(targets))


def test_rotation_and_jigsaw_take_bytes():
    images = torch.randint(256, (2, 1, 4, 4), dtype=torch.uint8)
    assert Rotation().views(images)[0].dtype == torch.uint8
    assert Jigsaw().views(images)[0].dtype == torch.uint8


@pytest.mark.parametrize("pretext", ALL, ids=repr)
def test_the_outputs_of_another_head_are_refused(pretext):
    _, targets = pretext.views(torch.rand(4, 1, 8, 8))
    for shape in [(len(targets), pretext.outputs + 1), (1, pretext.outputs), (len(targets),)]:
        with pytest.raises(ContractError, match=f"outputs={pretext.outputs}"):
            pretext.loss(torch.rand(shape), targets)
        with pytest.raises(ContractError):
            pretext.solved(torch.rand(shape), targets)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: Jigsaw(grid=1), "2 to 5"),
        (lambda: Jigsaw(grid=6), "2 to 5"),
        (lambda: Jigsaw(permutations=25), "2 to 24"),
        (lambda: Jigsaw(permutations=1), "2 to 24"),
        (lambda: Jigsaw(grid=3, permutations=1001), "2 to 1000"),
        (lambda: Views(outputs=0), "at least one output"),
        (lambda: Views(temperature=0.0), "temperature above 0"),
        (lambda: Views(temperature=math.nan), "temperature above 0"),
        (lambda: Views(crop=0.0), "share of the side"),
        (lambda: Views(crop=1.1), "share of the side"),
        (lambda: Views(noise=-1.0), "noise must be"),
        (lambda: Views(shift=math.nan), "shift must be"),
        (lambda: pretext_named("rotations"), "did you mean rotation"),
        (lambda: pretext_named(Rotation), "no pretext"),
        (lambda: pretext_named(7), "no pretext"),
    ],
)
def test_settings_that_make_no_pretext(wrong, words):
    with pytest.raises(SettingsError, match=words):
        wrong()


def test_pretexts_by_name():
    for name, kind in PRETEXTS.items():
        assert isinstance(pretext_named(name), kind)
        assert pretext_named(name).name == name
    own = Jigsaw(grid=4)
    assert pretext_named(own) is own
