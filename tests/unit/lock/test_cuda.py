"""The CUDA axis."""

import pytest

from envbuilder.lock.cuda import CudaMismatch, CudaTwice, cuda_axis, cuda_constraints
from envbuilder.lock.model import CudaAxis
from envbuilder.spec.model import Cuda
from envbuilder.testing.locks import deb, wheel

RUNTIME = wheel("nvidia-cuda-runtime", "13.2.86")


def test_no_cuda_anywhere_is_no_axis():
    assert cuda_axis(None, [wheel("numpy")]) is None


def test_the_toolkit_is_that_of_the_wheels_with_a_default_driver():
    assert cuda_axis(None, [RUNTIME, wheel("cuda-toolkit", "13.2.2")]) == CudaAxis(
        toolkit="13.2", minimum_driver="580.65.06"
    )


def test_the_suffix_of_older_names_is_understood():
    axis = cuda_axis(Cuda(toolkit="12.9"), [wheel("nvidia-cuda-runtime-cu12", "12.9.79")])

    assert axis == CudaAxis(toolkit="12.9", minimum_driver="525.60.13")


@pytest.mark.parametrize("declared", ["13", "13.2"])
def test_a_declared_series_is_met_by_its_members(declared):
    axis = cuda_axis(Cuda(toolkit=declared, minimum_driver="590.1", accelerators=("9.0",)), [RUNTIME])

    assert axis == CudaAxis(toolkit="13.2", minimum_driver="590.1", accelerators=("9.0",))


def test_what_is_not_declared_comes_from_the_parent():
    parent = CudaAxis(toolkit="13.2", minimum_driver="590.1", accelerators=("9.0",))

    assert cuda_axis(None, [RUNTIME], inherited=parent) == parent


@pytest.mark.parametrize("declared", ["12", "13.1", "13.20"])
def test_another_series_than_declared_is_refused(declared):
    with pytest.raises(CudaMismatch, match=rf"want {declared}, got 13.2 from nvidia-cuda-runtime 13.2.86"):
        cuda_axis(Cuda(toolkit=declared), [RUNTIME])


def test_a_declared_cuda_that_no_wheel_brings_is_refused():
    with pytest.raises(CudaMismatch, match="got no CUDA runtime"):
        cuda_axis(Cuda(toolkit="13"), [wheel("numpy")])


@pytest.mark.parametrize(
    "others",
    [
        [wheel("nvidia-cublas"), wheel("nvidia-cublas-cu13")],
        [wheel("nvidia-cutlass-dsl-libs-cu12"), wheel("nvidia-cutlass-dsl-libs-cu13")],
    ],
)
def test_one_library_under_two_names_is_refused(others):
    with pytest.raises(CudaTwice, match="stands twice"):
        cuda_axis(None, [RUNTIME, *others])


@pytest.mark.parametrize(
    "other", [wheel("cupy-cuda12x"), wheel("nvidia-nccl-cu12"), wheel("torch", "2.9.0+cu129"), wheel("x", "1+cu12.8")]
)
def test_two_majors_are_refused_by_name(other):
    with pytest.raises(CudaTwice, match=f"CUDA 12: {other.name}; CUDA 13: nvidia-cuda-runtime"):
        cuda_axis(None, [RUNTIME, other])


def test_two_toolkits_of_one_major_are_refused():
    with pytest.raises(CudaTwice, match="two toolkits"):
        cuda_axis(None, [RUNTIME, wheel("cuda-toolkit", "13.1.0")])


def test_a_declared_toolkit_limits_what_the_resolver_may_take():
    assert cuda_constraints(None) == ()
    assert cuda_constraints(Cuda(toolkit="12.9")) == (
        "cuda-toolkit==12.9.*",
        "nvidia-cuda-runtime==12.9.*",
        "nvidia-cuda-runtime-cu12==12.9.*",
    )


def test_a_library_for_two_majors_is_recorded_where_it_is_allowed():
    wheels = [
        wheel("nvidia-cuda-runtime", "13.2.1"),
        wheel("nvidia-cutlass-dsl-libs-cu12", "4"),
        wheel("nvidia-cutlass-dsl-libs-cu13", "4"),
    ]

    with pytest.raises(CudaTwice, match="nvidia-cutlass-dsl-libs stands twice") as caught:
        cuda_axis(Cuda(toolkit="13"), wheels)
    assert "cuda.allow-twice" in caught.value.hint
    axis = cuda_axis(Cuda(toolkit="13", allow_twice=("nvidia-cutlass-dsl-libs",)), wheels)
    assert axis.twice == ("nvidia-cutlass-dsl-libs-cu12", "nvidia-cutlass-dsl-libs-cu13")


def test_a_library_of_a_wheel_and_of_a_debian_package_is_refused():
    wheels = [wheel("nvidia-cuda-runtime-cu12", "12.4.1")]

    with pytest.raises(CudaTwice, match=r"nvidia-cuda-runtime-cu12, libcudart12 \(Debian\)"):
        cuda_axis(None, wheels, debs=[deb("libcudart12")])
    assert cuda_axis(None, wheels, debs=[deb("libc6")]).toolkit == "12.4"
