"""Lock, build and start an environment of a system that is made elsewhere over an image of that system.

    tools/over_base.py IMAGE [--store DIR] [--import MODULES] [ENV]

IMAGE is what base.image takes: host/name:tag, oci:DIR:TAG (an absolute folder), docker-archive:FILE. By default ENV is
databricks-ai-v5, which needs CPython 3.12 and glibc 2.39: 6 GB of wheels, 12 GB of disk, and root with crun or runc,
for the interpreter of the base compiles in a container. What the declaration says of it is left to the image.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: What databricks-ai-v5 is for.
_MODULES = "torch,transformers,pandas,sklearn,numpy,scipy,xgboost,pyarrow,torchvision"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image")
    parser.add_argument("environment", nargs="?", default="databricks-ai-v5", metavar="ENV")
    parser.add_argument("--store", type=Path, default=ROOT / ".cache/over-base")
    parser.add_argument("--import", dest="modules", default=_MODULES, metavar="MODULES")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="envbuilder-over-base-") as folder:
        # In a copy: the committed declaration is for whatever base there is.
        project = Path(folder)
        for part in ("images", "lockfiles"):
            source = ROOT / part / options.environment
            shutil.copytree(source, project / part / options.environment, ignore=shutil.ignore_patterns("*.digests"))
        file = project / "images" / options.environment / "env.toml"
        text = re.sub(r"(?m)^(?:system|interpreter) = .*\n", "", file.read_text())
        file.write_text(text.replace("[base]\n", f'[base]\nimage = "{options.image}"\n', 1))
        start = ["run", options.environment, "--", "python", "-c", f"import {options.modules}"]
        for words in (["lock", options.environment], ["build", options.environment], start, start):
            begun = time.monotonic()
            argv = [sys.executable, "-m", "envbuilder", words[0], "--store", str(options.store.resolve()), *words[1:]]
            if subprocess.run(argv, cwd=project, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False).returncode:
                print(f"{words[0]}: failed")
                return 1
            print(f"{words[0]}: {time.monotonic() - begun:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
