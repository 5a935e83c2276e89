"""When to ask again, and how long to wait before: pure but for the random jitter handed in."""

from __future__ import annotations

import email.utils
from dataclasses import dataclass

#: Answers after which the same request may succeed. 499 and 522: proxies before registries ([ggcr] retries them).
RETRYABLE = frozenset({408, 429, 499, 500, 502, 503, 504, 522})


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """``attempts`` in all; waits double from ``first_s`` to ``longest_s``; together at most ``budget_s``."""

    attempts: int = 5
    first_s: float = 0.5
    longest_s: float = 20.0
    budget_s: float = 120.0

    def wait_s(self, attempt: int, waited_s: float, retry_after_s: float | None, jitter: float) -> float | None:
        """Seconds to wait after failed attempt number ``attempt`` (from 1); None: give up.

        ``jitter`` is random in [0, 1). A server's Retry-After is honoured to the full, or we give up:
        asking earlier than it allowed is what gets clients banned.
        """
        if attempt >= self.attempts:
            return None
        backoff = min(self.longest_s, self.first_s * 2 ** (attempt - 1)) * (0.5 + jitter / 2)
        wait = max(retry_after_s or 0.0, backoff)
        return wait if waited_s + wait <= self.budget_s else None


def parse_retry_after(text: str | None, now_s: float) -> float | None:
    """Seconds that a Retry-After header asks for (RFC 9110, 10.2.3: a number or a date); None if it says nothing."""
    if not text:
        return None
    if text.strip().isdecimal():
        return float(min(int(text.strip()[:9]), 10**9))
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now_s)
    except (ValueError, TypeError, OverflowError):
        return None
