"""Packages of different layers at one path, looked at once."""

from dataclasses import dataclass, field, replace

import pytest

from envbuilder.digest import Digest, describe
from envbuilder.image.overlaps import check_overlaps
from envbuilder.layer.claims import Conflict
from envbuilder.layer.model import Layer
from envbuilder.layer.plan import Compilation, WheelPlan
from envbuilder.layer.tree import Placed
from envbuilder.lock.model import Wheel
from envbuilder.oci import media_types
from envbuilder.testing.artifacts import make_wheel
from envbuilder.testing.locks import SMALL


@dataclass
class Files:
    """An ArtifactSource that keeps what was asked for."""

    folder: object
    asked: list = field(default_factory=list)

    def file(self, artifact):
        self.asked.append(artifact.name)
        return self.folder / artifact.file


@pytest.fixture
def world(tmp_path):
    """Three layers of a package each; two have other bytes at the same path."""
    plans, layers = [], {}
    for name, path in (("a", "both.py"), ("b", "both.py"), ("c", "c.py")):
        file, data = f"{name}-1.0-py3-none-any.whl", make_wheel(name, files={path: name.encode()})
        (tmp_path / file).write_bytes(data)
        wheel = Wheel(name=name, version="1.0", file=file, digest=Digest.of(data), size=len(data), layer="")
        compilation = Compilation(python=SMALL.python, platform=SMALL.platform, packages=None)
        plan = WheelPlan(id=f"x/{name}", wheels=(wheel,), compilation=compilation)
        plans.append(plan)
        layers[plan.id] = Layer(
            id=plan.id,
            blob=describe(data, media_types.OCI_LAYER_TAR_ZSTD),
            diff_id=Digest.of(data),
            plan_key=plan.key,
            tar_size=1,
            placed=(Placed(path=path, mode=0o100644, size=1), Placed(path="opt", mode=0o40755)),
        )
    lock = replace(SMALL, wheels=tuple(each.wheels[0] for each in plans))
    return lock, plans, layers, Files(tmp_path)


def test_two_packages_at_one_path_are_a_conflict_and_only_they_are_read(world):
    lock, plans, layers, files = world

    with pytest.raises(Conflict, match=r"both\.py: b and a"):
        check_overlaps(lock, plans, layers, files, agreed=frozenset())

    assert {*files.asked} == {"a", "b"}


@pytest.mark.parametrize("which", [0, 1], ids=["the first is new", "the second is new"])
def test_a_layer_that_is_new_is_held_against_those_that_agreed(world, which):
    lock, plans, layers, files = world
    agreed = {each.key for each in plans if each is not plans[which]}

    with pytest.raises(Conflict):
        check_overlaps(lock, plans, layers, files, agreed=agreed)


def test_layers_that_an_image_had_together_are_not_looked_at_again(world):
    lock, plans, layers, files = world

    check_overlaps(lock, plans, layers, files, agreed={plan.key for plan in plans})

    assert files.asked == []
