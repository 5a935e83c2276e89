"""Connections that did not come about: whether asking again soon can help, judged by the kernel's own reason."""

from __future__ import annotations

import errno
import socket

from envbuilder.registry.errors import RegistryDown

#: Nobody listens there, or no way leads there.
_NO_WAY = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH})
_HINT = "Check the name, the port and the network."


class Unreachable(RegistryDown):
    """No connection came about. Field: ``hopeless``: nobody has the name, and asking at once again finds nobody."""

    hopeless = False


def innermost(error: BaseException) -> BaseException:
    """What lies under all wrappers of ``error``: urllib3 puts its own around what the kernel said."""
    while True:
        inner = error.__cause__ or next((part for part in error.args if isinstance(part, BaseException)), None)
        inner = inner or getattr(error, "reason", None)
        if not isinstance(inner, BaseException) or inner is error:
            return error
        error = inner


def down_error(text: str, error: BaseException) -> RegistryDown:
    """The error for a request that ``error`` ended: no answer came, or no connection."""
    inner = innermost(error)
    # A resolver that does not answer now (EAI_AGAIN) may do so in a moment; an unknown name stays unknown.
    unknown = isinstance(inner, UnicodeError) or (
        isinstance(inner, socket.gaierror) and inner.errno != socket.EAI_AGAIN
    )
    if unknown or isinstance(inner, socket.gaierror) or getattr(inner, "errno", None) in _NO_WAY:
        unreachable = Unreachable(text, hint=_HINT)
        unreachable.hopeless = unknown
        return unreachable
    return RegistryDown(text, hint=_HINT)
