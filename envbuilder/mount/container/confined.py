"""Programs of an image of others that a build runs: each in a container that can do nothing but answer.

Nobody's user, no capability, no network, a read-only root, no device but the usual null ones (bundle.py). So the
interpreter of a base compiles for it (docs/decisions/0013).
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from envbuilder.mount.container.bundle import ProcessOptions, runtime_config
from envbuilder.mount.container.cdi import Edits
from envbuilder.mount.container.host import Limit
from envbuilder.mount.container.program import Program
from envbuilder.mount.container.users import ContainerUser
from envbuilder.mount.host import kernel
from envbuilder.oci.config import ImageConfig
from envbuilder.oci.platform import Platform
from envbuilder.proc import Completed, run

#: User and group ``nobody`` of Linux (kernel.overflowuid).
_NOBODY = 65534
#: Seconds of CPU time, bytes of memory, and processes that all of nobody's may be: a batch takes 5 s and 200 MB.
_LIMITS = tuple(
    Limit(name=f"RLIMIT_{name}", soft=most, hard=most)
    for name, most in (("CPU", 600), ("AS", 8 << 30), ("NPROC", 256), ("NOFILE", 256), ("CORE", 0))
)
#: Seconds that a runtime gets to end a container.
_END_S = 20.0


@dataclass(frozen=True, slots=True)
class Confined:
    """A proc.Runner of programs in the tree ``root``, which ``program``, a container runtime, starts.

    It crosses to build processes. Needs root, as mounting does. Threading: safe.
    """

    program: Program
    root: Path
    platform: Platform

    def __call__(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: bytes = b"",
        check: bool = True,
        timeout_s: float | None = None,
    ) -> Completed:
        """As ``proc.run``; ``cwd`` is /."""
        del cwd
        with tempfile.TemporaryDirectory(prefix="envbuilder-confined-") as name:
            bundle = Path(name)
            value = self.program.config(self._config([os.fspath(word) for word in argv], env or {}))
            (bundle / "config.json").write_text(json.dumps(value))
            return kernel.in_thread(partial(self._run, bundle, stdin, check=check, timeout_s=timeout_s))

    def _run(self, bundle: Path, stdin: bytes, *, check: bool, timeout_s: float | None) -> Completed:
        if self.program.remount:
            kernel.private_mounts()
        if self.program.hides:
            kernel.hide_unified()
        words, _ = self.program.argv(bundle, bundle.name)
        try:
            return run(words, stdin=stdin, check=check, timeout_s=timeout_s)
        except BaseException:
            # The runtime is gone, and its container may not be.
            run([*words[: words.index("run")], "delete", "--force", words[-1]], check=False, timeout_s=_END_S)
            raise

    def _config(self, argv: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
        image = ImageConfig(platform=self.platform, diff_ids=(), command=tuple(argv))
        user = ContainerUser(uid=_NOBODY, gid=_NOBODY)
        value = runtime_config(image, ProcessOptions(env=env, limits=_LIMITS), user, Edits(), root=self.root)
        value["root"]["readonly"] = True
        value["process"] |= {"noNewPrivileges": True, "capabilities": {}}
        value["linux"]["namespaces"] += [{"type": "network"}, {"type": "uts"}]
        return value
