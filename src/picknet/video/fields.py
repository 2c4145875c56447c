"""Interlaced pictures: two fields, taken one after the other, whose lines alternate. Together, what moves is a comb.

FFmpeg scales each field for itself, so that even a small copy is one.
"""

import av
import numpy as np


def shown_field(picture: av.VideoFrame) -> av.VideoFrame:
    """Of an interlaced picture every second line from the first on, half as high: the others show another moment. A
    picture that is not interlaced as it is.
    """
    if not picture.interlaced_frame or any(plane.line_size < 0 for plane in picture.planes):
        return picture
    field = av.VideoFrame(picture.width, -(-picture.height // 2), picture.format.name)
    for stored, plane in zip(picture.planes, field.planes, strict=True):
        whole = np.frombuffer(bytes(stored), np.uint8).reshape(-1, stored.line_size)
        width = min(stored.line_size, plane.line_size)
        lines = np.zeros((plane.height, plane.line_size), np.uint8)
        lines[:, :width] = whole[: 2 * plane.height : 2, :width]
        plane.update(lines.tobytes())
    field.colorspace, field.color_range = picture.colorspace, picture.color_range
    return field
