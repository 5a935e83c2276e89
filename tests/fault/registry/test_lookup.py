from envbuilder.oci import media_types
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.lookup import lookup_all
from envbuilder.registry.target import RegistryTarget
from envbuilder.store.target import NotFound


def test_many_references_are_one_request_each_and_each_gets_its_own_answer(world):
    host = world.registry.host
    wanted = {}
    for number in range(50):
        data = world.manifest(annotations={"number": str(number)})
        reference = RegistryReference(host, f"a/b{number % 5}", str(number))
        wanted[reference] = world.registry.add_manifest(
            reference.repository, reference.tag, data, media_types.OCI_MANIFEST
        )
    asked = [*wanted, *wanted]

    found = lookup_all(asked, lambda reference: RegistryTarget(reference, world.client))

    assert [(each.reference, each.what) for each in found] == [(reference, wanted[reference]) for reference in asked]
    assert len(world.registry.requests) == 50


def test_an_error_of_one_reference_is_none_of_the_others(world):
    host = world.registry.host
    what = world.registry.add_manifest("a/b", "1", world.manifest(), media_types.OCI_MANIFEST)
    asked = [RegistryReference(host, "a/b", "1"), RegistryReference(host, "a/b", "gone")]

    there, gone = lookup_all(asked, lambda reference: RegistryTarget(reference, world.client))

    assert (there.what, there.error) == (what, None)
    assert isinstance(gone.error, NotFound)
