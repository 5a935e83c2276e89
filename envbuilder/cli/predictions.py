"""The files of predicted digests of a project: read before a build, checked by it, written when they are news."""

from __future__ import annotations

from pathlib import Path

from envbuilder.cli.app import App
from envbuilder.errors import HostError
from envbuilder.lock.model import Lock
from envbuilder.lock.predicted import (
    MAX_SIZE,
    Predicted,
    PredictedLayer,
    WrongPrediction,
    differences,
    dump,
    layer_differences,
    load,
)
from envbuilder.spec.project import digests_file
from envbuilder.spec.toml import read_document
from envbuilder.store.files import write_whole


def read_predicted(project: Path, lock: Lock) -> Predicted | None:
    """What the project says that ``lock`` becomes; None when nobody said.

    Raises:
        InvalidPrediction, SpecError: the file is none, or cannot be read.
    """
    file = digests_file(project, lock.name, lock.platform)
    source = str(file.relative_to(project))
    data = read_document(file, most=MAX_SIZE, source=source)
    return None if data is None else load(data, source=source)


def check_predicted(predicted: Predicted | None, made: Predicted | PredictedLayer, lock: Lock) -> None:
    """Check an image, or one layer as soon as it is made, against what was predicted.

    Raises:
        WrongPrediction: names every layer that is not what it should be.
    """
    if predicted is None:
        return
    lines = layer_differences(predicted, [made]) if isinstance(made, PredictedLayer) else differences(predicted, made)
    if lines:
        raise WrongPrediction("\n".join(f"{lock.name}: predicted digests: {line}" for line in lines))


def record_predicted(
    app: App, project: Path, lock: Lock, made: Predicted, *, known: Predicted | None, forced: bool
) -> None:
    """Let the project say what ``lock`` became, unless it says so already.

    Raises:
        HostError: ``forced``, and the project cannot be written.
    """
    if known == made:
        return
    file = digests_file(project, lock.name, lock.platform)
    try:
        write_whole(file.parent, file, dump(made))
    except HostError as error:
        # Without it the next build asks more questions; it is none the worse.
        if forced:
            raise
        app.output.note(f"{lock.name}: digests not recorded: {error}")
        return
    app.output.note(f"{lock.name}: digests recorded in {file.relative_to(project)}")
