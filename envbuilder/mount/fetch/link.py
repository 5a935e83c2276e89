"""How far a registry is and how fast it sends, as requests show it. No I/O, no clock.

Where a miss is mostly a round trip, the line is idle while the job waits: then the rest of the image may use it at
once, and a start from far away is not slower than a full pull. Where it is mostly bytes, it may not.

The slower the answers are beside the line, the more a guess of what will be read is worth
(docs/decisions/0002-reads-ahead.md).
"""

from __future__ import annotations

#: How much of an average the newest request is.
_WEIGHT = 0.25
#: Seconds from which a round trip is far. A registry on the same machine takes 5 ms to answer, and shares its cores.
_FAR_S = 0.02
#: Bytes of a usual miss as stored: eight chunks (schedule.py).
_MISS = 700_000
#: A guess may keep the line busy as long as so many misses last; bytes until that is known, and bounds of it.
_MISSES = 2.5
_UNKNOWN, _LEAST, _MOST = 1_600_000, 600_000, 3_200_000
#: Reads that wait in any start without a trace: what comes in their time may come at once (``import torch``: 500).
_WAITS = 50
#: Connections that fetch ahead of runs: what is on the line already is what a read that must wait waits for.
#: Background requests in flight: two keep a 1 Gbit/s line full, and leave it quickly.
_AHEAD, _BACKGROUND = 1, 2
#: Connections that are kept free where the line has room for all the others.
_KEPT_FREE = 2


class Link:
    """What was told so far. Under the schedule's lock.

    answer_s: the quickest answer, as a line that is full answers late. miss_s: the same on average, whatever the line
    does meanwhile. rate: bytes a second, on average. rest: bytes of the image, as stored, that were not here.
    """

    def __init__(self) -> None:
        self.answer_s = self.miss_s = self.rate = 0.0
        self.rest = 0

    def told(self, answer_s: float, rest_s: float, rest: int) -> None:
        """A request was answered after ``answer_s``; ``rest`` more bytes followed in ``rest_s``."""
        self.answer_s = min(self.answer_s, answer_s) if self.answer_s else answer_s
        self.miss_s = _average(self.miss_s, answer_s)
        if rest and rest_s > 0:
            self.rate = _average(self.rate, rest / rest_s)

    @property
    def worth(self) -> int:
        """Bytes, as stored, that a guess of what will be read may have."""
        known = _MISSES * self.miss_s * self.rate
        return int(min(max(known, _LEAST), _MOST)) if known else _UNKNOWN

    @property
    def is_far(self) -> bool:
        """Whether answers come from far away."""
        return self.answer_s > _FAR_S

    @property
    def is_idle(self) -> bool:
        """Whether most of the line is unused while a job waits for one miss after the other.

        Guesses use it, unless it brings more than they may have; of an image with little left they need not.
        """
        unused = self.answer_s * self.rate
        return self.is_far and (unused > _MOST or (unused > _MISS and self.rest < _WAITS * unused))

    def for_ahead(self, connections: int) -> int:
        """Of ``connections`` those that may fetch ahead of runs."""
        return max(connections - _KEPT_FREE, 1) if self.is_far else _AHEAD

    def for_background(self, connections: int) -> int:
        """Of ``connections`` those for the background: of a line that is idle all but what the job needs."""
        return max(connections - _KEPT_FREE, 1) if self.is_idle else _BACKGROUND


def _average(before: float, now: float) -> float:
    return before + (now - before) * _WEIGHT if before else now
