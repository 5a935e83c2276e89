"""Does an index have a certain build of a package for the image? Asked of the index's page, before the resolver is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from envbuilder.lock.download import ArtifactGone, Http, fetch_page, headers_for, without_credentials
from envbuilder.lock.settings import address_of, folder_of, is_folder, is_page
from envbuilder.lock.simple import ACCEPT, parse_page
from envbuilder.lock.tags import best_wheel, supported_tags
from envbuilder.lock.uv import PythonTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class Builds:
    """The indexes of this machine by role, and how their pages are fetched."""

    http: Http
    indexes: Mapping[str, str]

    def missing(self, role: str, name: str, version: str, target: PythonTarget) -> str:
        """Why the index of ``role`` gives no wheel of ``name`` at ``version`` for ``target``; "" when it does.

        Raises:
            SourceUnavailable, SourceRefused: the index is configured and does not answer: no reason to take another.
        """
        index = self.indexes.get(role)
        if index is None:
            return f"no index is configured for {role!r}"
        files = [file for file in self._files(index, name) if _version(file) == Version(version)]
        if not files:
            return f"the index {role!r} has no {version}"
        tags = supported_tags(target.python, target.platform, target.glibc)
        fits = best_wheel(files, tags)
        return "" if fits else f"the index {role!r} has {version} for other systems only"

    def _files(self, index: str, name: str) -> list[str]:
        if is_folder(index):
            return [file.name for file in folder_of(index).glob("*.whl") if _name(file.name) == name]
        index, of_all = address_of(index), is_page(index)
        url = without_credentials(index) if of_all else f"{without_credentials(index).rstrip('/')}/{name}/"
        try:
            page = fetch_page(self.http, url, {**headers_for(url, index), "Accept": ACCEPT})
        except ArtifactGone:
            return []
        return [file for file in parse_page(*page) if not of_all or _name(file) == name]


def _version(file: str) -> Version | None:
    try:
        return parse_wheel_filename(file)[1]
    except InvalidWheelFilename:
        return None


def _name(file: str) -> str:
    try:
        return parse_wheel_filename(file)[0]
    except InvalidWheelFilename:
        return ""
