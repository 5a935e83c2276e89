"""The main job end to end, through the command as a user types it, and a table of what it cost.

    python tools/demo.py [ENV] [--registry HOST:PORT]

Lock (or find the lock fresh), build, push when a registry is named, resolve, start a command
lazily on a node that has nothing of the image, and again after a full pull. Having nothing means:
an empty chunk store of its own; the blobs themselves may still be in the page cache.
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
#: Where the new nodes' chunk stores lie: on an ordinary disk, which /tmp need not be.
SCRATCH = Path(__file__).resolve().parents[1] / ".cache"
#: Exit status when this host lacks something (envbuilder/errors.py, HostError).
_HOST = 5


def output(*words: str, **variables: str) -> bytes:
    """What one verb writes to stdout; its progress goes to our stderr, its failure is ours."""
    argv = [sys.executable, "-m", "envbuilder", *words]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, **variables}) as process:
        try:
            out, _ = process.communicate()
        except KeyboardInterrupt:
            process.communicate()  # it got the Ctrl-C too, and clears up after itself
            raise
    if process.returncode:
        sys.exit(process.returncode)
    return out


def envbuilder(*words: str) -> Any:
    """Run one verb with ``--json``."""
    print("\n$ envbuilder " + " ".join(words), file=sys.stderr, flush=True)
    return json.loads(output(*words, "--json"))


def start(reference: str, code: str, *, full: bool) -> dict[str, Any]:
    """Start ``python3 -c code`` on a node that has nothing yet; the report of ``envbuilder run``."""
    words = ["run", *(["--full"] if full else []), reference, "--", "python3", "-c", code]
    print("\n$ envbuilder " + " ".join(words[:-1]) + f' "{code}"', file=sys.stderr, flush=True)
    SCRATCH.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="demo-", dir=SCRATCH) as folder:
        report = Path(folder) / "report.json"
        out = output(words[0], "--report", str(report), *words[1:], ENVBUILDER_CHUNKS=str(Path(folder) / "chunks"))
        sys.stderr.write(out.decode(errors="replace"))
        value: dict[str, Any] = json.loads(report.read_text())
        return value


def first_result(report: dict[str, Any]) -> str:
    """Seconds from typing the command, and bytes fetched, until its first output."""
    seconds, fetched = report["seconds"]["first_output"], report["fetched_bytes"]["before_first_output"]
    return f"{seconds:.2f} s, {size(fetched)} fetched"


def size(count: float) -> str:
    """Bytes in decimal units."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def show(rows: list[tuple[str, str]]) -> None:
    """Print the table; to stdout, as all else went to stderr."""
    width = max(len(name) for name, _ in rows)
    print("\n" + "\n".join(f"{name.ljust(width)}  {value}" for name, value in rows), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("env", nargs="?", default="hello")
    parser.add_argument("--registry", default="", help="host:port; start one with make registry")
    arguments = parser.parse_args()
    env, code = arguments.env, COMMANDS.get(arguments.env, "import sys; print(sys.version)")

    locked = envbuilder("lock", env)
    (built,) = envbuilder("build", env)
    new = [layer for layer in built["layers"] if not layer["reused"]]
    kept = f"{len(built['layers']) - len(new)} were in the store"
    rows = [
        ("lock", "written anew" if any(item["changed"] for item in locked) else "was fresh"),
        ("image", f"{size(sum(layer['size'] for layer in built['layers']))} in {len(built['layers'])} layers"),
        (
            "built",
            f"{len(new)} layers, {size(sum(layer['size'] for layer in new))}, in {built['seconds']:.1f} s; {kept}",
        ),
    ]
    reference = env
    if arguments.registry:
        reference = f"{arguments.registry}/env/{env}:{built['version']}"
        pushed = envbuilder("push", env, reference)
        there = size(pushed["skipped_bytes"])
        rows.append(
            ("pushed", f"{size(pushed['copied_bytes'])} in {pushed['seconds']:.1f} s ({there} were in the registry)")
        )
    resolved = envbuilder("resolve", reference)
    rows.append(("resolved to", resolved["pinned"]))
    if os.geteuid() != 0:
        show(rows)
        print(
            "\nerror: starting a command mounts file systems, which needs root; all before it was done", file=sys.stderr
        )
        print(f"hint: run as root: make demo ENV={env}", file=sys.stderr)
        sys.exit(_HOST)
    lazy, full = start(resolved["pinned"], code, full=False), start(resolved["pinned"], code, full=True)
    place = arguments.registry or "the store"
    rows += [
        ("mounted as", lazy["how"]),
        ("first result, lazy", f"{first_result(lazy)} from {place}"),
        ("first result, full pull", f"{first_result(full)} from {place}"),
    ]
    show(rows)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)  # 128 + SIGINT
