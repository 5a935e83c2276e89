from envbuilder.layer.prefix import Prefix, prefix_entries
from envbuilder.lock.model import Interpreter

PYTHON = Interpreter(version="3.13", tag="cp313")


def test_the_skeleton_is_that_of_a_venv():
    found = {entry.path: entry for entry in prefix_entries("opt/env", PYTHON)}

    assert {path: entry.link for path, entry in found.items() if entry.is_symlink} == {
        "opt/env/bin/python": "python3",
        "opt/env/bin/python3": "python3.13",
        "opt/env/bin/python3.13": "/usr/bin/python3.13",
        "opt/env/lib64": "lib",
    }
    assert found["opt/env/pyvenv.cfg"].open().read() == (
        b"home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.13\nexecutable = /usr/bin/python3.13\n"
    )


def test_record_names_paths_relative_to_site_packages():
    prefix = Prefix(root="opt/env", python=PYTHON)

    assert prefix.recorded("opt/env/lib/python3.13/site-packages/a/b.py") == "a/b.py"
    assert prefix.recorded("opt/env/bin/x") == "../../../bin/x"
    assert prefix.real("opt/env/lib64/python3.13/x") == "opt/env/lib/python3.13/x"
    assert prefix.scheme("bogus", "x") is None
