"""Every trick is refused with our error, after little work, and nothing is executed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hostile.cases import CASES

from dovetail.parts.blueprint import MOST_PIECES

MOST = {"pieces": MOST_PIECES + 1, "calls": 100, "megabytes_read": 100, "megabytes": 200}
"""What a refusal may cost: pieces of networks, calls of modules, memory read and held."""

LONGEST_MESSAGE = 2000


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    tests = Path(__file__).parents[1]
    known = (str(tests), os.environ.get("PYTHONPATH", ""))
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "hostile.measured", str(folder)],
        cwd=tests,
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, known))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout)


@pytest.mark.parametrize("name", CASES)
def test_a_trick_is_refused(name, measured):
    found = measured["cases"][name]
    assert found.get("ours"), f"{found['error']}: {found.get('says')}\n{found.get('trace')}"
    assert CASES[name].says in found["says"].splitlines()[0]
    assert found["length"] < LONGEST_MESSAGE
    assert not found["canary"], "code from the file was run"
    assert {what: found[what] for what, most in MOST.items() if found[what] > most} == {}


def test_the_canary_sings_when_a_pickle_is_run(tmp_path):
    import pickle

    from hostile.liar import Bomb

    pickle.loads(pickle.dumps(Bomb(tmp_path / "canary"))).close()
    assert (tmp_path / "canary").exists()


def test_a_shelf_of_lies_still_serves_the_good_parts(measured):
    shelf = measured["shelf"]
    hostile = {f"{name}@1" for name in measured["shelved"]}
    good = {"aaa-good@1", "zzz-good@1"}
    not_folders = {"a-zip-in-place-of-the-folder@1"}
    assert set(shelf["listed"]) == (hostile - not_folders) | good
    assert set(shelf["problems"]) == hostile - not_folders
    assert all(shelf["listed"][ref] is None for ref in good)
    assert len(set(shelf["loads"])) == 1
    assert not measured["canary"]
