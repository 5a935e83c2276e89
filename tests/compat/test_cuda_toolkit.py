"""Compilers and the loader find CUDA in NVIDIA's wheels; no GPU is needed for that."""

from functools import partial

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.network]

#: Bytes of a wheel that the test takes: cudart, CCCL and headers, not the large libraries.
SMALL = 40 << 20
PROGRAM = """\
#include <cuda_runtime.h>
#include <stdio.h>
int main(void) { int version = 0; return cudaRuntimeGetVersion(&version) || printf("%d\\n", version) < 0; }
"""


@pytest.fixture(scope="module")
def root(locked, unpacked):
    return unpacked(locked("standard"), wheels=lambda wheel: wheel.size < SMALL)


@pytest.fixture
def chroot(root, chrooted):
    return partial(chrooted, root)


def test_a_program_compiles_and_runs_against_the_runtime(root, chroot, locked):
    (root / "tmp/a.c").write_text(PROGRAM)
    env = locked("standard").env

    chroot("gcc", "-o", "/tmp/a", "/tmp/a.c", "-lcudart", CPATH=env["CPATH"], LIBRARY_PATH=env["LIBRARY_PATH"])

    major, minor = locked("standard").cuda.toolkit.split(".")
    assert chroot("/tmp/a") == f"{int(major) * 1000 + int(minor) * 10}\n"


def test_the_loader_cache_is_the_one_that_ldconfig_writes(root, chroot, loader_caches):
    got, want = loader_caches(root)

    assert got == want
    assert "site-packages/nvidia/cu13/lib/libcudart.so.13" in chroot("ldconfig", "-p")


def test_python_loads_it_by_its_name(chroot):
    assert "libcudart" in chroot("/opt/env/bin/python", "-c", "import ctypes; print(ctypes.CDLL('libcudart.so.13'))")


def test_no_link_of_the_farm_dangles(root):
    farm = root / "usr/local/cuda"
    links = [path for path in farm.rglob("*") if path.is_symlink()]

    assert len(links) > 100
    assert [str(path) for path in links if not path.exists()] == []
