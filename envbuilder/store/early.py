"""Send blobs while the image that will name them is still being made; its ``copy`` then finds them there."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from envbuilder.digest import Descriptor
from envbuilder.store.copy import DEFAULT_JOBS
from envbuilder.store.movement import Movement
from envbuilder.store.target import SerialTarget, Target


class EarlyPush:
    """Moves blobs from ``source`` to ``target`` in threads of its own, at the pace that the two hosts bear.

    A context manager. Left without an error it waits for all blobs and raises the first error of theirs;
    left with one it stops the blobs on their way, whose uploads are cancelled, and waits for that.
    Nothing is sent early to an archive, whose bytes should follow from the image alone, nor to None.
    """

    def __init__(self, source: Target, target: Target | None) -> None:
        self._target = None if isinstance(target, SerialTarget) else target
        self._movement = Movement(source, self._target, None) if self._target else None
        self._pool = ThreadPoolExecutor(DEFAULT_JOBS, "early-push")
        self._sent: list[Future[None]] = []

    @property
    def sent(self) -> int:
        """Bytes that were sent; what the target had or took from elsewhere is not among them."""
        return self._movement.moved if self._movement else 0

    def push(self, what: Descriptor) -> None:
        """Begin to send ``what``, which the source has; never waits. From any thread."""
        if self._movement:
            self._sent.append(self._pool.submit(self._movement.missing, what))

    def __enter__(self) -> EarlyPush:  # noqa: PYI034  typing.Self is of Python 3.11
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None and self._movement:
            self._movement.stop()
        self._pool.shutdown(wait=True, cancel_futures=kind is not None)
        if kind is None:
            for future in self._sent:
                future.result()
