import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.errors import FormatError, SettingsError
from dovetail.core.plain import from_plain, to_plain
from dovetail.tasks.augment import Augment, cutout, flip, resize, rotate, shift, turn


def draw(seed=0):
    return torch.Generator().manual_seed(seed)


def numbered(n=64, c=2, h=5, w=6):
    """Images in which every pixel has its own non-zero value."""
    return torch.arange(1.0, n * c * h * w + 1).view(n, c, h, w)


def test_flip_mirrors_half_the_images_and_leaves_the_others():
    x = numbered(400)
    mirrored = 0
    for before, after in zip(x, flip(x, draw()), strict=True):
        if not torch.equal(after, before):
            assert torch.equal(after, before.flip(2))
            mirrored += 1
    assert 160 < mirrored < 240  # four standard deviations


@pytest.mark.parametrize(("pad", "mode"), [("zero", "constant"), ("reflect", "reflect")])
def test_shift_gives_each_image_one_of_the_windows(pad, mode):
    x, pixels = numbered(200), 2
    seen = set()
    for before, after in zip(x, shift(x, draw(), pixels, pad=pad), strict=True):
        padded = F.pad(before[None], (pixels,) * 4, mode=mode)[0]
        places = [
            (dy, dx)
            for dy in range(2 * pixels + 1)
            for dx in range(2 * pixels + 1)
            if torch.equal(after, padded[:, dy : dy + 5, dx : dx + 6])
        ]
        assert places
        seen.update(places)
    assert len(seen) == 25


@pytest.mark.parametrize("size", [1, 2, 3])
def test_cutout_blanks_a_square_about_a_pixel_of_each_image(size):
    x = numbered(200)
    centres = set()
    for before, after in zip(x, cutout(x, draw(), size), strict=True):
        found = []
        for cy in range(5):
            for cx in range(6):
                expected = before.clone()
                top, left = cy - size // 2, cx - size // 2
                expected[:, max(0, top) : top + size, max(0, left) : left + size] = 0
                if torch.equal(after, expected):
                    found.append((cy, cx))
        assert found
        centres.update(found)
    assert len(centres) == 30


def test_rotate_turns_each_image_by_its_own_angle_within_the_bounds():
    x = torch.rand(1, 1, 9, 9).expand(40, 1, 9, 9)
    angles = (torch.rand(40, generator=draw()) * 2 - 1) * 30
    turned = rotate(x, draw(), 30)
    for angle, image in zip(angles, turned, strict=True):
        torch.testing.assert_close(image[None], turn(x[:1], angle[None]))
    assert angles.min() < -15
    assert angles.max() > 15


@pytest.mark.parametrize("text", ["flip", "shift:2", "shift-reflect:1", "cutout:3", "rotate:20"])
def test_the_generator_alone_decides(text):
    augment, x = Augment.parse(text), numbered()
    torch.manual_seed(1)
    one = augment(x, draw(5))
    torch.manual_seed(2)
    assert torch.equal(one, augment(x, draw(5)))
    assert not torch.equal(one, augment(x, draw(6)))


@pytest.mark.parametrize("text", ["flip", "shift:2", "cutout:3", "rotate:20"])
def test_the_batch_given_is_left_alone(text):
    x = numbered()
    before = x.clone()
    after = Augment.parse(text)(x, draw())
    assert torch.equal(x, before)
    assert (after.shape, after.dtype) == (x.shape, x.dtype)


def test_steps_follow_one_another_with_one_generator():
    x, generator = numbered(), draw()
    expected = cutout(flip(x, generator), generator, 2)
    assert torch.equal(Augment.parse("flip, cutout:2")(x, draw()), expected)


amounts = st.integers(1, 9).map(float)
steps = st.one_of(
    st.just(("flip", 0.0)),
    st.tuples(st.sampled_from(["shift", "shift-reflect", "cutout"]), amounts),
    st.tuples(st.just("rotate"), st.sampled_from([0.5, 7.5, 10.0, 90.0])),
)


@given(st.lists(steps, max_size=4).map(tuple))
def test_text_and_json_come_back_as_they_were(chosen):
    augment = Augment(chosen)
    assert Augment.parse(str(augment)) == augment
    assert from_plain(Augment, to_plain(augment)) == augment


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("flop", "unknown augmentation 'flop'; did you mean flip"),
        ("flip:2", "takes no amount"),
        ("shift", "needs a positive amount, as shift:4"),
        ("shift:-1", "positive amount"),
        ("rotate:inf", "positive amount"),
        ("rotate:nan", "positive amount"),
        ("shift:1.5", "whole pixels, not 1.5"),
        ("cutout:big", "'big' is not a number"),
    ],
)
def test_augmentations_that_are_refused(text, words):
    with pytest.raises(SettingsError, match=words):
        Augment.parse(text)
    with pytest.raises(FormatError, match=f"settings.augment: .*{words}"):
        Augment.from_plain(text, "settings.augment")


