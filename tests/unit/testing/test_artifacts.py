from envbuilder import proc
from envbuilder.digest import Digest
from envbuilder.layer.deb import deb_entries
from envbuilder.layer.tree import directory, file, symlink
from envbuilder.testing.artifacts import locked_wheel, make_wheel, store_file
from envbuilder.testing.debs import deb_of, make_deb


def test_equal_contents_are_equal_bytes_on_every_host():
    wheel = make_wheel("Some.Package", files={"x.py": b"x"}, entry_points="[console_scripts]\nx = x:x\n")

    assert Digest.of(wheel).hex[:12] == "59e209eb2fbb"


def test_a_lock_names_them_as_indexes_do():
    wheel = locked_wheel("Some.Package", b"x")

    assert (wheel.name, wheel.file) == ("some-package", "Some_Package-1.0-py3-none-any.whl")


def test_debian_reads_a_deb(tmp_path, require_tool):
    tree = [directory("usr"), directory("usr/bin"), symlink("usr/bin/t", "tool"), file("usr/bin/tool", b"x")]
    data = make_deb(tree, name="tool", fields={"Depends": "a"})
    path = store_file(tmp_path, data)
    listing = proc.run([require_tool("dpkg-deb"), "-c", path]).stdout.decode()

    fields = proc.run([require_tool("dpkg-deb"), "-f", path, "Package", "Depends"]).stdout
    assert fields == b"Package: tool\nDepends: a\n"
    assert [line.split("./", 1)[1] for line in listing.splitlines()] == [
        "",
        "usr/",
        "usr/bin/",
        "usr/bin/t -> tool",
        "usr/bin/tool",
    ]
    assert "usr/bin/tool" in {entry.path for entry in deb_entries(path, deb_of(data, name="tool"))}
