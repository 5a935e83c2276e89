"""``python runner.py LAYOUT FOLDER OPTIONS COMMAND...``: run a command on a node of a test, as the CLI would."""

import dataclasses
import json
import sys
from pathlib import Path

from envbuilder.errors import EnvbuilderError
from envbuilder.mount.run import RunOptions, run_image
from envbuilder.testing.nodes import make_node

node = make_node(Path(sys.argv[1]), Path(sys.argv[2]))
options = json.loads(sys.argv[3])
settings = dataclasses.replace(node.settings, **options.pop("settings", {}))
report_file = options.pop("report", "")
try:
    report = run_image(node.image, node.source, settings, RunOptions(command=tuple(sys.argv[4:]), **options))
except EnvbuilderError as error:
    sys.exit(f"{type(error).__name__}: {error}")
if report_file:
    Path(report_file).write_text(json.dumps(report.to_json()))
sys.exit(report.exit_code)
