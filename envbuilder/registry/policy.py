"""The trust policy: which images must be signed, and by whom. A file that people write; fails closed.

Every rule that matches an image must be met; within a rule any signer suffices; an image that no rule matches is
refused (policy-controller's reading, registry.md 8.3). Format: docs/formats/policy.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuilder.digest import Descriptor
from envbuilder.errors import IntegrityError, SpecError, SpecErrors
from envbuilder.registry.cosign import MAX_KEY, load_public_key
from envbuilder.registry.credentials import HUB_HOSTS
from envbuilder.registry.keyless import Identity
from envbuilder.registry.signatures import Signer, verify
from envbuilder.spec.toml import parse_toml, read_document
from envbuilder.store.target import Target

_MAX_FILE = 1 << 20
_RULE = {"images", "any-of", "unsigned"}
#: A port may be written with zeros before it.
_ZEROS = re.compile(r":0+(?=\d+\Z)")


class NoPolicy(SpecErrors):
    """A policy was named and there is none."""


class PolicyDenied(IntegrityError):
    """The trust policy has no rule about an image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Who must have signed the images of some places. ``signers``: by name; empty: none needs to (``unsigned``)."""

    images: tuple[str, ...]
    signers: Mapping[str, Signer]

    def matches(self, place: str) -> bool:
        """Whether the rule is about ``place``: ``host/repository``, or ``oci:/DIR``."""
        place = _canonical(place)
        return any(_pattern(_canonical(text)).fullmatch(place) for text in self.images)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """All rules of a policy file."""

    name: str
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Why an image may be used: the signers that were found, one for each rule that wants one."""

    signed_by: tuple[str, ...]
    policy: str

    def to_json(self) -> dict[str, Any]:
        """As JSON (docs/formats/resolution.md)."""
        return {"policy": self.policy, "signedBy": list(self.signed_by)}


def enforce(policy: Policy, source: Target, what: Descriptor, place: str) -> Trust:
    """Why ``what``, the image of ``place``, may be used.

    Raises:
        PolicyDenied: no rule is about it. NotSigned: a rule is not met. UnavailableError, ...: it cannot be told now.
    """
    rules = [rule for rule in policy.rules if rule.matches(place)]
    if not rules:
        raise PolicyDenied(
            f"{place}: no rule of {policy.name} is about it", hint="Add a rule, or use an image that has one."
        )
    signed_by = [verify(source, what, rule.signers)[0] for rule in rules if rule.signers]
    return Trust(signed_by=tuple(dict.fromkeys(signed_by)), policy=policy.name)


def load_policy(file: Path) -> Policy:
    """The policy in ``file``; keys are named relative to it.

    Raises:
        SpecErrors: all its problems at once; NoPolicy: it is not there.
    """
    data = read_document(file, most=_MAX_FILE, source=str(file))
    if data is None:
        raise NoPolicy(str(file), ["there is no such file"], hint="Name a trust policy that exists.")
    try:
        document = parse_toml(data.decode(), source=str(file))
    except UnicodeDecodeError as error:
        raise SpecErrors(str(file), [f"not UTF-8: {error.reason} at byte {error.start}"]) from error
    problems = [f"{key}: unknown key; want [[rule]]" for key in document if key != "rule"]
    tables = document.get("rule", [])
    if not isinstance(tables, list) or not tables:
        problems.append("want at least one [[rule]]")
        tables = []
    rules = [_rule(table, f"rule {number}", file.parent, problems) for number, table in enumerate(tables, 1)]
    if problems:
        raise SpecErrors(str(file), problems, hint="See docs/formats/policy.md.")
    return Policy(name=str(file), rules=tuple(rules))


def _rule(table: object, where: str, folder: Path, problems: list[str]) -> Rule:
    if not isinstance(table, dict):
        problems.append(f"{where}: want a table")
        return Rule(images=(), signers={})
    problems += [
        f"{where}: {key}: unknown key; want {', '.join(sorted(_RULE))}" for key in sorted(table.keys() - _RULE)
    ]
    images = table.get("images")
    if not isinstance(images, list) or not images or not all(isinstance(text, str) and text for text in images):
        problems.append(f'{where}: images: want a list of patterns such as "registry.example/team/**"')
        images = []
    entries, unsigned = table.get("any-of", []), table.get("unsigned", False)
    if not isinstance(unsigned, bool) or not isinstance(entries, list):
        problems.append(f"{where}: want any-of as a list and unsigned as true or false")
        entries = []
    elif unsigned == bool(entries):
        problems.append(f"{where}: want either any-of with at least one signer, or unsigned = true")
    signers: dict[str, Signer] = {}
    for number, entry in enumerate(entries, 1):
        signers |= _signer(entry, f"{where}: any-of {number}", folder, problems)
    return Rule(images=tuple(images), signers=signers)


def _signer(entry: object, where: str, folder: Path, problems: list[str]) -> dict[str, Signer]:
    if isinstance(entry, dict) and all(isinstance(text, str) and text for text in entry.values()):
        if entry.keys() == {"key"}:
            path = folder / entry["key"]
            try:
                data = read_document(path, most=MAX_KEY, source=str(path))
                return {entry["key"]: load_public_key(data or b"", source=str(path))}
            except SpecError as error:
                problems.append(f"{where}: {error}")
                return {}
        if entry.keys() in ({"identity", "issuer"}, {"identity", "issuer", "trust-root"}):
            root = folder / entry["trust-root"] if "trust-root" in entry else None
            if root and not root.is_file():
                problems.append(f"{where}: {root}: no such file")
            who = Identity(identity=entry["identity"], issuer=entry["issuer"], trust_root=root)
            return {str(who): who}
    problems.append(
        f'{where}: want {{ key = "FILE" }} or {{ identity = "...", issuer = "..." }}, with trust-root or not'
    )
    return {}


def _canonical(text: str) -> str:
    """``text``, a place or a pattern, with the one spelling of its registry: who writes another evades no rule."""
    host, slash, rest = text.partition("/")
    if not slash or host.startswith(("oci:", "oci-archive:", "docker-daemon:")):
        return text
    host = _ZEROS.sub(":", host.lower()).removesuffix(":443")
    return ("docker.io" if host in HUB_HOSTS else host) + slash + rest


def _pattern(text: str) -> re.Pattern[str]:
    """``*`` is any part of one path segment, ``**`` anything; all else is itself."""
    parts = re.split(r"(\*\*|\*)", text)
    return re.compile("".join({"**": ".*", "*": "[^/]*"}.get(part) or re.escape(part) for part in parts))
