"""Feed damaged wheels, debs, tars and zstd frames to their readers until the time is up; keep what crashes one.

    tools/fuzz.py --seconds 60 [--target wheel] [--seed 1] [--keep DIR]

A crash is printed with its target and seed; ``--target T --seed N --count 1`` repeats it. Exit status 1 after any.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import signal
import sys
import time
import traceback
from pathlib import Path

from envbuilder.testing.fuzz import TARGETS, check, make

#: Seconds that one input may take, and bytes of address space for all of it.
_HANG_S, _MEMORY = 20, 4 << 30


class Hang(BaseException):
    """An input took longer than any honest one: no ``except Exception`` may swallow it."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--target", choices=sorted(TARGETS), action="append")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--count", type=int, default=0, help="inputs of each target; 0: until the time is up")
    parser.add_argument("--keep", type=Path, default=Path(".cache/fuzz"), help="folder for inputs that crash")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    signal.signal(signal.SIGALRM, _hang)
    started, crashes = time.monotonic(), 0
    taken = dict.fromkeys(options.target or sorted(TARGETS), 0)
    tried = dict(taken)
    for seed in itertools.count(options.seed):
        if time.monotonic() - started > options.seconds or (options.count and seed >= options.seed + options.count):
            break
        for target in tried:
            tried[target] += 1
            try:
                signal.alarm(_HANG_S)
                taken[target] += check(target, make(target, seed))
            except (Exception, Hang):  # noqa: BLE001  whatever it is, it is what we look for
                crashes += 1
                options.keep.mkdir(parents=True, exist_ok=True)
                (options.keep / f"{target}-{seed}").write_bytes(make(target, seed))
                print(f"crash: {target} {seed}\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            finally:
                signal.alarm(0)
    seconds = round(time.monotonic() - started)
    print(json.dumps({"seconds": seconds, "tried": tried, "taken": taken, "crashes": crashes}))
    return 1 if crashes else 0


def _hang(*_: object) -> None:
    raise Hang(f"over {_HANG_S} s")


if __name__ == "__main__":
    sys.exit(main())
