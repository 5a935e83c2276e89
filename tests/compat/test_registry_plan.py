"""The plan of tests/contract/test_registry_matrix.py against distribution 3."""

import importlib.util
from pathlib import Path

import pytest

from envbuilder.registry.settings import HttpSettings
from envbuilder.testing.servers import docker_registry

_FILE = Path(__file__).parents[1] / "contract/test_registry_matrix.py"
_SPEC = importlib.util.spec_from_file_location("registry_matrix", _FILE)
matrix = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(matrix)
#: Every test of the plan and its fixture; the registry is this file's.
globals().update(
    {name: item for name, item in vars(matrix).items() if name.startswith("test_end_") or name == "repository"}
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def place(tmp_path_factory, require_tool):
    with docker_registry(tmp_path_factory.mktemp("plan"), program=require_tool("registry")) as running:
        yield matrix.Place(running.host, HttpSettings())
