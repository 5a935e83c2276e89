"""Something begun before its result is needed: round trips and programs that need not wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


def begun(function: Callable[[], _T], name: str, *, finishing: bool = False) -> Future[_T]:
    """The result of ``function``, called in a thread ``name``.

    finishing: the process does not end before it: it has something to clear away. Else nobody waits for it there.
    """
    future: Future[_T] = Future()

    def body() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - carried to who asks
            future.set_exception(error)

    threading.Thread(target=body, name=name, daemon=not finishing).start()
    return future
