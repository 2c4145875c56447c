"""A trained model: its folder, its graphs as functions on arrays, the search for a sentence. The only package that
imports OpenVINO."""

import os
import sys
from typing import Any

# OpenVINO reports its use to an analytics service when it is imported, and writes files into the home folder for it.
# A module that is None cannot be imported, and OpenVINO goes on without it.
_modules: dict[str, Any] = sys.modules
_modules.setdefault("openvino_telemetry", None)
# oneDNN, inside OpenVINO, would leave a file /tmp/perf-PID.map of every run, for profilers.
os.environ.setdefault("ONEDNN_JIT_PROFILE", "0")
