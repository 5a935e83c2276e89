"""Every product that has a profile: a fake registry of its name, marks and quirks together, and what a user does there.

Cloud products rest on public issues and documentation (registry.md 9), not on tests against the live service.
"""

import io
from dataclasses import dataclass
from functools import partial

import pytest

from envbuilder.digest import describe
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.capabilities import Capabilities
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.credentials import Credential
from envbuilder.registry.profiles import PROFILES, profile_named
from envbuilder.registry.settings import HttpSettings
from envbuilder.registry.target import RegistryTarget
from envbuilder.store.copy import copy
from envbuilder.store.memory import MemoryTarget
from envbuilder.store.referrers import ReferrersTagTaken, attach, referrers
from envbuilder.testing.proxy import RecordingProxy
from envbuilder.testing.quirks import QUIRKS
from envbuilder.testing.registry import FakeRegistry, header

pytestmark = pytest.mark.slow
LAYER = bytes(range(256)) * 400


@dataclass(frozen=True)
class Product:
    """host: as users write it; api: where its API is, if elsewhere. marks: headers of its answers. challenge: its 401's.

    ways: verbs that send a blob. has_api: for referrers. attaches: where there is none, the tag schema works.
    """

    host: str
    quirks: tuple = ()
    realm: str = ""
    api: str = ""
    marks: tuple = ()
    challenge: str = ""
    ways: tuple = ("PUT",)
    has_api: bool = False
    attaches: bool = True


API = ("Docker-Distribution-Api-Version", "registry/2.0")
PRODUCTS = {
    "Docker Hub": Product(
        "docker.io", ("hub-mount", "hub-metered"), "http://auth.docker.io/token", api="registry-1.docker.io"
    ),
    "GHCR": Product("ghcr.io", ("ghcr-4mib", "ghcr-lossy"), marks=(("X-GitHub-Request-Id", "1:2"),)),
    "GitLab": Product(
        "registry.gitlab.com",
        ("gitlab-first-mount", "gitlab-subject-tag", "gitlab-token"),
        "http://gitlab.com/token",
        marks=(("Gitlab-Container-Registry-Version", "4.5"), API),
        attaches=False,  # the tag names the subject itself, and is not overwritten
    ),
    "ECR": Product(
        "123456789012.dkr.ecr.eu-west-1.amazonaws.com",
        ("ecr-patch", "ecr-no-head", "ecr-immutable", "ecr-subject-unmeant"),
    ),
    "Artifact Registry": Product("europe-west4-docker.pkg.dev", ("gar-no-patch", "referrers"), has_api=True),
    "ACR": Product("team.azurecr.io", ("acr-20mb", "referrers"), has_api=True),
    "Quay": Product("quay.io", ("quay-mount", "quay-load", "quay-empty-chunk")),
    "Harbor": Product(
        "harbor.test", ("harbor-cookies", "referrers"), challenge="harbor-registry", marks=(API,), has_api=True
    ),
    "zot": Product("zot.test", ("zot-chunk-range", "referrers"), challenge="zot.test zot", has_api=True),
    "Artifactory": Product("jfrog.test", marks=(("X-JFrog-Version", "7"),), ways=("PATCH", "PUT")),
    "Nexus": Product("nexus.test", ("nexus-race",), marks=(("Server", "Nexus/3.60"),)),
    "distribution 3": Product(
        "three.test",
        ("distribution-3-chunks", "distribution-3-race"),
        marks=(API, ("Docker-Upload-Uuid", "01a22b34-37a1-7c55-a1f0-7eb32634f360")),
    ),
    "distribution": Product(
        "two.test",
        ("distribution-2.8-chunks", "distribution-2.8-manifest", "distribution-2.8-tags"),
        marks=(API, ("Docker-Upload-Uuid", "6a2b5d0e-37a1-4c55-a1f0-7eb32634f360")),
    ),
}


class Login:
    def find(self, host, repository, actions=()):
        return Credential(username="alice", password="hunter22")

    def refused(self, host):
        pass


