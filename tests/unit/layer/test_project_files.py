import pytest

from envbuilder.digest import Digest
from envbuilder.layer import files as files_module
from envbuilder.layer.files import FileChanged, file_entries, overlay
from envbuilder.layer.tree import file
from envbuilder.lock.model import LockedFile
from envbuilder.paths import UnsafePath

RULE = {"source": "motd", "path": "etc/motd", "mode": 0o640, "digest": Digest.of(b"hi")}


def test_a_file_comes_with_its_bytes_and_mode(tmp_path):
    (tmp_path / "motd").write_bytes(b"hi")

    (entry,) = file_entries([LockedFile(**RULE)], tmp_path)

    assert (entry.path, entry.mode & 0o7777, entry.open().read()) == ("etc/motd", 0o640, b"hi")


def test_a_changed_file_is_refused_with_both_digests(tmp_path):
    (tmp_path / "motd").write_bytes(b"ho")

    with pytest.raises(FileChanged, match=f"motd: want {Digest.of(b'hi')}, got {Digest.of(b'ho')}"):
        list(file_entries([LockedFile(**RULE)], tmp_path))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(FileChanged, match="motd: No such file"):
        list(file_entries([LockedFile(**RULE)], tmp_path))


def test_a_file_over_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files_module, "_MAX_FILE", 1)
    (tmp_path / "motd").write_bytes(b"hi")

    with pytest.raises(FileChanged, match="at most 1 bytes"):
        list(file_entries([LockedFile(**RULE)], tmp_path))


@pytest.mark.parametrize("change", [{"source": "../motd"}, {"path": "../etc/motd"}])
def test_paths_stay_inside(tmp_path, change):
    (tmp_path / "motd").write_bytes(b"hi")

    with pytest.raises(UnsafePath):
        list(file_entries([LockedFile(**{**RULE, **change})], tmp_path))


def test_what_the_user_gives_wins():
    found = {
        entry.path: entry.open().read() for entry in overlay([file("a", b"1"), file("b", b"1")], [file("b", b"2")])
    }

    assert found == {"a": b"1", "b": b"2"}
