"""Compile Python sources under the interpreter of the image; runs there, as ``python -c``, never here.

stdin: the length of the rest, then for each source: length of its file name, of its bytes, both.
stdout: for each source, in order: length of its .pyc, or 0 if it does not compile, and the .pyc.
Lengths are 4 bytes, little-endian; the first has 8. Only modules of python3.X-minimal are imported.

With five file descriptors as arguments it answers one request after the other, each in a fork of the process that
has just started: as fresh as a process of its own, for a tenth of the time. Request, answer and errors are files
that a fork takes for its streams; a byte on the fourth asks, the fork's exit status on the fifth tells the end.
"""

import importlib.util
import marshal
import os
import sys

#: PEP 552: hash-based, and the source is never checked.
_UNCHECKED_HASH = 1


def _compile(name: str, source: bytes) -> bytes:
    """The .pyc of ``source``, or nothing where pip's compileall would print an error and go on."""
    try:
        code = compile(source, name, "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return b""
    header = importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH.to_bytes(4, "little") + importlib.util.source_hash(source)
    return header + marshal.dumps(code)


def _main() -> None:
    read, write = sys.stdin.buffer.read, sys.stdout.buffer.write
    rest = int.from_bytes(read(8), "little")
    data = read(rest)
    if len(data) != rest:
        sys.exit("the request ends early")
    at = 0
    while at < rest:
        name_size = int.from_bytes(data[at : at + 4], "little")
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        at += 8
        name = data[at : at + name_size].decode("utf-8", "surrogateescape")
        at += name_size
        compiled = _compile(name, data[at : at + size])
        at += size
        write(len(compiled).to_bytes(4, "little") + compiled)
        sys.stdout.buffer.flush()  # what crashes the compiler is then the first source without an answer


def _serve(request: int, answer: int, errors: int, asked: int, ended: int) -> None:
    while os.read(asked, 1):
        fork = os.fork()
        if not fork:
            for number, stream in enumerate((request, answer, errors)):
                os.dup2(stream, number)
            _main()
            os._exit(0)  # nothing is left to flush; taking the interpreter down costs as much as ten modules
        status = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
        os.write(ended, status.to_bytes(4, "little", signed=True))


if __name__ == "__main__":
    _serve(*map(int, sys.argv[1:])) if sys.argv[1:] else _main()
