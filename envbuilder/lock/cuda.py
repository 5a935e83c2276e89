"""The CUDA axis of a lock: which toolkit the wheels bring, and the oldest driver that runs it. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from envbuilder.errors import SpecError
from envbuilder.lock.model import CudaAxis, Deb, Wheel
from envbuilder.spec.model import Cuda

#: CUDA major -> oldest Linux driver that runs every toolkit of it by minor-version compatibility
#: (CUDA Toolkit release notes, "CUDA Toolkit and Minimum Required Driver Version"). Code that is
#: compiled from PTX at run time wants the toolkit's own driver: declare that as minimum-driver.
_MINIMUM_DRIVER = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
#: Wheels whose version is the toolkit's, best first: CUDA 13 names have no suffix.
_RUNTIME = re.compile(r"(?:nvidia-cuda-runtime|cuda-toolkit)(?:-cu[0-9]+)?\Z")
_SUFFIX = re.compile(r"-cu(?:da)?([0-9]{2})(?:x)?\Z")
#: Debian's names of CUDA libraries: libcudart12, libcublas12, libcudnn9-cuda-12.
_DEB = re.compile(
    r"lib(cudart|cublas|cudnn|cufft|cufile|curand|cusolver|cusparse|cusparselt|nccl|nvjitlink|nvrtc|nvshmem)"
)
_LOCAL = re.compile(r"\+cu(?:\.)?([0-9]{2})[0-9.]")


class CudaMismatch(SpecError):
    """The wheels bring another CUDA than the one that is declared, or none."""


class CudaTwice(SpecError):
    """The wheels bring two CUDAs: the image would be gigabytes larger and load whichever comes first."""


def cuda_constraints(declared: Cuda | None) -> tuple[str, ...]:
    """Limits that let the resolver choose builds of torch, jax and the like for the ``declared`` toolkit only."""
    if declared is None:
        return ()
    major = declared.toolkit.split(".")[0]
    names = ("cuda-toolkit", "nvidia-cuda-runtime", f"nvidia-cuda-runtime-cu{major}")
    return tuple(f"{name}=={declared.toolkit}.*" for name in names)


def cuda_axis(
    declared: Cuda | None, wheels: Sequence[Wheel], *, debs: Sequence[Deb] = (), inherited: CudaAxis | None = None
) -> CudaAxis | None:
    """What ``wheels`` bring, held against what is ``declared``; None when neither has CUDA.

    Args:
        declared: the environment's [cuda].
        wheels: all wheels of the image.
        debs: all Debian packages of the image.
        inherited: the parent's axis; gives driver and accelerators where nothing is declared.

    Raises:
        CudaMismatch, CudaTwice: see there.
    """
    allowed = declared.allow_twice if declared else ()
    twice = _twice(wheels, debs, allowed)
    toolkits = {
        ".".join(wheel.version.split(".")[:2]): wheel
        for wheel in wheels
        if _RUNTIME.match(wheel.name) and _library(wheel.name) not in allowed
    }
    if not toolkits:
        if declared:
            raise CudaMismatch(
                f"cuda.toolkit: want {declared.toolkit}, got no CUDA runtime among the wheels",
                hint="Require nvidia-cuda-runtime or what needs it, or bind torch to an index that has builds for this "
                f'toolkit: "torch*" = "pytorch-cu{declared.toolkit.replace(".", "")}" under [sources].',
            )
        return None
    if len(toolkits) > 1:
        names = ", ".join(f"{wheel.name} {wheel.version}" for wheel in toolkits.values())
        raise CudaTwice(f"cuda: two toolkits: {names}", hint="Pin one of them to the other's series.")
    toolkit = next(iter(toolkits))
    if declared and f"{toolkit}.".find(f"{declared.toolkit}.") != 0:
        brought = toolkits[toolkit]
        raise CudaMismatch(
            f"cuda.toolkit: want {declared.toolkit}, got {toolkit} from {brought.name} {brought.version}",
            hint="Constrain nvidia-cuda-runtime to the declared series, or declare the one that is needed.",
        )
    driver = (declared.minimum_driver if declared else "") or (inherited.minimum_driver if inherited else "")
    accelerators = (declared.accelerators if declared else ()) or (inherited.accelerators if inherited else ())
    if not driver:
        driver = _MINIMUM_DRIVER.get(int(toolkit.split(".")[0]), "")
    if not driver:
        raise CudaMismatch(
            f"cuda.minimum-driver: unknown for toolkit {toolkit}", hint="Declare cuda.minimum-driver in env.toml."
        )
    return CudaAxis(toolkit=toolkit, minimum_driver=driver, accelerators=accelerators, twice=twice)


def _library(name: str) -> str:
    return _SUFFIX.sub("", name)


def _twice(wheels: Iterable[Wheel], debs: Iterable[Deb], allowed: Collection[str]) -> tuple[str, ...]:
    """Names of packages that bring a library a second time, as ``allowed``.

    Raises:
        CudaTwice: there are others, or two majors.
    """
    majors: dict[str, list[str]] = {}
    libraries: dict[str, list[str]] = {}
    for wheel in wheels:
        library = _library(wheel.name)
        if wheel.name.startswith("nvidia-"):
            libraries.setdefault(library, []).append(wheel.name)
        match = _SUFFIX.search(wheel.name) or _LOCAL.search(wheel.version)
        major = match.group(1) if match else wheel.version.split(".")[0] if _RUNTIME.match(wheel.name) else ""
        if major and library not in allowed:
            majors.setdefault(major, []).append(wheel.name)
    for deb in debs:
        if match := _DEB.match(deb.name):
            library = f"nvidia-{'cuda-runtime' if match[1] == 'cudart' else match[1]}"
            if library in libraries:
                libraries[library].append(f"{deb.name} (Debian)")
    found = {library: names for library, names in libraries.items() if len(names) > 1}
    for library, names in found.items():
        if library not in allowed:
            raise CudaTwice(
                f"cuda: {library} stands twice: {', '.join(names)}",
                hint=f'Keep the one for your toolkit, or set cuda.allow-twice = ["{library}"].',
            )
    if len(majors) > 1:
        groups = "; ".join(f"CUDA {major}: {', '.join(names)}" for major, names in sorted(majors.items()))
        raise CudaTwice(f"cuda: two majors in one environment: {groups}", hint="Require builds for one CUDA only.")
    return tuple(sorted(name for names in found.values() for name in names))
