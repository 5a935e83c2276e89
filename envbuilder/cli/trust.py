"""The trust policy of this machine, applied to an image that was looked up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from envbuilder.cli.app import App
from envbuilder.cli.targets import Source
from envbuilder.oci.reference import ArchiveReference, LayoutReference, RegistryReference

if TYPE_CHECKING:
    from envbuilder.registry.policy import Trust


def check_trust(app: App, source: Source, policy: str = "") -> Trust | None:
    """Why ``source`` may be used on this machine: under the policy in a file, else that of ``resolve.policy``.

    None: there is neither. Whatever follows must use ``source``, whose digest is fixed, and not look its tag up again.

    Raises:
        As ``check_policy``.
    """
    policy = policy or app.settings.get("resolve.policy")
    return check_policy(source, Path(policy)) if policy else None


def check_policy(source: Source, policy: Path) -> Trust:
    """Why ``source`` may be used under the trust policy in a file.

    Raises:
        PolicyDenied, NotSigned: it may not. SpecErrors: the policy is wrong.
    """
    # Only a machine with a policy pays for importing what checks signatures.
    from envbuilder.registry.policy import enforce, load_policy  # noqa: PLC0415  seldom needed

    return enforce(load_policy(policy), source.target, source.what, place_of(source))


def place_of(source: Source) -> str:
    """What the patterns of a policy are compared with: ``host/repository``, or ``oci:`` and an absolute path."""
    match source.reference:
        case RegistryReference():
            return source.reference.name
        case LayoutReference():
            return f"oci:{source.reference.directory.resolve()}"
        case ArchiveReference():
            return f"oci-archive:{source.reference.file.resolve()}"
        case _:
            return source.target.name
