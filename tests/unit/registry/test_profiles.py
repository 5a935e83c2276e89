import pytest

from envbuilder.registry.profiles import PROFILES, profile_of_answer, profile_of_host


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("docker.io", "Docker Hub"),
        ("ghcr.io", "GHCR"),
        ("registry.gitlab.com", "GitLab"),
        ("123456789012.dkr.ecr.eu-west-1.amazonaws.com", "ECR"),
        ("europe-west4-docker.pkg.dev", "Artifact Registry"),
        ("eu.gcr.io", "Artifact Registry"),
        ("team.azurecr.io", "ACR"),
        ("quay.io", "Quay"),
        ("QUAY.io:443", "Quay"),
    ],
)
def test_a_hosted_product_is_known_by_its_name(host, name):
    assert profile_of_host(host).name == name


@pytest.mark.parametrize(
    "host", ["registry.test", "localhost:5000", "evil-ghcr.io.test", "ghcr.io.evil.test", "xquay.io"]
)
def test_a_name_that_only_looks_like_one_is_not_taken_for_it(host):
    assert profile_of_host(host) is None


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({"WWW-Authenticate": 'Bearer realm="https://h/service/token",service="harbor-registry"'}, "Harbor"),
        ({"Gitlab-Container-Registry-Version": "4.5"}, "GitLab"),
        ({"Docker-Distribution-Api-Version": "registry/2.0"}, "distribution"),
        (
            {
                "Docker-Distribution-Api-Version": "registry/2.0",
                "Docker-Upload-Uuid": "01a22b34-37a1-7c55-a1f0-7eb32634f360",
            },
            "distribution 3",
        ),
        ({"Server": "Nexus/3.60"}, "Nexus"),
    ],
)
def test_a_product_that_one_runs_oneself_is_known_by_its_answers(headers, name):
    assert profile_of_answer(headers).name == name


def test_an_answer_without_a_mark_says_nothing():
    assert profile_of_answer({"Server": "nginx"}) is None


def test_every_product_of_the_issue_has_a_profile():
    names = {profile.name for profile in PROFILES}

    assert names >= {
        *("Docker Hub", "GHCR", "GitLab", "ECR", "Artifact Registry", "ACR", "Quay", "Harbor", "zot"),
        *("distribution", "distribution 3"),
    }
    assert len(names) == len(PROFILES)
