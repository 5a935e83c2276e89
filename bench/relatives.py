"""First result of a command in images that nobody recorded: relatives of one that was, one of them built by buildah.

Registry at 1 Gbit/s, nothing of the image on this machine. What was recorded with the first image is taken over by the
next version in its build, by the child with ``trace --from``, and by what buildah built ``FROM`` it at the start; the
peer is the same start without.
"""

from __future__ import annotations

from pathlib import Path

from bump import PACKAGE
from first_result import SPACE, Column, link_rate, middle, recorded, start
from measure import measured
from product import START, build_to, copy_project, envbuilder, held, lock_file, result
from record import Outcome, Target
from scratch import Bench, need, need_root, need_space, remove, tool
from servers import Registry, distant_registry, registry

from envbuilder.lock.codec import load

_RATE, _REPEAT = "1gbit", 3
#: A package that no environment has, for the child.
_MORE = "humanize"
#: Of the start of the image that was recorded, and of the same start without a trace, at most.
_OF_RECORDED, _OF_UNTRACED = 1.15, 0.6


def run(bench: Bench) -> Outcome:
    need_root()
    need_space(bench.work, SPACE.get(bench.env, SPACE["ai"]))
    command = ["python3", "-c", START[bench.env]]
    project, data, store = _project(bench), bench.work / "data", bench.folder("store")
    declaration = project / "images" / bench.env / "env.toml"
    with registry(bench.work / "near", data=data) as at:
        original = declaration.read_text()
        wheels = load(lock_file(bench.env).read_bytes(), source=bench.env).wheels
        newest = next(wheel.version for wheel in wheels if wheel.name == PACKAGE[bench.env])
        declaration.write_text(held(original, PACKAGE[bench.env], newest))
        _, first = _built(bench, bench.env, project, store, at.host)
        recorded(bench, at, first, command)
        stored = at.stored()
        declaration.write_text(original)
        words = ("--upgrade-package", PACKAGE[bench.env])
        said, following = _built(bench, bench.env, project, store, at.host, *words)
        _, child = _built(bench, "child", project, store, at.host)
        words = ("trace", child, "--from", first, "--json")
        taken = envbuilder(*words, log=bench.log, environ={"ENVBUILDER_REGISTRIES_INSECURE": at.host})
        foreign = _from(bench, at, following)
        grown = at.stored() - stored - said["copied_bytes"]
    remove(store)
    images = {"recorded": first, "next version": following, "child": child, "buildah FROM": foreign}
    starts: dict[str, list[Column]] = {}
    with distant_registry(bench.work / "far", data=data, rate=_RATE) as far:
        rate = link_rate(far, f"env/{bench.env}")
        for _ in range(_REPEAT):
            for name, pinned in images.items():
                reference = far.host + "/" + pinned.partition("/")[2]
                starts.setdefault(name, []).append(start(bench, far, data, reference, command))
            reference = far.host + "/" + child.partition("/")[2]
            starts.setdefault("child, no trace", []).append(start(bench, far, data, reference, command, trace="off"))
    columns = {name: middle(each) for name, each in starts.items()}
    seconds = {name: float(column["first result s"]) for name, column in columns.items()}
    return Outcome(
        columns=columns,
        ratios={
            "pages of the next version's layers": said["adopted_trace"]["share"],
            "pages of the child's layers": result(taken)["share"],
            "seconds that trace --from took": taken.seconds,
        },
        targets=[
            Target(name=f"{name} / recorded", limit=_OF_RECORDED, got=seconds[name] / seconds["recorded"])
            for name in ("next version", "child")
        ]
        + [Target(name="buildah FROM / without", limit=1, got=seconds["buildah FROM"] / seconds["child, no trace"])]
        + [Target(name="child / without", limit=_OF_UNTRACED, got=seconds["child"] / seconds["child, no trace"])],
        notes=[
            f"link: tc tbf {_RATE}, {rate:.1f} MB/s of one plain ranged read; median of {_REPEAT}, in turns",
            f"the registry grew by {grown / 1e6:.1f} MB beyond what the next version's build sent: the child",
        ],
    )


def _from(bench: Bench, at: Registry, base: str) -> str:
    """What buildah makes of ``FROM base`` and one file, pushed to a repository of its own; pinned."""
    need("buildah", "runc")
    folder, name = bench.folder("buildah"), f"{at.host}/team/image:1"
    (folder / "Containerfile").write_text(f"FROM {base}\nCOPY Containerfile /etc/team\n")
    words = [tool("buildah"), "--root", folder / "root", "--runroot", folder / "run", "--storage-driver", "overlay"]
    build = ["bud", "-q", "--isolation=chroot", "--tls-verify=false", "-t", name]
    measured([*words, *build, "-f", folder / "Containerfile", folder], log=bench.log)
    measured([*words, "push", "-q", "--tls-verify=false", name, f"docker://{name}"], log=bench.log)
    resolved = envbuilder("resolve", name, "--json", log=bench.log, environ={"ENVBUILDER_REGISTRIES_INSECURE": at.host})
    remove(folder)
    return str(result(resolved)["pinned"])


def _project(bench: Bench) -> Path:
    project = copy_project(bench)
    (project / "images/child").mkdir()
    text = f'name = "child"\nversion = "1"\nextends = "{bench.env}"\nrequires = ["{_MORE}"]\n'
    (project / "images/child/env.toml").write_text(text)
    return project


def _built(bench: Bench, env: str, project: Path, store: Path, host: str, *words: str) -> tuple[dict[str, object], str]:
    envbuilder("lock", env, *words, "--project", project, "--quiet", log=bench.log)
    cost, pinned = build_to(env, store=store, host=host, log=bench.log, project=project)
    return result(cost)[0], pinned
