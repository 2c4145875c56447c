"""Examples of answers for the OpenAPI document, made by the code that makes the answers, so that their keys agree."""

import json
from typing import Any

from picknet.model.confidence import DOUBTFUL
from picknet.model.sentences import Sentence
from picknet.picking.picker import Pick
from picknet.results import Caption, Segment
from picknet.serve.jobs import Job, State
from picknet.timeline import as_json

_TEXT = "a bird is walking"
_PICKS = (Pick(5, 1.8, 0.41, 45), Pick(19, 6.24, 0.37, 156))
_VIDEO, _MODEL = "cockatoo.mp4", "msvd"

CAPTION: dict[str, Any] = Caption(
    _TEXT, _PICKS, 30, _VIDEO, _MODEL, None, -4.2, 0.7, (Sentence(_TEXT, -4.2),), 9.6
).to_dict()

FRAMES: list[dict[str, Any]] = [
    {"video": _VIDEO, **pick.to_dict(), "width": 640, "height": 360, "media_type": "image/jpeg", "data": "/9j/4AAQ…"}
    for pick in _PICKS
]

TIMELINE: dict[str, Any] = json.loads(
    "".join(as_json([Segment(0.0, 9.6, _TEXT, 0.7, _PICKS, None, _VIDEO, _MODEL)], video=_VIDEO, model=_MODEL))
)

MODEL = {"model": _MODEL, "doubtful_below": DOUBTFUL}

JOB: dict[str, Any] = Job(
    "film.mp4", id="4kO0Xw1Jr2mDq8cUuV9s7A", state=State.running, seconds=312.5, total_seconds=5400.0
).to_dict()
