"""The main job end to end, through the command as a user types it, and a table of what it cost.

    python tools/demo.py [ENV] [--registry HOST:PORT]

Lock (or find the lock fresh), build, push when a registry is named, resolve, start a command
lazily on a cold node, and again after a full pull. Cold means: an empty chunk store of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

#: What each environment is started with: enough to need the packages that it is for.
COMMANDS = {
    "hello": "import numpy, pandas; print('numpy', numpy.__version__, 'pandas', pandas.__version__)",
    "standard": "import ctypes; ctypes.CDLL('libcudart.so.13'); print('libcudart.so.13 loaded')",
    "ai": "import torch; print('torch', torch.__version__, 'CUDA', torch.version.cuda)",
}


def envbuilder(*words: str) -> Any:
    """Run one verb with ``--json``; its progress goes to our stderr."""
    print("$ envbuilder " + " ".join(words), file=sys.stderr, flush=True)
    argv = [sys.executable, "-m", "envbuilder", *words, "--json"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return json.loads(done.stdout)


def start(reference: str, code: str, *, full: bool) -> dict[str, Any]:
    """Start ``python -c code`` on a cold node; the report of ``envbuilder run``."""
    with tempfile.TemporaryDirectory(prefix="envbuilder-demo-") as folder:
        report = Path(folder) / "report.json"
        words = ["run", reference, "--report", str(report), *(["--full"] if full else []), "--", "python3", "-c", code]
        print("$ envbuilder " + " ".join(words[:-1]) + f" {code!r}", file=sys.stderr, flush=True)
        environ = {**os.environ, "ENVBUILDER_CHUNKS": str(Path(folder) / "chunks")}
        done = subprocess.run(
            [sys.executable, "-m", "envbuilder", *words], env=environ, stdout=subprocess.PIPE, check=False
        )
        sys.stderr.write("  " + done.stdout.decode(errors="replace"))
        if done.returncode:
            sys.exit(done.returncode)
        value: dict[str, Any] = json.loads(report.read_text())
        return value


def first_result(report: dict[str, Any]) -> str:
    """Seconds and bytes until the command's first output."""
    seconds, fetched = report["seconds"]["first_output"], report["fetched_bytes"]["before_first_output"]
    return f"{seconds:.2f} s, after {size(fetched)} fetched"


def size(count: float) -> str:
    """Bytes in decimal units."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("env", nargs="?", default="hello")
    parser.add_argument("--registry", default="", help="host:port; start one with make registry")
    arguments = parser.parse_args()
    env, code = arguments.env, COMMANDS.get(arguments.env, "import sys; print(sys.version)")

    locked = envbuilder("lock", env)
    (built,) = envbuilder("build", env)
    rows = [
        ("lock", "fresh, nothing to do" if not any(item["changed"] for item in locked) else "written"),
        ("layers", f"{len(built['layers'])} ({sum(layer['reused'] for layer in built['layers'])} reused)"),
        ("bytes built", size(sum(layer["size"] for layer in built["layers"] if not layer["reused"]))),
        ("image size", size(sum(layer["size"] for layer in built["layers"]))),
        ("time to build", f"{built['seconds']:.1f} s"),
    ]
    reference = env
    if arguments.registry:
        reference = f"{arguments.registry}/env/{env}:{built['version']}"
        pushed = envbuilder("push", env, reference)
        there = size(pushed["skipped_bytes"])
        rows.append(
            (
                "bytes pushed",
                f"{size(pushed['copied_bytes'])} in {pushed['seconds']:.1f} s ({there} were there)",
            )
        )
    resolved = envbuilder("resolve", reference)
    rows.append(("resolved to", resolved["pinned"]))
    lazy, full = start(resolved["pinned"], code, full=False), start(resolved["pinned"], code, full=True)
    rows += [
        ("mounted by", lazy["how"]),
        (
            "first result, lazy",
            f"{lazy['first_output_s']:.2f} s after {size(lazy['fetched_before_first_output'])} fetched",
        ),
        (
            "first result, full pull",
            f"{full['first_output_s']:.2f} s after {size(full['fetched_before_first_output'])} fetched",
        ),
    ]
    width = max(len(name) for name, _ in rows)
    print("\n" + "\n".join(f"{name.ljust(width)}  {value}" for name, value in rows))


if __name__ == "__main__":
    main()
