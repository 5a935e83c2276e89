"""The exact bytes of a lock with every field: what reviews see and what digests stand on."""

import os
from pathlib import Path

from envbuilder.lock.codec import digest, dump
from envbuilder.testing.locks import FULL

FILE = Path(__file__).with_name("full.lock.toml")


def test_a_lock_with_every_field_is_written_as_ever():
    if os.environ.get("ENVBUILDER_GOLDEN") == "write":
        FILE.write_bytes(dump(FULL))

    assert dump(FULL).decode() == FILE.read_bytes().decode()
    assert str(digest(FULL)).startswith("sha256:")
