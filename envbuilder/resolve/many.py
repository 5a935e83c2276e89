"""Many references at once: each once, several at a time, and an error of one is no error of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from envbuilder.errors import EnvbuilderError

#: References at a time. Each is three small requests in a row, and a round trip is nearly all that one costs; as many
#: as a connection pool keeps open (registry/pools.py).
AT_A_TIME = 32

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[_T]):
    """What became of the reference ``asked``: ``found``, or the ``error`` that says why not."""

    asked: str
    found: _T | None
    error: EnvbuilderError | None = None


def resolve_all(asked: Sequence[str], resolve_one: Callable[[str], _T]) -> tuple[Outcome[_T], ...]:
    """What ``resolve_one`` gives for each of ``asked``, in their order; one that stands twice is resolved once.

    ``resolve_one`` is called from several threads; what it raises besides our own errors is raised here.
    """

    def one(text: str) -> Outcome[_T]:
        try:
            return Outcome(text, resolve_one(text))
        except EnvbuilderError as error:
            return Outcome(text, None, error)

    once = list(dict.fromkeys(asked))
    with ThreadPoolExecutor(max(1, min(AT_A_TIME, len(once))), "resolve") as pool:
        outcomes = dict(zip(once, pool.map(one, once), strict=True))
    return tuple(outcomes[text] for text in asked)
