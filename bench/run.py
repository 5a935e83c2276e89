"""Run scenarios and keep their numbers: python bench/run.py [NAME...] [--env ENV] [--exclusive]

Each scenario is a file beside this one; it appends one line to results/NAME.jsonl and prints a table.
What it says about coldness is strict only with --exclusive, which drops the page cache of the whole machine.
"""

from __future__ import annotations

import argparse
import compileall
import importlib
import sys
import time
from pathlib import Path

from measure import Failed
from record import PROJECT, keep, show
from scratch import Bench, Unavailable, remove

SCENARIOS = (
    "partition",
    "repro",
    "wheel_layer",
    "build_push",
    "bump",
    "first_result",
    "relatives",
    "loopback",
    "latency",
    "node_start",
    "tree",
    "registry_blobs",
    "registry_requests",
    "registry_tokens",
)
#: Not met on this run: a target, or what the scenario needs.
_MISSED, _UNAVAILABLE = 1, 5


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("scenario", nargs="*", metavar="NAME", help=", ".join(SCENARIOS))
    parser.add_argument("--env", default="hello", help="environment of images/ (default: hello)")
    parser.add_argument("--exclusive", action="store_true", help="nothing else runs on this machine: drop all caches")
    parser.add_argument(
        "--scratch", type=Path, default=PROJECT / ".cache/bench", help="folder for what is made (default: .cache/bench)"
    )
    parser.add_argument("--keep-scratch", action="store_true", help="leave the work folder, to look at its log")
    arguments = parser.parse_args()
    if unknown := set(arguments.scenario) - set(SCENARIOS):
        parser.error(f"no scenario {', '.join(sorted(unknown))}: want {', '.join(SCENARIOS)}")
    # As an installed package is: else every start of ours compiles it where PYTHONDONTWRITEBYTECODE is set.
    compileall.compile_dir(PROJECT / "envbuilder", quiet=1)
    status = 0
    for name in arguments.scenario or SCENARIOS:
        status = max(status, _one(name, arguments))
    return status


def _one(name: str, arguments: argparse.Namespace) -> int:
    kept = arguments.scratch.resolve() / "kept"
    work = arguments.scratch.resolve() / f"{name}-{arguments.env}"
    remove(work)
    work.mkdir(parents=True)
    kept.mkdir(exist_ok=True)
    bench = Bench(env=arguments.env, work=work, kept=kept, exclusive=arguments.exclusive)
    print(f"{name}: {arguments.env}; log: {bench.log}", file=sys.stderr, flush=True)
    start = time.monotonic()
    done = False
    try:
        outcome = importlib.import_module(name).run(bench)
        done = True
    except (Unavailable, Failed) as error:
        print(f"error: {name} {arguments.env}: {error}", file=sys.stderr)
        return _UNAVAILABLE
    finally:
        if arguments.keep_scratch or not done:
            print(f"left for you to look at: {work}", file=sys.stderr)
        else:
            remove(work)
    file = keep(name, outcome, env=arguments.env, exclusive=arguments.exclusive)
    print(show(name, outcome, env=arguments.env))
    print(f"kept in {file} after {time.monotonic() - start:.0f} s\n")
    return 0 if all(target.held for target in outcome.targets) else _MISSED


if __name__ == "__main__":
    sys.exit(main())