def test_what_is_no_text_is_refused_in_a_file():
    with pytest.raises(FormatError, match="where: expected the text"):
        Augment.from_plain(3, "where")


@pytest.mark.parametrize("x", [torch.zeros(3, 4), torch.zeros(1, 1, 4, 4, dtype=torch.uint8)])
def test_only_batches_of_float_images_are_changed(x):
    with pytest.raises(SettingsError, match="needs float images"):
        Augment.parse("flip")(x, draw())


def test_an_image_cannot_be_reflected_beyond_itself():
    with pytest.raises(SettingsError, match="5×6 cannot be reflected by 5"):
        shift(numbered(), draw(), 5, pad="reflect")


def turn_by_pixels(image, degrees):
    """Visit every new pixel, ask where it came from, and blend the four pixels around it."""
    height, width = image.shape[1:]
    turned = torch.zeros_like(image)
    a = math.radians(degrees)
    for y in range(height):
        for x in range(width):
            px, py = x - (width - 1) / 2, y - (height - 1) / 2
            qx = math.cos(a) * px - math.sin(a) * py + (width - 1) / 2
            qy = math.sin(a) * px + math.cos(a) * py + (height - 1) / 2
            for iy in (math.floor(qy), math.floor(qy) + 1):
                for ix in (math.floor(qx), math.floor(qx) + 1):
                    if 0 <= iy < height and 0 <= ix < width:
                        weight = (1 - abs(qy - iy)) * (1 - abs(qx - ix))
                        turned[:, y, x] += weight * image[:, iy, ix]
    return turned


@pytest.mark.parametrize("shape", [(2, 7, 7), (1, 6, 9), (1, 9, 4)])
@pytest.mark.parametrize("degrees", [0.0, 10.0, -33.0, 90.0, 145.0, 360.0])
def test_one_angle_each_matches_the_walk_over_pixels(shape, degrees):
    images = torch.rand(3, *shape, dtype=torch.float64)
    angles = torch.tensor([degrees, -degrees, 5.0], dtype=torch.float64)
    turned = turn(images, angles)
    for image, angle, got in zip(images, angles.tolist(), turned, strict=True):
        torch.testing.assert_close(got, turn_by_pixels(image, angle), atol=1e-9, rtol=0)


def test_one_angle_for_all_matches_the_walk_over_pixels():
    images = torch.rand(2, 1, 7, 5)
    expected = torch.stack([turn_by_pixels(image, 25.0) for image in images])
    torch.testing.assert_close(turn(images, 25.0), expected, atol=1e-5, rtol=0)


def test_a_quarter_turn_is_counter_clockwise_and_continuous_with_the_others():
    images = torch.rand(1, 1, 6, 6)
    exact = turn(images, 90)
    assert torch.equal(exact, torch.rot90(images, 1, (2, 3)))
    torch.testing.assert_close(turn(images, torch.tensor([90.0])), exact, atol=1e-5, rtol=0)


@pytest.mark.parametrize("degrees", [90, -90, 270, 180.0])
def test_four_equal_quarter_turns_change_nothing(degrees):
    images = torch.randint(256, (2, 1, 5, 8), dtype=torch.uint8)
    turned = images
    for _ in range(4):
        turned = turn(turned, degrees)
    assert torch.equal(turned, images)


def test_shrinking_keeps_a_constant_and_averages_all_pixels():
    constant = resize(torch.full((1, 1, 8, 8), 0.3), 3, 5)
    torch.testing.assert_close(constant, torch.full((1, 1, 3, 5), 0.3))
    # every fourth column is white; looking only at the nearest pixels would miss it
    stripes = (torch.arange(32) % 4 == 0).float().expand(1, 1, 32, 32)
    assert resize(stripes, 8, 8).min() > 0.1


def test_enlarging_a_ramp_gives_a_ramp():
    ramp = torch.arange(4.0).expand(1, 1, 4, 4)
    middle = resize(ramp, 8, 8)[0, 0, 0, 1:-1]
    torch.testing.assert_close(middle.diff(), torch.full((5,), 0.5))
