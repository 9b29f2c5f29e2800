import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dovetail.core.errors import FormatError
from dovetail.tasks.image_files import (
    covering,
    is_grey,
    open_image,
    upright,
    upright_size,
)

RNG = np.random.default_rng(0)
COLOURS = RNG.integers(256, size=(5, 7, 3), dtype=np.uint8)
TURNS = {  # what the camera did, undone by numpy
    1: lambda x: x,
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.swapaxes(0, 1),
    6: lambda x: np.rot90(x, -1),
    7: lambda x: x[::-1, ::-1].swapaxes(0, 1),
    8: lambda x: np.rot90(x, 1),
}


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("ending", ["png", "webp"])
def test_the_orientation_is_undone(tmp_path, orientation, ending):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = str(tmp_path / f"a.{ending}")
    Image.fromarray(COLOURS).save(path, exif=exif, lossless=True)
    expected = TURNS[orientation](COLOURS)
    with open_image(path) as image:
        assert upright_size(image) == expected.shape[:2]
        np.testing.assert_array_equal(np.asarray(upright(image, grey=False)), expected)


def test_the_orientation_of_a_jpeg(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    path = str(tmp_path / "a.jpg")
    left_dark = np.repeat(np.array([[0, 255]], np.uint8), 8, axis=1).repeat(8, axis=0)
    Image.fromarray(left_dark).save(path, exif=exif)
    with open_image(path) as image:
        found = np.asarray(upright(image, grey=True))
    assert found.shape == (16, 8)
    assert found[:4].max() < 60 < 200 < found[-4:].min()


@pytest.mark.parametrize("value", [0, 9, 77])
def test_an_orientation_that_does_not_exist_is_none(tmp_path, value):
    exif = Image.Exif()
    exif[0x0112] = value
    path = str(tmp_path / "a.png")
    Image.fromarray(COLOURS).save(path, exif=exif)
    with open_image(path) as image:
        np.testing.assert_array_equal(np.asarray(upright(image, grey=False)), COLOURS)


def test_sixteen_bits_are_rounded_to_eight(tmp_path):
    deep = np.arange(0, 65536, 7, dtype=np.uint16)[: 96 * 97].reshape(96, 97)
    path = str(tmp_path / "deep.png")
    Image.fromarray(deep).save(path)
    with open_image(path) as image:
        assert is_grey(image)
        found = np.asarray(upright(image, grey=True))
        np.testing.assert_array_equal(found, np.floor(deep / 257 + 0.5))
    with open_image(path) as image:
        rgb = np.asarray(upright(image, grey=False))
    np.testing.assert_array_equal(rgb, np.stack([found] * 3, 2))


@pytest.mark.parametrize("transparency", [False, True])
def test_a_palette_is_looked_up(tmp_path, transparency):
    index = RNG.integers(3, size=(5, 7), dtype=np.uint8)
    image = Image.fromarray(index)
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    assert image.mode == "P"
    path = str(tmp_path / "p.png")
    image.save(path, **({"transparency": bytes([0, 128, 255])} if transparency else {}))
    with warnings.catch_warnings(), open_image(path) as opened:
        warnings.simplefilter("error")
        assert not is_grey(opened)
        found = np.asarray(upright(opened, grey=False))
    np.testing.assert_array_equal(found, np.eye(3, dtype=np.uint8)[index] * 255)


@pytest.mark.parametrize(
    ("mode", "grey"),
    [("1", True), ("L", True), ("LA", True), ("RGB", False), ("RGBA", False), ("P", False)],
)
def test_colour_is_told_by_the_mode(tmp_path, mode, grey):
    path = str(tmp_path / "a.png")
    Image.new(mode, (3, 2)).save(path)
    with open_image(path) as image:
        assert is_grey(image) == grey
        assert np.asarray(upright(image, grey=grey)).shape == ((2, 3) if grey else (2, 3, 3))


def test_transparency_is_dropped(tmp_path):
    pixels = np.dstack([COLOURS, RNG.integers(256, size=(5, 7), dtype=np.uint8)])
    Image.fromarray(pixels).save(tmp_path / "a.png")
    with open_image(str(tmp_path / "a.png")) as image:
        np.testing.assert_array_equal(np.asarray(upright(image, grey=False)), COLOURS)


sides = st.integers(1, 40)


@given(sides, sides, sides, sides)
def test_covering_has_the_size_and_keeps_what_is_flat(h, w, height, width):
    found = covering(Image.new("L", (w, h), 77), height, width)
    assert found.size == (width, height)
    assert set(np.asarray(found).ravel().tolist()) == {77}


def test_covering_keeps_the_centre():
    wide = np.zeros((10, 30), np.uint8)
    wide[:, 10:20] = 255
    assert np.asarray(covering(Image.fromarray(wide), 10, 10)).min() == 255
    tall = covering(Image.fromarray(wide.T.copy()), 5, 5)
    assert np.asarray(tall)[1:-1].min() == 255


def test_shrinking_averages():
    board = (np.indices((8, 8)).sum(0) % 2 * 200).astype(np.uint8)
    found = np.asarray(covering(Image.fromarray(board), 2, 2)).astype(int)
    assert abs(found - 100).max() <= 12


def test_large_images_are_errors_and_other_warnings_silent(tmp_path, monkeypatch):
    Image.new("L", (20, 20)).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 300)  # 400 pixels: Pillow only warns
    with (
        pytest.raises(Image.DecompressionBombWarning),
        open_image(str(tmp_path / "a.png")),
    ):
        pass
    monkeypatch.undo()
    with open_image(str(tmp_path / "a.png")):
        warnings.warn("odd EXIF data", stacklevel=1)


def test_other_formats_are_not_opened(tmp_path):
    Image.new("L", (2, 2)).save(tmp_path / "a.png", format="GIF")
    with (
        pytest.raises(FormatError, match="neither PNG, JPEG, WebP nor BMP"),
        open_image(str(tmp_path / "a.png")),
    ):
        pass
