"""Processes beside this one end with what they were begun for."""

from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from envbuilder.layer.build_processes import builders
from envbuilder.store.layout import LayoutTarget


def test_builders_end_without_taking_their_interpreters_down(tmp_path):
    seen = tmp_path / "taken-down"
    with builders(1, LayoutTarget(tmp_path / "store", create=True)) as pool:
        pool.submit(_hold, str(seen)).result()
        (process,) = pool._processes.values()

    assert process.exitcode == 0
    assert not seen.exists()


def test_what_kills_a_builder_is_told(tmp_path, capfd):
    with pytest.raises(BrokenProcessPool), builders(1, LayoutTarget(tmp_path / "store", create=True)) as pool:
        pool.submit(_Unreadable()).result()

    assert "this cannot be read" in capfd.readouterr().err


class _Unreadable:
    """Work that a builder cannot take out of its queue."""

    def __call__(self):
        raise AssertionError

    def __reduce__(self):
        return _raise, ()


def _raise():
    raise RuntimeError("this cannot be read")


class _Told:
    def __init__(self, file):
        self.touch = Path(file).touch

    def __del__(self):
        self.touch()


_held = []


def _hold(file):
    _held.append(_Told(file))
