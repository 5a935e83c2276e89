"""Processes beside this one end with what they were begun for."""

from pathlib import Path

from envbuilder.layer.build_processes import builders
from envbuilder.store.layout import LayoutTarget


def test_builders_end_without_taking_their_interpreters_down(tmp_path):
    seen = tmp_path / "taken-down"
    with builders(1, LayoutTarget(tmp_path / "store", create=True)) as pool:
        pool.submit(_hold, str(seen)).result()
        (process,) = pool._processes.values()

    assert process.exitcode == 0
    assert not seen.exists()


class _Told:
    def __init__(self, file):
        self.touch = Path(file).touch

    def __del__(self):
        self.touch()


_held = []


def _hold(file):
    _held.append(_Told(file))
