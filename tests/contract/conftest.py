import itertools
import shutil

import pytest

from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.credentials import Credential
from envbuilder.registry.target import RegistryTarget
from envbuilder.testing import servers
from envbuilder.testing.registry import FakeRegistry


class Alice:
    def find(self, host, repository, actions=()):
        return Credential(username=servers.USER, password=servers.PASSWORD)

    def refused(self, host):
        pass


def repositories(client, host):
    numbers = itertools.count()

    def make():
        return RegistryTarget(RegistryReference(host, f"test/r{next(numbers)}"), client)

    return make


@pytest.fixture(params=["fake", "plain", "htpasswd", "token"])
def make_repository(request, tmp_path):
    if request.param == "fake":
        with FakeRegistry(token=True) as registry, RegistryClient() as client:
            yield repositories(client, registry.host)
        return
    if shutil.which("docker-registry") is None:
        pytest.skip("docker-registry is not installed")
    auth = "" if request.param == "plain" else request.param
    with (
        servers.docker_registry(tmp_path / "registry", auth=auth) as registry,
        RegistryClient(credentials=Alice()) as client,
    ):
        yield repositories(client, registry.host)
