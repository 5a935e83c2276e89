"""What no image may be, whatever its lock says: too many layers, a layer too large, one that holds up a whole pull.

The partition (lock/partition.py) keeps well below all of this; a lock that was merged by hand, or a package that
grew, may not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from envbuilder.errors import SpecError
from envbuilder.layer.model import Layer, Recipe
from envbuilder.lock.model import Artifact

#: Layers of an image: overlay mounts of Docker and containerd end there (build.md, registry limits).
MOST_LAYERS = 127
#: Bytes of a blob: the smallest limit among registries (GitHub's; registry.md, table of registries).
MAX_LAYER_SIZE = 10_000_000_000
#: Bytes of a tar that one core unpacks in about a second: below it a layer holds up nobody.
QUICK_SIZE = 512_000_000


class TooDeep(SpecError):
    """An image would have more layers than container engines can mount."""


class LayerTooLarge(SpecError):
    """A layer would be larger than registries take."""


class Lopsided(SpecError):
    """One layer of many packages would take one core longer to unpack than all others together."""


def check_plans(name: str, plans: Sequence[Recipe]) -> None:
    """Check, before anything is made, the number of layers and the bytes of what goes into each.

    Raises:
        TooDeep, LayerTooLarge: see there.
    """
    if len(plans) > MOST_LAYERS:
        raise TooDeep(
            f"{name}: layers: want at most {MOST_LAYERS}, got {len(plans)}",
            hint="Extend an environment with fewer layers, or remove the lock and lock anew.",
        )
    for each in plans:
        check_size(each.id, sum(artifact.size for artifact in parts_of(each)))


def parts_of(plan: Recipe) -> Sequence[Artifact]:
    """The artefacts whose files are in the layer of ``plan``; none of a computed layer."""
    return (*getattr(plan, "debs", ()), *getattr(plan, "wheels", ()))


def check_size(layer: str, size: int) -> None:
    """Check the bytes of a blob.

    Raises:
        LayerTooLarge: over ``MAX_LAYER_SIZE``.
    """
    if size > MAX_LAYER_SIZE:
        raise LayerTooLarge(
            f"layer {layer}: want at most {MAX_LAYER_SIZE} bytes, which registries take, got {size}",
            hint="Take large data out of the package: volumes and object stores hold it better. Or remove the lock "
            "and lock anew, where the layer has several packages.",
        )


def check_balance(name: str, layers: Sequence[Layer], parts: Mapping[str, int]) -> None:
    """Check that no layer takes one core longer than all the others together; a single package cannot be split.

    parts: packages in each layer, by its id.

    Raises:
        Lopsided: names the layer.
    """
    total = sum(layer.tar_size for layer in layers)
    for layer in layers:
        rest = total - layer.tar_size
        if layer.tar_size > max(rest, QUICK_SIZE) and parts.get(layer.id, 0) > 1:
            raise Lopsided(
                f"{name}: layer {layer.id}: want no more than the {rest} bytes that all other layers unpack to, "
                f"got {layer.tar_size} of {parts[layer.id]} packages: one core would unpack it while the others wait",
                hint="Remove the lock and lock anew, so that its packages are spread again.",
            )
