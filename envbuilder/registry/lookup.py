"""Many references looked up at once: one request each, each reference once, an error of one no error of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from envbuilder.digest import Descriptor
from envbuilder.errors import EnvbuilderError
from envbuilder.oci.reference import RegistryReference
from envbuilder.store.target import Target

#: Lookups at a time. They are small, and a round trip is nearly all that one costs.
_AT_A_TIME = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a reference names now, or the error that says why that is not known."""

    reference: RegistryReference
    what: Descriptor | None
    error: EnvbuilderError | None = None


def lookup_all(
    references: Sequence[RegistryReference], open_target: Callable[[RegistryReference], Target]
) -> tuple[Found, ...]:
    """What each of ``references`` names, in their order; a reference that stands twice is asked for once.

    ``open_target`` gives the repository of a reference; those of one repository share it. Bytes are verified,
    whatever a header says: a tag is one GET.
    """
    targets: dict[str, Target] = {}
    for reference in references:
        if reference.name not in targets:
            targets[reference.name] = open_target(reference)

    def look(reference: RegistryReference) -> Found:
        try:
            what = targets[reference.name].lookup(str(reference.digest or reference.tag))
        except EnvbuilderError as error:
            return Found(reference=reference, what=None, error=error)
        return Found(reference=reference, what=what)

    once = list(dict.fromkeys(references))
    with ThreadPoolExecutor(max(1, min(_AT_A_TIME, len(once))), "lookup") as pool:
        found = dict(zip(once, pool.map(look, once), strict=True))
    return tuple(found[reference] for reference in references)
