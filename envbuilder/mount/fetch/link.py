"""How far a registry is and how fast it sends, as requests show it. No I/O, no clock.

Where a miss is mostly a round trip, the line is idle while the job waits: then the rest of the image may use it at
once, and a start from far away is not slower than a full pull. Where it is mostly bytes, it may not.
"""

from __future__ import annotations

#: How much of an average the newest request is.
_WEIGHT = 0.25
#: Seconds from which a round trip is far. A registry on the same machine takes 5 ms to answer, and shares its cores.
_FAR_S = 0.02
#: Bytes of a usual miss as stored: eight chunks (schedule.py).
_MISS = 700_000


class Link:
    """What was told so far. Under the schedule's lock.

    answer_s: the quickest answer, as a line that is full answers late. rate: bytes a second, on average.
    """

    def __init__(self) -> None:
        self.answer_s = self.rate = 0.0

    def told(self, answer_s: float, rest_s: float, rest: int) -> None:
        """A request was answered after ``answer_s``; ``rest`` more bytes followed in ``rest_s``."""
        self.answer_s = min(self.answer_s, answer_s) if self.answer_s else answer_s
        if rest and rest_s > 0:
            self.rate = _average(self.rate, rest / rest_s)

    @property
    def is_far(self) -> bool:
        """Whether answers come from far away."""
        return self.answer_s > _FAR_S

    @property
    def is_idle(self) -> bool:
        """Whether most of the line is unused while a job waits for one miss after the other."""
        return self.is_far and self.answer_s * self.rate > _MISS


def _average(before: float, now: float) -> float:
    return before + (now - before) * _WEIGHT if before else now
