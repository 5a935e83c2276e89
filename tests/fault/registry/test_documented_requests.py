"""docs/registry.md has a table of every request of a push: a recording proxy before a real registry sees just these."""

import io
import re
from collections import Counter
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from envbuilder.digest import describe
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Index, Manifest
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.credentials import Credential
from envbuilder.registry.known import KnownBlobs
from envbuilder.registry.settings import HttpSettings
from envbuilder.registry.target import RegistryTarget
from envbuilder.store.copy import copy
from envbuilder.store.memory import MemoryTarget
from envbuilder.testing import servers
from envbuilder.testing.proxy import RecordingProxy

pytestmark = pytest.mark.slow
DOCS = Path(__file__).parents[3] / "docs/registry.md"
LAYERS, BLOBS, CHILDREN = 5, 6, 2
DIGEST = r"sha256(?::|%3A)[0-9a-f]{64}"
WORDS = {
    "NAME": r"team/\w+",
    "OTHER": r"team/\w+",
    "TAG": r"v\d",
    "DIGEST": DIGEST,
    "LOCATION": r"/v2/team/\w+/blobs/uploads/[\w-]+\?.*",
}


def table():
    """Step -> verb and pattern of its request, as the table of the section on pushes has them."""
    section = DOCS.read_text().partition("## Push and copy: every request")[2]
    rows = re.findall(r"^\| ([^|]+) \| `(\w+) ([^`]+)` \| [^|]+ \|$", section, re.MULTILINE)
    pattern = re.compile("|".join(WORDS))
    return {
        step: (
            verb,
            re.compile(
                "".join([WORDS.get(part, re.escape(part)) for part in re.split(f"({pattern.pattern})", request)])
                + r"\Z"
            ),
        )
        for step, verb, request in rows
    }


class Alice:
    def find(self, host, repository, actions=()):
        return Credential(username=servers.USER, password=servers.PASSWORD)

    def refused(self, host):
        pass


@pytest.fixture(scope="module")
def proxy(tmp_path_factory, require_tool):
    require_tool("docker-registry")
    folder = tmp_path_factory.mktemp("documented")
    servers.make_certificates(folder)
    with servers.docker_registry(
        folder / "registry", auth="token", realm="https://auth.registry.test/token"
    ) as registry:
        leads = {"registry.test": registry.host, "auth.registry.test": urlsplit(registry.token_url).netloc}
        with RecordingProxy(leads, folder) as proxy:
            proxy.ca_file = folder / "ca.crt"
            yield proxy


@pytest.fixture(scope="module")
def image():
    """An index of two manifests that share a config and have layers of their own."""
    source = MemoryTarget()

    def push(data, media_type):
        what = describe(data, media_type)
        source.push(what, partial(io.BytesIO, data))
        return what

    config = push(b"{}", media_types.OCI_CONFIG)
    layers = [push(b"layer %d" % number, media_types.OCI_LAYER_TAR) for number in range(LAYERS)]
    children = tuple(
        push(Manifest(config=config, layers=tuple(part)).dump(), media_types.OCI_MANIFEST)
        for part in (layers[:2], layers[2:])
    )
    return source, push(Index(manifests=children).dump(), media_types.OCI_INDEX)


@pytest.fixture
def push(proxy, image):
    """``push(repository, tag, **options)`` by a process of its own; what the proxy saw of it, by step of the table."""
    steps = table()

    def act(repository, tag, **options):
        proxy.sent.clear()
        settings = HttpSettings(ca_file=proxy.ca_file, proxies={"https": proxy.url})
        with RegistryClient(settings, Alice()) as client:
            target = RegistryTarget(RegistryReference("registry.test", repository), client, writable=True, **options)
            copy(*image, target, tag=tag)
        found = []
        for sent in proxy.to("registry.test"):
            if "authorization" not in sent.headers:
                continue  # answered 401, then sent again with a token: the page says so
            matching = [step for step, (verb, path) in steps.items() if verb == sent.method and path.match(sent.target)]
            assert matching, f"the page has no {sent.method} {sent.target}"
            found.append(matching[0])
        return found

    return act


TAG, ROOT, BLOB = "is the tag there already", "is the root there under another name", "which blobs are there"
MOUNT, BEGIN, SEND = "mount an absent blob", "begin an upload", "send a blob"
STORE, STORE_ROOT = "store a manifest", "store the root and its tag"


def test_every_request_of_every_push_is_on_the_page_as_often_as_it_says(push, tmp_path):
    known = partial(KnownBlobs, tmp_path)

    first = push("team/one", "v1", known=known())
    # The table has the same request for the root and for the manifests below it.
    assert Counter(first) == {
        TAG: 1, ROOT: 1 + CHILDREN, BLOB: BLOBS, BEGIN: BLOBS, SEND: BLOBS, STORE: CHILDREN, STORE_ROOT: 1
    }  # fmt: skip
    assert first[0] == TAG
    assert first[-CHILDREN - 1 :] == [*[STORE] * CHILDREN, STORE_ROOT]
    assert Counter(push("team/one", "v1", known=known())) == {TAG: 1}
    assert Counter(push("team/one", "v1")) == {TAG: 1, BLOB: BLOBS}
    assert Counter(push("team/one", "v2", known=known())) == {TAG: 1, ROOT: 1, STORE_ROOT: 1}
    assert Counter(push("team/two", "v1", known=known())) == {
        TAG: 1, ROOT: 1 + CHILDREN, BLOB: BLOBS, MOUNT: BLOBS, STORE: CHILDREN, STORE_ROOT: 1
    }  # fmt: skip


def test_the_first_contact_is_401_a_token_and_the_same_again(push, proxy):
    push("team/three", "v1")

    first, token, again = proxy.sent[:3]
    assert (first.method, first.target) == (again.method, again.target)
    assert "authorization" not in first.headers
    assert token.origin == "https://auth.registry.test"
    assert "scope=repository%3Ateam%2Fthree%3Apull%2Cpush" in token.target
    assert len([item for item in proxy.sent if "/token?" in item.target]) == 1
