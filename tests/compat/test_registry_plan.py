"""The plan of tests/contract/test_registry_matrix.py against distribution 3: files, S3, tokens, and as a cache."""

import importlib.util
from pathlib import Path

import pytest

_FILE = Path(__file__).parents[1] / "contract/test_registry_matrix.py"
_SPEC = importlib.util.spec_from_file_location("registry_matrix", _FILE)
matrix = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(matrix)
#: Every test of the plan and its fixtures; the registry is this file's.
globals().update(
    {
        name: item
        for name, item in vars(matrix).items()
        if name.startswith("test_") or name in ("repository", "calls", "check_target")
    }
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session", params=["files", "s3", "token"])
def place(request, tmp_path_factory, require_tool):
    program = require_tool("registry")
    with matrix.real_place(request.param, tmp_path_factory.mktemp("plan"), program) as made:
        yield made


@pytest.fixture
def programs(require_tool):
    return [require_tool("registry")]
