"""The paper's two histograms of picks, drawn by hand."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from picknet.show.page import FAINT, GREEN, GREY, INK, INNER_WIDTH, PAPER, BadFigure, beside, counted, page, typeface


def pick_histograms(counts: Sequence[int], positions: Sequence[float], *, num_frames: int) -> Image.Image:
    """The paper's two figures: how many frames are picked of a clip, and where in the clip they stand.

    counts: picks of each clip. positions: of all picks, whole numbers 0…num_frames − 1 or fractions of the clip 0…1.
    """
    if not len(counts) or not len(positions):
        raise BadFigure("the histograms of picks need at least one clip with a pick")
    where = np.asarray(positions)
    if where.dtype.kind == "f":
        where = (where * num_frames).astype(int)
    where = where.clip(0, num_frames - 1)
    size = ((INNER_WIDTH - 60) // 2, 520)
    per_count = np.bincount(np.asarray(counts), minlength=min(num_frames, 10) + 1)[1:] / len(counts)
    per_position = np.bincount(where, minlength=num_frames) / len(where)
    of_clips = f"share of the clips in % · {counted(len(counts), 'clip')}, {np.mean(counts):.1f} picks on average"
    of_picks = f"share of the picks in % · {counted(len(where), 'pick')}"
    charts = [
        _bar_chart(per_count, "Number of picks", of_clips, "picks in a clip", size=size),
        _bar_chart(per_position, "Position of the picks", of_picks, f"place among {num_frames} frames", size=size),
    ]
    return page(beside(charts, 60))


def _bar_chart(shares: NDArray[Any], title: str, note: str, axis: str, *, size: tuple[int, int]) -> Image.Image:
    """shares: (n,), of the places 1…n -> bars over two axes, with lines at round percents"""
    image = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(image)
    left, right, top, bottom = 56, size[0] - 8, 130, size[1] - 80
    draw.text((0, 0), title, fill=INK, font=typeface(36))
    draw.text((0, 50), note, fill=GREY, font=typeface(22))
    draw.text(((left + right) / 2, size[1]), axis, fill=GREY, font=typeface(22), anchor="mb")
    highest = max(float(shares.max()) * 100, 1)
    step = next(step for step in (0.2, 0.5, 1, 2, 5, 10, 20) if highest / step <= 5)
    num_steps = math.ceil(highest / step)
    for number in range(num_steps + 1):
        y = bottom - (bottom - top) * number / num_steps
        draw.line((left, y, right, y), fill=FAINT if number else GREY, width=2)
        draw.text((left - 14, y), f"{number * step:g}", fill=GREY, font=typeface(22), anchor="rm")
    pitch = (right - left) / len(shares)
    every = next(every for every in (1, 5, 20, 100, len(shares)) if len(shares) <= 15 * every)
    for place, share in enumerate(shares, start=1):
        x, half = left + (place - 0.5) * pitch, 0.38 * pitch
        y = min(bottom - (bottom - top) * float(share) * 100 / (num_steps * step), bottom - 3)
        if share > 0:
            draw.rectangle((round(x - half), round(y), round(x + half), bottom), fill=GREEN)
        if share > 0 and every == 1:
            percent = f"{share * 100:.0f}" if share >= 0.005 else "<1"
            draw.text((x, y - 6), percent, fill=INK, font=typeface(20), anchor="mb")
        if place == 1 or place % every == 0:
            draw.text((x, bottom + 12), str(place), fill=GREY, font=typeface(22), anchor="mt")
    return image