@dataclass
class Met:
    """A product that was met: its registry, what went to it, and a client that reaches it by its own name."""

    fake: FakeRegistry
    proxy: RecordingProxy
    product: Product
    client: RegistryClient
    capabilities: Capabilities

    def repository(self, name="team/one", **options):
        reference = RegistryReference(self.product.host, name)
        return RegistryTarget(reference, self.client, capabilities=self.capabilities, writable=True, **options)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    from envbuilder.testing.servers import make_certificates

    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    return folder


@pytest.fixture(params=sorted(PRODUCTS))
def met(request, certificates):
    product = PRODUCTS[request.param]
    api = product.api or product.host
    realm = product.realm or f"http://{api}/token"
    with FakeRegistry(token=True, realm=realm) as fake:
        fake.uploads.url = f"http://{api}"
        for name in product.quirks:
            QUIRKS[name].set_up(fake, fake)
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH"):
            for name, text in product.marks:
                fake.fault(method, "/v2/", header(name, text))
            if product.challenge:
                challenge = f'Bearer realm="{realm}",service="{product.challenge}"'
                fake.fault(method, "/v2/", lambda _request, reply, text=challenge: (
                    header("WWW-Authenticate", text)(_request, reply) if reply.status == 401 else reply
                ))  # fmt: skip
        leads = dict.fromkeys((api, realm.split("/")[2]), fake.host)
        with RecordingProxy(leads, certificates) as proxy:
            settings = HttpSettings(plain_hosts=frozenset(leads), proxies={"http": proxy.url})
            with RegistryClient(settings, Login(), sleep=lambda _seconds: None) as client:
                yield Met(fake, proxy, product, client, Capabilities())


def image_of(layer):
    source = MemoryTarget()
    config = b'{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[]}}'
    parts = describe(config, media_types.OCI_CONFIG), describe(layer, media_types.OCI_LAYER_TAR)
    data = Manifest(config=parts[0], layers=parts[1:]).dump()
    root = describe(data, media_types.OCI_MANIFEST)
    for what, content in ((parts[0], config), (parts[1], layer), (root, data)):
        source.push(what, partial(io.BytesIO, content))
    return source, root


def test_a_product_is_known_and_used_as_its_profile_says(met, request):
    (name,) = [each for each, product in PRODUCTS.items() if product is met.product]
    (source, root), back, target = image_of(LAYER), MemoryTarget(), met.repository()

    copy(source, root, target, tag="v1")
    notes = []
    if met.product.attaches:
        notes.append(attach(target, root, "application/vnd.test.note").digest)
    else:
        with pytest.raises(ReferrersTagTaken):
            attach(target, root, "application/vnd.test.note")
    copy(met.repository(), target.lookup("v1"), back, tag="v1")

    assert target._upload.profile is profile_named(name)
    assert back.lookup("v1") == root
    assert met.repository().fetch_range(describe(LAYER), 1000, 5000) == LAYER[1000:6000]
    assert [each.digest for each in referrers(met.repository(), root)] == notes
    sent = [item for item in met.fake.requests if "/uploads/" in item.path and item.method in ("PUT", "PATCH")]
    assert {item.method for item in sent} == set(met.product.ways)
    listed = [item for item in met.fake.requests if "/referrers/" in item.path]
    assert all("cookie" not in item.headers for item in met.fake.requests)
    assert bool(listed) or not met.product.has_api
    assert met.fake.uploads.open == 0


def test_a_mount_is_tried_where_it_was_ever_seen_to_work_and_never_needed(met):
    (source, root), second = image_of(LAYER), met.repository("team/two", mount_from=["team/one"])
    copy(source, root, met.repository(), tag="v1")

    copy(source, root, second, tag="v1")

    assert second.lookup("v1") == root


def test_every_profile_has_a_product_here():
    assert set(PRODUCTS) == {profile.name for profile in PROFILES}
    assert all(set(product.quirks) <= set(QUIRKS) for product in PRODUCTS.values())
