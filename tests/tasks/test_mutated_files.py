"""Whatever happens to a data file, it is read or refused in one line of ours."""

import pytest
from tasks.mutations import mutations, sorts

from dovetail.core.errors import DovetailError

SORTS = sorts()


def outcome(sort, path, data):
    path.write_bytes(data)
    try:
        sort.read(path)
    except DovetailError as error:
        return "refused" if len(str(error).splitlines()) == 1 else str(error)
    return "read"


@pytest.mark.parametrize("name", SORTS)
def test_a_damaged_file_is_read_or_refused(tmp_path, name):
    sort, path = SORTS[name], tmp_path / f"file{SORTS[name].ending}"
    assert outcome(sort, path, sort.good) == "read"
    found = {outcome(sort, path, data) for data in mutations(sort.good, 40)}
    assert found == {"read", "refused"}  # were nothing read or nothing refused, it proves little


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("name", SORTS)
def test_thousands_of_damaged_files_are_read_or_refused(tmp_path, name, seed):
    sort, path = SORTS[name], tmp_path / f"file{SORTS[name].ending}"
    found = {outcome(sort, path, data) for data in mutations(sort.good, 1000, seed)}
    assert found == {"read", "refused"}
