"""Which packages one upstream releases together: whoever moves one of them moves all, so they may share a layer. Pure.

Debian says it: packages of one source. Wheels do not, so this is a table of names whose metadata bind each other to
one exact version, or that moved together in every month of bench/history (decision 10). Not in it are ``cuda-toolkit``,
``nvidia-cuda-cccl`` and its like, nvjitlink, nvshmem, cudnn, nccl, triton and torchaudio: they were seen to move, or
to stand at another release, without those that they are named after.
"""

from __future__ import annotations

import re

from envbuilder.lock.model import Artifact, Deb

_FAMILIES = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        # What torch takes of one release of NVIDIA's toolkit; before CUDA 13 the major version is in the name.
        (
            "cuda",
            r"nvidia-(?:cublas|cuda-(?:cupti|nvrtc|runtime)|cufft|cufile|curand|cusolver|cusparse|nvtx)(?:-cu\d+)?",
        ),
        ("jax", r"jax(?:lib|-cuda\d+-(?:pjrt|plugin))?"),
        ("mlflow", r"mlflow(?:-skinny|-tracing)?"),
        ("opentelemetry", r"opentelemetry-(?:api|exporter-.+|proto|sdk|semantic-conventions)"),
        ("pydantic", r"pydantic(?:-core)?"),
        ("torch", r"torch(?:vision)?"),
    )
)


def family(artifact: Artifact) -> str:
    """The name of the packages that ``artifact`` is released with; its own, if it is alone."""
    if isinstance(artifact, Deb):
        return artifact.source
    return next((name for name, pattern in _FAMILIES if pattern.fullmatch(artifact.name)), artifact.name)
