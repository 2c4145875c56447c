"""Results in notebooks: a compact, self-contained piece of HTML."""

import base64
import io
from collections.abc import Sequence
from html import escape

from PIL import Image

from picknet.show.page import Picture, Thumbnail
from picknet.timecode import short_clock
from picknet.video.frame import middles

MAX_SIDE = 160
"""Pixels: the longer side of a frame."""
MAX_IMAGES = 12
"""More images than this are thinned out evenly: a notebook keeps them all in its file."""


def html(title: str, lines: Sequence[str], images: Sequence[Picture]) -> str:
    """The title, lines of facts in smaller type, and the images with their times; no script, nothing to download.

    Text has the colour of the notebook, so that it can be read in light and dark themes.
    """
    images = [images[position] for position in middles(len(images), MAX_IMAGES)]
    facts = "".join(f'<div style="opacity:.65;font-size:85%">{escape(line)}</div>' for line in lines)
    figures = "".join(_figure(image.seconds, _small(image)) for image in images)
    return (
        '<div style="font-family:sans-serif;line-height:1.4">'
        f'<div style="font-size:115%">{escape(title)}</div>{facts}'
        f'<div style="display:flex;flex-wrap:wrap;gap:6px;margin-top:6px">{figures}</div></div>'
    )


def _small(image: Picture) -> Image.Image:
    return Image.fromarray(Thumbnail.of(image, max_side=MAX_SIDE).pixels())


def _figure(seconds: float, image: Image.Image) -> str:
    content = io.BytesIO()
    image.save(content, "JPEG", quality=80)
    time = short_clock(seconds, tenths=True)
    return (
        '<figure style="margin:0">'
        f'<img alt="frame at {time}" width="{image.width}" height="{image.height}" '
        f'style="border-radius:4px" src="data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}">'
        f'<figcaption style="opacity:.65;font-size:75%">{time}</figcaption></figure>'
    )
