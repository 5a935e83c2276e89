"""Tags of a repository: listed in pages, and deleted where the registry allows it.

Source: OCI distribution-spec 1.1, "Listing Tags", "Deleting tags", "Deleting Manifests"; registry.md 9.
"""

from __future__ import annotations

from collections.abc import Callable

from envbuilder.digest import Digest, InvalidJson, parse_json_object
from envbuilder.oci.reference import check_tag, is_tag
from envbuilder.registry.client import Call, Registry
from envbuilder.registry.errors import BadAnswer, Denied, Rejected
from envbuilder.registry.pages import pages

#: Tags asked for at a time: ECR's limit (go-containerregistry#1091), and a page of 128 KiB at most.
_PAGE = 1_000
#: Tags of one repository that we keep in memory.
MAX_TAGS = 1_000_000
#: How registries say that a tag does not move or go (ECR, Harbor, ACR, GAR; registry.md 9).
_IMMUTABLE = ("immutable", "locked", "retention", "protected", "TAG_INVALID")


class CannotDelete(Rejected):
    """A registry does not delete this, or deletes nothing at all."""


class RegistryTags:
    """The part of a RegistryTarget that knows about tags; mixed into it."""

    _registry: Registry
    _repository: str
    _call: Callable[..., Call]
    _save: Callable[[], None]

    @property
    def name(self) -> str:
        """``host/repository``."""
        raise NotImplementedError

    def forget(self) -> bool:
        """Ask the registry anew from now on; whether anything was only remembered."""
        raise NotImplementedError

    def tag_names(self) -> tuple[str, ...]:
        """Every tag, sorted.

        Raises:
            NotFound: no such repository. BadAnswer, InvalidJson: a list that is malformed or has no end.
        """
        call = self._call("GET", f"/v2/{self._repository}/tags/list?n={_PAGE}")
        found: set[str] = set()
        for answer, data in pages(self._registry, call, self._registry.request(call, (200,))):
            # Docker Hub and distribution say null for none.
            names = parse_json_object(data, source=answer.where).get("tags") or []
            if not isinstance(names, list) or not all(isinstance(name, str) and is_tag(name) for name in names):
                raise InvalidJson(f"{answer.where}: want a list of tags")
            found.update(names)
            if len(found) > MAX_TAGS:
                raise BadAnswer(f"{answer.where}: want at most {MAX_TAGS} tags, got more")
        return tuple(sorted(found))

    def delete_tag(self, tag: str) -> None:
        """Let ``tag`` name nothing; what it named stays, with its other tags.

        Raises:
            NotFound: no such tag. CannotDelete: the registry does not delete tags, or not this one.
        """
        self._delete(f"manifests/{check_tag(tag)}", f"tag {tag}")

    def delete_manifest(self, digest: Digest) -> None:
        """Delete a manifest, and with it every tag that names it.

        Raises:
            NotFound: it is not there. CannotDelete: the registry deletes nothing, or not this.
        """
        self._delete(f"manifests/{digest}", str(digest))

    def _delete(self, path: str, what: str) -> None:
        call = Call(
            method="DELETE",
            url=self._registry.url(f"/v2/{self._repository}/{path}"),
            scopes=(f"repository:{self._repository}:pull,push,delete", f"repository:{self._repository}:delete"),
            why=f"delete {what}",
        )
        # Before, not after: who is killed in between remembers too little, never too much.
        if self.forget():
            self._save()
        try:
            answer = self._registry.request(call, (200, 202, 204))
        except (Rejected, Denied) as error:
            raise self._why_not(error, what) from error
        answer.finish()

    def _why_not(self, error: Rejected | Denied, what: str) -> Exception:
        status, text = getattr(error, "status", 403), str(error)
        if any(word.lower() in text.lower() for word in _IMMUTABLE) and "UNSUPPORTED" not in text:
            hint = f"{what} is immutable or protected there: change the repository's rule, or leave it."
        elif status in (400, 405, 501):
            hint = (
                "Delete the manifest by its digest, as this registry deletes no tags (distribution 2.8 never does): "
                f"'envbuilder gc {self.name} --expire {what.removeprefix('tag ')}', with all other tags that name it."
                if what.startswith("tag ")
                else "This registry deletes nothing: let who runs it turn deletion on, or use its own interface."
            )
        elif isinstance(error, Denied):
            return error
        else:
            hint = "Read what the registry said; the same request will be refused again."
        refused = CannotDelete(f"{what}: {text}", hint=hint)
        refused.status, refused.codes = status, getattr(error, "codes", ())
        return refused
