"""Which wheels fit."""

import pytest

from envbuilder.lock.model import Interpreter
from envbuilder.lock.tags import best_wheel, supported_tags
from envbuilder.oci.platform import Platform

TAGS = supported_tags(Interpreter(version="3.13", tag="cp313"), Platform("x86_64"), "2.31")


@pytest.mark.parametrize(
    ("files", "best"),
    [
        (["a-1-py3-none-any.whl"], "a-1-py3-none-any.whl"),
        (["a-1-py2.py3-none-any.whl"], "a-1-py2.py3-none-any.whl"),
        (["a-1-cp313-cp313-manylinux_2_31_x86_64.whl"], "a-1-cp313-cp313-manylinux_2_31_x86_64.whl"),
        (["a-1-cp313-cp313-manylinux_2_32_x86_64.whl"], None),
        (["a-1-cp312-cp312-manylinux_2_17_x86_64.whl"], None),
        (["a-1-cp313-cp313t-manylinux_2_17_x86_64.whl"], None),
        (["a-1-cp313-cp313-manylinux_2_17_aarch64.whl"], None),
        (["a-1-cp313-cp313-musllinux_1_2_x86_64.whl", "a-1-cp313-cp313-macosx_11_0_arm64.whl"], None),
        (["a-1.tar.gz", "nonsense"], None),
        ([], None),
        (
            ["a-1-py3-none-any.whl", "a-1-cp38-abi3-manylinux2014_x86_64.whl"],
            "a-1-cp38-abi3-manylinux2014_x86_64.whl",
        ),
        (
            ["a-1-cp313-cp313-manylinux_2_17_x86_64.whl", "a-1-cp313-cp313-manylinux_2_28_x86_64.whl"],
            "a-1-cp313-cp313-manylinux_2_28_x86_64.whl",
        ),
        (
            ["a-1-1-py3-none-any.whl", "a-1-10-py3-none-any.whl", "a-1-2-py3-none-any.whl", "a-1-py3-none-any.whl"],
            "a-1-10-py3-none-any.whl",
        ),
    ],
)
def test_the_best_wheel_for_the_image_is_chosen(files, best):
    assert best_wheel(files, TAGS) == best
    assert best_wheel(files[::-1], TAGS) == best


def test_another_machine_has_other_wheels():
    tags = supported_tags(Interpreter(version="3.13", tag="cp313"), Platform("aarch64"), "2.41")

    assert best_wheel(["a-1-cp313-cp313-manylinux2014_aarch64.whl"], tags)
    assert best_wheel(["a-1-cp313-cp313-manylinux_2_12_aarch64.whl"], tags) is None
