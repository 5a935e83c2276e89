"""The platform of an image, written ``linux/x86_64`` by people and ``amd64`` by OCI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envbuilder.errors import SpecError

#: machine (uname -m, wheel tags) -> (OCI architecture, Debian architecture, ELF multiarch tuple)
_MACHINES = {
    "x86_64": ("amd64", "amd64", "x86_64-linux-gnu"),
    "aarch64": ("arm64", "arm64", "aarch64-linux-gnu"),
}


@dataclass(frozen=True, slots=True, order=True)
class Platform:
    """A Linux machine type; ``machine`` is the name of ``uname -m``, valid by construction."""

    machine: str

    def __post_init__(self) -> None:
        if self.machine not in _MACHINES:
            raise SpecError(f"platform: want linux/{{{','.join(_MACHINES)}}}, got {self.machine!r}")

    @classmethod
    def parse(cls, text: str) -> Platform:
        """The platform in ``linux/x86_64``, ``linux/amd64``, ``linux-x86_64`` or ``x86_64``.

        Raises:
            SpecError: another operating system or machine.
        """
        machine = text.removeprefix("linux/").removeprefix("linux-")
        for name, (architecture, _, _) in _MACHINES.items():
            if machine in (name, architecture):
                return cls(name)
        raise SpecError(f"platform: want linux/x86_64 or linux/aarch64, got {text!r}")

    @property
    def architecture(self) -> str:
        """OCI's (Go's) name: ``amd64``."""
        return _MACHINES[self.machine][0]

    @property
    def debian(self) -> str:
        """Debian's name: ``amd64``."""
        return _MACHINES[self.machine][1]

    @property
    def multiarch(self) -> str:
        """Debian's multiarch tuple: ``x86_64-linux-gnu``."""
        return _MACHINES[self.machine][2]

    @property
    def file_stem(self) -> str:
        """For file names: ``linux-x86_64``."""
        return f"linux-{self.machine}"

    def to_json(self) -> dict[str, Any]:
        """The OCI platform object."""
        return {"architecture": self.architecture, "os": "linux"}

    def matches(self, value: Mapping[str, Any] | None) -> bool:
        """Whether an OCI platform object is this platform."""
        return (
            bool(value)
            and value is not None
            and value.get("os") == "linux"
            and value.get("architecture") == self.architecture
        )

    def __str__(self) -> str:
        return f"linux/{self.machine}"
