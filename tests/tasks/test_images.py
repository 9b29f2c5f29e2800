import math

import pytest
import torch

from dovetail.tasks.images import resize, turn


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
