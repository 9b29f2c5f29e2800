import numpy as np
import pytest
from cli.console import call

from dovetail.parts.cutting import cut
from dovetail.parts.part import build
from dovetail.shelf.store import Shelf


@pytest.fixture(scope="session")
def furnished(tmp_path_factory):
    """A folder with a shelf of untrained parts, for commands that only read."""
    folder = tmp_path_factory.mktemp("furnished")
    shelf = Shelf(folder / "shelf")
    net = build("lenet5", size=8, classes=3)
    front, back = cut(net, at="conv2")
    shelf.add(net, "net")
    shelf.add(front, "net.front")
    shelf.add(back, "net.back")
    shelf.add(cut(build("lenet5", size=8, classes=3, seed=1), at="conv2")[1], "other.back")
    np.save(folder / "images.npy", np.random.default_rng(0).random((5, 1, 8, 8), np.float32))
    return folder


@pytest.fixture
def run(capsys):
    return lambda *words: call(capsys, *words)


@pytest.fixture
def at_the_shelf(run, furnished, monkeypatch):
    """Run a command in the furnished folder."""
    monkeypatch.chdir(furnished)
    return run
