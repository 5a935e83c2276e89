"""The base error and its families: exit code, whether to retry, who must act.

Every error that envbuilder raises on purpose is a leaf of one of these families
and lives beside the code that raises it. A message says what, where, want and
got; it never holds a secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class EnvbuilderError(Exception):
    """Base of every error this package raises on purpose.

    ``hint`` is one imperative sentence that the CLI prints after the message, or "".
    """

    exit_code = 1
    hint = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        if hint:
            self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        # Leaves have constructors of their own; an error must cross from a build process to its parent all the same.
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[EnvbuilderError], args: tuple[Any, ...], fields: dict[str, Any]) -> EnvbuilderError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class SpecError(EnvbuilderError):
    """The user's input is wrong: fix the file or the command, don't retry."""

    exit_code = 2


class IntegrityError(EnvbuilderError):
    """Bytes are not the bytes that were promised: never retried, never cached."""

    exit_code = 3


class UnavailableError(EnvbuilderError):
    """A registry, index or mount did not answer: the same call may work later."""

    exit_code = 4


class HostError(EnvbuilderError):
    """The host lacks something or refuses it (no /dev/fuse, a full disk): the hint says what."""

    exit_code = 5


class RefusedError(EnvbuilderError):
    """Somebody answered, and the answer is no (not there, immutable, over a limit): the same call gets it again."""

    exit_code = 6


class SpecErrors(SpecError):
    """Every problem of one input file, so that a user mends the file in one round."""

    def __init__(self, file: str, problems: Sequence[str], *, hint: str = "") -> None:
        super().__init__("\n".join(f"{file}: {problem}" for problem in problems), hint=hint)
        self.problems = tuple(problems)
