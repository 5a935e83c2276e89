import pytest

from envbuilder.errors import SpecError
from envbuilder.store.records import RecordStore

KEY = "ab" * 32


@pytest.fixture
def records(tmp_path):
    return RecordStore(tmp_path / "records")


def test_a_record_comes_back_as_it_was_put(records):
    assert records.get(KEY) is None

    records.put(KEY, b'{"a":1}')
    records.put(KEY, b'{"a":2}')

    assert records.get(KEY) == b'{"a":2}'
    assert records.keys() == (KEY,)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:20] + b"!" + data[21:]]
)
def test_a_damaged_record_is_absent(records, tmp_path, damage):
    records.put(KEY, b'{"a":1, "b": "some text that is long enough"}')
    [file] = (tmp_path / "records").glob("*.zst")
    file.write_bytes(damage(file.read_bytes()))

    assert records.get(KEY) is None


def test_a_removed_record_is_absent(records):
    records.put(KEY, b"x")

    records.remove(KEY)
    records.remove(KEY)

    assert records.get(KEY) is None


@pytest.mark.parametrize("key", ["", "../x", "a/b", ".hidden", "A" * 10, "x" * 300])
def test_a_key_that_is_no_file_name_is_refused(records, key):
    with pytest.raises(SpecError, match="want a key"):
        records.put(key, b"")
