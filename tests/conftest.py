"""What all tests share: hypothesis profiles, and how a missing tool is met."""

import os
import shutil
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "ci", deadline=None, max_examples=50, derandomize=True, suppress_health_check=list(HealthCheck)
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def require_tool(name: str) -> str:
    """The path of a program; without it the test is skipped with its reason, or fails where it is required.

    ``ENVBUILDER_REQUIRE`` is ``all`` or a comma-separated list (``make test`` and CI say ``all``).
    """
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if found:
        return found
    required = os.environ.get("ENVBUILDER_REQUIRE", "").split(",")
    if "all" in required or name in required:
        pytest.fail(f"{name} is required here and not installed")
    pytest.skip(f"{name} is not installed")


@pytest.fixture(name="require_tool")
def require_tool_fixture() -> Callable[[str], str]:
    return require_tool
