import pytest

from envbuilder import proc
from envbuilder.layer.scripts import EntryPoint, command, for_python, parse_entry_points, shebang, with_interpreter


def names(entry_points):
    return [entry.name for entry in entry_points]


def test_only_commands_are_read_from_entry_points():
    text = (
        "# c\n[other]\nx = a:b\n[console_scripts]\nb = m:f\n\n; c\na=m.n : C.f [extra,more]\n[gui_scripts]\ng = m:g\n"
    )

    assert parse_entry_points(text.encode(), source="w") == (
        EntryPoint(name="a", module="m.n", attribute="C.f"),
        EntryPoint(name="b", module="m", attribute="f"),
        EntryPoint(name="g", module="m", attribute="g"),
    )


def test_names_keep_their_case():
    text = b"[console_scripts]\nRun = m:f\nrun = m:g\n"

    assert names(parse_entry_points(text, source="w")) == ["Run", "run"]


def test_versioned_names_of_pip_and_easy_install_are_those_of_the_image():
    text = b"[console_scripts]\neasy_install = m:f\neasy_install-3.6 = m:f\npip = m:f\npip3.6 = m:f\npipx = m:f\n"

    assert sorted(names(for_python(parse_entry_points(text, source="w"), "3.13"))) == [
        "easy_install",
        "easy_install-3.13",
        "pip",
        "pip3",
        "pip3.13",
        "pipx",
    ]


def test_a_shebang_that_linux_would_cut_becomes_a_trampoline():
    longest = "/" + "x" * 123
    longer = longest + "x"

    assert len(shebang(longest)) == 127
    assert shebang(longest) == f"#!{longest}\n".encode()
    assert shebang(longer) == f"#!/bin/sh\n'''exec' {longer} \"$0\" \"$@\"\n' '''\n".encode()


@pytest.mark.parametrize("folder", ["plain", "x" * 120, "with space"])
def test_the_command_starts_the_interpreter_with_its_arguments(tmp_path, folder):
    interpreter = tmp_path / folder / "python3"
    interpreter.parent.mkdir()
    interpreter.write_text('#!/bin/sh\nshift\necho "$0|$@"\n')
    interpreter.chmod(0o755)
    script = tmp_path / "script"
    script.write_bytes(command(EntryPoint(name="x", module="m", attribute="f"), str(interpreter)))
    script.chmod(0o755)

    assert proc.run([script, "a b", "c"]).stdout.decode() == f"{interpreter}|a b c\n"


def test_a_trampoline_is_python_too():
    compile(command(EntryPoint(name="x", module="m", attribute="f"), "/" + "x" * 200), "x", "exec")


def test_only_the_first_line_of_a_script_is_replaced():
    assert with_interpreter(b"#!python3 -E\nline\nline\n", "/p") == b"#!/p\nline\nline\n"
    assert with_interpreter(b"#!python", "/p") == b"#!/p\n"
