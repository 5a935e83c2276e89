"""An image in a lazy format of others, made in the store from wherever the image is."""

from __future__ import annotations

import time
from typing import Any

from envbuilder.cli.app import App
from envbuilder.cli.output import human_size
from envbuilder.cli.targets import Source, host_platform_of
from envbuilder.custom.flavours.convert import convert
from envbuilder.custom.flavours.names import FLAVOURS, Flavour
from envbuilder.image.inspect import open_image
from envbuilder.layer.build import default_jobs
from envbuilder.oci.platform import Platform
from envbuilder.oci.reference import LayoutReference
from envbuilder.store.layout import LayoutTarget


def as_flavour(
    app: App, source: Source, flavour: str, platform: Platform | None = None, *, tag: str, jobs: int = 0
) -> tuple[Source, dict[str, Any]]:
    """The image of ``source`` in ``flavour``, in the store as ``tag``, and what a verb says of it.

    Raises:
        NoFlavour, BadLayer, ...: see ``convert``.
    """
    begun = time.monotonic()
    chosen: Flavour = FLAVOURS[FLAVOURS.index(flavour)]
    image = open_image(source.target, source.what, platform or host_platform_of())
    store = LayoutTarget(app.store_directory, create=True)
    total = sum(layer.size for layer in image.manifest.layers)
    with app.output.stage(f"{flavour} of {source.pinned}", total) as meter:
        root = convert(image, source.target, store, chosen, jobs=jobs or default_jobs(), progress=meter.advance)
    store.tag(root, tag)
    made = open_image(store, root, image.config.platform)
    size = sum(layer.size for layer in made.manifest.layers)
    app.output.note(
        f"{flavour}: {len(made.manifest.layers)} layers, {human_size(size)} (they were {human_size(total)})"
    )
    where = Source(LayoutReference(store.directory, tag), store, root, f"oci:{store.directory}:{root.digest}")
    seconds = round(time.monotonic() - begun, 3)
    return where, {"name": flavour, "digest": str(root.digest), "tag": tag, "size": size, "seconds": seconds}
