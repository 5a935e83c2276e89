"""Families of errors: what an exit code means must not depend on who raised it."""

import importlib
import pkgutil

import pytest

import envbuilder
from envbuilder import errors

FAMILIES = (errors.SpecError, errors.IntegrityError, errors.UnavailableError, errors.HostError, errors.RefusedError)


def every_error() -> list[type[errors.EnvbuilderError]]:
    for module in pkgutil.walk_packages(envbuilder.__path__, "envbuilder."):
        if not module.name.endswith(("__main__", "_worker")):
            importlib.import_module(module.name)
    found, queue = [], [errors.EnvbuilderError]
    while queue:
        for child in queue.pop().__subclasses__():
            if child.__module__.startswith("envbuilder."):
                found.append(child)
                queue.append(child)
    return found


def test_families_have_distinct_exit_codes():
    assert len({family.exit_code for family in FAMILIES}) == len(FAMILIES)


@pytest.mark.slow
def test_every_error_says_what_it_means_and_keeps_its_family_s_exit_code():
    silent = [error.__qualname__ for error in every_error() if not error.__doc__]
    strange = [
        error.__qualname__
        for error in every_error()
        for family in FAMILIES
        if issubclass(error, family) and error.exit_code != family.exit_code
    ]

    assert len(every_error()) > 10
    assert silent == []
    assert strange == []
