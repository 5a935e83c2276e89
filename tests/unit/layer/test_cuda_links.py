import posixpath

from envbuilder.layer.cuda_links import cuda_entries, loader_directories, toolkit_roots
from envbuilder.layer.debian.system import System, _children
from envbuilder.layer.tree import FILE, Placed

SITE = "opt/env/lib/python3.13/site-packages"


def system(*paths):
    tree = {
        f"{SITE}/nvidia/{path}": Placed(
            path=f"{SITE}/nvidia/{path}", mode=FILE | 0o644, elf_flags=0x0303 if ".so" in path else 0
        )
        for path in paths
    }
    return System(controls={}, conffiles={}, contents={}, tree=tree, children=_children(tree))


TOOLKIT = system(
    "__init__.py",
    "cu13/include/cuda.h",
    "cu13/include/cccl/cub/cub.cuh",
    "cu13/include/crt/host.h",
    "cu13/lib/libcudart.so.13",
    "cu13/lib/libcufft.so.12",
    "cu13/lib/libcufft_static.a",
    "cu13/bin/ptxas",
    "cudnn/include/cudnn.h",
    "cudnn/include/crt/more.h",
    "cudnn/lib/libcudnn.so.9",
    "cusparselt/__init__.py",
    "cusparselt/lib/libcusparseLt.so.0",
)


def links(found):
    roots = toolkit_roots(found, SITE)
    return {entry.path: entry.link for entry in cuda_entries(found, roots) if entry.is_symlink}


def test_the_pieces_of_a_toolkit_are_found():
    assert toolkit_roots(TOOLKIT, SITE) == tuple(f"{SITE}/nvidia/{name}" for name in ("cu13", "cudnn", "cusparselt"))


def test_the_loader_is_told_of_every_library_directory():
    roots = toolkit_roots(TOOLKIT, SITE)
    conf = next(
        entry for entry in cuda_entries(TOOLKIT, roots) if entry.path == "etc/ld.so.conf.d/envbuilder-cuda.conf"
    )

    assert loader_directories(TOOLKIT, roots) == tuple(
        f"/{SITE}/nvidia/{name}/lib" for name in ("cu13", "cudnn", "cusparselt")
    )
    assert conf.open().read().decode() == "".join(f"{path}\n" for path in loader_directories(TOOLKIT, roots))


def test_links_lead_to_files_of_the_wheels():
    for path, target in links(TOOLKIT).items():
        if "/" in target:
            real = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
            assert TOOLKIT.exists(real), path


def test_a_directory_that_two_pieces_have_is_merged_and_others_are_one_link():
    found = links(TOOLKIT)

    assert {path for path in found if path.startswith("usr/local/cuda/include/")} == {
        f"usr/local/cuda/include/{name}" for name in ("cuda.h", "cccl", "cudnn.h", "crt/host.h", "crt/more.h")
    }
    assert found["usr/local/cuda/include/cccl"].endswith("nvidia/cu13/include/cccl")


def test_linkers_find_unversioned_names():
    found = links(TOOLKIT)

    assert found["usr/local/cuda/lib64/libcudart.so"] == "libcudart.so.13"
    assert found["usr/local/cuda/lib64/libcusparseLt.so"] == "libcusparseLt.so.0"
    assert "usr/local/cuda/lib64/libcufft_static.a" in found
    assert found["usr/local/cuda/bin/ptxas"].endswith("cu13/bin/ptxas")


def test_an_environment_without_cuda_has_no_links():
    assert links(system("__init__.py")) == {}
    assert toolkit_roots(System(controls={}, conffiles={}, contents={}, tree={}), SITE) == ()


def test_the_layout_of_cuda_12_is_understood():
    found = links(system("cublas/include/cublas.h", "cublas/lib/libcublas.so.12", "cuda_nvcc/nvvm/bin/cicc"))

    assert found["usr/local/cuda/include/cublas.h"].endswith("nvidia/cublas/include/cublas.h")
    assert "usr/local/cuda/nvvm/bin" in found
