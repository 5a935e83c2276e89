"""The one import of the TOML reader: the standard library's, and its backport below Python 3.11."""

from __future__ import annotations

import sys
from typing import Any

from envbuilder.errors import SpecErrors

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def parse_toml(text: str, *, source: str) -> dict[str, Any]:
    """The document in ``text``.

    Raises:
        SpecErrors: not TOML.
    """
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SpecErrors(source, [f"not TOML: {error}"]) from error
