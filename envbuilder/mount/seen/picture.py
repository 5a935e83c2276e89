"""A start as a picture: bytes over time, and what was waited for, file by file, on one time line. SVG; pure.

Made of the JSON of a report, so that an old report can be drawn again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from envbuilder.mount.seen.report import full_pull_s

_WIDTH, _LEFT, _RIGHT = 1000, 330, 970
#: Where the curve of bytes is drawn, and the height of a file's row below it.
_TOP, _BOTTOM, _ROW = 120, 280, 20
#: Files that have a row of their own.
_FILES = 14
#: How many times the seconds to the first output the time line has at the most: a job may run for days.
_SHOWN = 2.5
_STYLE = (
    "text{font-family:sans-serif;font-size:12px;fill:#333}.t{font-size:18px;font-weight:bold}.n{font-size:20px}"
    ".g{fill:#777}.r{text-anchor:end}.m{text-anchor:middle}.p{font-size:11px}.a{fill:#8fb8de}.h{fill:#2f6fab}.w{fill:#d1495b}"
    ".l{stroke:#bbb}.k{stroke:#333;stroke-dasharray:4 3}"
)


@dataclass(frozen=True, slots=True)
class _Scale:
    """Seconds to places."""

    end_s: float

    def x(self, seconds: float) -> float:
        return round(_LEFT + (_RIGHT - _LEFT) * min(max(seconds / self.end_s, 0.0), 1.0), 1)


def picture(report: Mapping[str, Any]) -> str:
    """The SVG of a report of ``envbuilder run --report``."""
    seconds = report["seconds"]
    first, end = seconds["first_output"], seconds["ended"]
    scale = _Scale(max(min(end, first * _SHOWN) if first else end, 0.001))
    rows = _rows(report)
    height = _BOTTOM + 70 + _ROW * max(len(rows), 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f'<style>{_STYLE}</style><rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        *_title(report),
        *_curve(report, scale),
        *_waits(rows, scale),
        *_moments(report, scale, height - 30),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def verdict(report: Mapping[str, Any]) -> str:
    """In one sentence whether lazy start helped."""
    first, pull_s = report["seconds"]["first_output"], full_pull_s(report)
    if first is None:
        return "nothing was written: when it was ready is not known"
    if "lazy" not in report["how"]:
        return f"first output after {first:.2f} s, everything was on this node already ({report['how']})"
    if pull_s is None:
        return f"first output after {first:.2f} s; next to nothing had to be fetched"
    return (
        f"first output after {first:.2f} s; the download alone of a full pull would have taken about {pull_s:.1f} s, "
        "at the best rate seen"
    )


def _title(report: Mapping[str, Any]) -> Iterator[str]:
    command = " ".join(report.get("command") or ()) or "the image's own command"
    yield _text(20, 32, _short(command, 90), "t")
    yield _text(20, 52, f"{report['image']}, {report['how']}{', with a trace' if report['trace'] else ''}", "g")
    yield _text(20, 76, verdict(report))
    fetched = report["fetched_bytes"]["before_first_output"]
    fetched = report["fetched_bytes"]["in_all"] if fetched is None else fetched
    share = f" ({100 * fetched / report['image_bytes']:.1f} % of the image)" if report["image_bytes"] else ""
    counters = report["counters"]
    yield _text(
        20,
        96,
        f"fetched before it: {_size(fetched)}{share}; a read waited during {report.get('blocked_s', 0.0):.2f} s of it; "
        f"{counters['waits']} of {counters['hits'] + counters['waits']} reads waited in all",
    )


def _curve(report: Mapping[str, Any], scale: _Scale) -> Iterator[str]:
    """Bytes fetched so far; darker what a hot bundle brought."""
    samples = [each for each in report.get("timeline") or [[0.0, 0, 0]] if each[0] <= scale.end_s]
    most = max((fetched for _, fetched, _ in samples), default=0) or 1
    for which, name in ((1, "a"), (2, "h")):
        points = [f"{scale.x(each[0])},{_y(each[which], most)}" for each in samples]
        last = f"{scale.x(scale.end_s)},{_y(samples[-1][which], most)} {scale.x(scale.end_s)},{_BOTTOM}"
        yield f'<polygon class="{name}" points="{_LEFT},{_BOTTOM} {" ".join(points)} {last}"/>'
    for part in (0.0, 0.5, 1.0):
        y = _y(most * part, most)
        yield f'<line class="l" x1="{_LEFT}" x2="{_RIGHT}" y1="{y}" y2="{y}"/>'
        yield _text(_LEFT - 8, y + 4, _size(most * part), "r")
    yield _text(20, _TOP + 20, "bytes fetched")
    yield f'<rect class="h" x="20" y="{_TOP + 34}" width="10" height="10"/>' + _text(36, _TOP + 43, "as a hot bundle")
    yield f'<rect class="a" x="20" y="{_TOP + 52}" width="10" height="10"/>' + _text(36, _TOP + 61, "as chunks")
    step = _step(scale.end_s)
    for number in range(int(scale.end_s / step) + 1):
        yield _text(scale.x(number * step), _BOTTOM + 18, f"{number * step:g} s", "m g")


def _moments(report: Mapping[str, Any], scale: _Scale, bottom: float) -> Iterator[str]:
    seconds = report["seconds"]
    for name, at in (("mounted", seconds["mounted"]), ("first output", seconds["first_output"])):
        if at is not None:
            x = scale.x(at)
            yield f'<line class="k" x1="{x}" x2="{x}" y1="{_TOP - 4}" y2="{bottom}"/>'
            anchor = "r" if x > _RIGHT - 90 else ""
            yield _text(x + (-4 if anchor else 4), _TOP + 8, f"{name} {at:.2f} s", anchor)


def _rows(report: Mapping[str, Any]) -> list[tuple[str, float, list[tuple[float, float]]]]:
    """Of each file its name, seconds waited, and begin and length of its waits; the rest in one row."""
    paths: list[str] = list(report.get("wait_paths") or ())
    bars: dict[str, list[tuple[float, float]]] = {}
    for begun, waited, number in report.get("waits") or ():
        bars.setdefault(paths[number], []).append((begun, waited))
    sums = {each["path"]: each["seconds"] for each in report.get("waits_by_file") or ()}
    order = sorted(bars, key=lambda path: (-sums.get(path, 0.0), path))
    rows = [(path, sums.get(path, 0.0), bars[path]) for path in order[:_FILES]]
    rest = order[_FILES:]
    if rest:
        more = [bar for path in rest for bar in bars[path]]
        rows.append((f"{len(rest)} other files", sum(sums.get(path, 0.0) for path in rest), more))
    return rows


def _waits(rows: list[tuple[str, float, list[tuple[float, float]]]], scale: _Scale) -> Iterator[str]:
    top = _BOTTOM + 48
    yield _text(20, top - 8, "reads that waited, by file" if rows else "no read had to wait")
    for number, (path, seconds, bars) in enumerate(rows):
        y = top + _ROW * number
        yield f'<line class="l" x1="{_LEFT}" x2="{_RIGHT}" y1="{y + _ROW - 3}" y2="{y + _ROW - 3}"/>'
        yield f"<g><title>{escape(path)}: {len(bars)} reads, {seconds:.3f} s</title>"
        yield _text(_LEFT - 8, y + 13, f"{_short(path, 42)} {seconds:.2f} s", "r p")
        for begun, waited in bars:
            if begun <= scale.end_s:
                x = scale.x(begun)
                width = max(scale.x(begun + waited) - x, 1.0)
                yield f'<rect class="w" x="{x}" y="{y + 2}" width="{width:.1f}" height="{_ROW - 8}" opacity="0.7"/>'
        yield "</g>"


def _y(count: float, most: float) -> float:
    return round(_BOTTOM - (_BOTTOM - _TOP - 14) * count / most, 1)


def _step(end_s: float) -> float:
    """Seconds between two marks: 1, 2 or 5 times a power of ten, some eight marks."""
    step = 0.001
    while True:
        for factor in (1, 2, 5):
            if end_s / (step * factor) <= 8:
                return step * factor
        step *= 10


def _text(x: float, y: float, text: str, name: str = "") -> str:
    of = f' class="{name}"' if name else ""
    return f'<text{of} x="{round(x, 1)}" y="{round(y, 1)}">{escape(text)}</text>'


def _short(text: str, most: int) -> str:
    """The end of ``text`` is what tells files apart."""
    return text if len(text) <= most else "…" + text[-most + 1 :]


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError
