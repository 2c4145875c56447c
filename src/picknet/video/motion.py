"""How the picture moves, from the motion vectors that the decoder has read anyway."""

import av
import numpy as np
from av.codec.context import Flags2
from av.video.frame import PictureType
from av.video.stream import VideoStream
from numpy.typing import NDArray

from picknet.video.frame import GLANCE_SIZE, quarter_turns
from picknet.video.source import UnreadableVideo

DECODERS = frozenset({"flv", "h264", "mpeg1video", "mpeg2video", "mpeg4", "msmpeg4", "msmpeg4v2", "wmv1", "wmv2"})
"""Decoders of FFmpeg that give their motion vectors. Those of HEVC, VP8, VP9 and AV1 do not."""

_UNIT = 8
"""Pixels: sides of the smallest block that a vector is given for. Blocks are aligned to it."""
_MAX_WAITING = 20_000
"""Vectors that may wait to be added: many at once take a tenth of the time."""
_FINENESS = 16
"""A movement of 1 / _FINENESS of a glance's pixel is the first that is told from none."""


class NoMotionVectors(UnreadableVideo):
    """A video whose decoder gives no motion vectors."""


def export_vectors(stream: VideoStream, name: str) -> None:
    """Have the decoder give its motion vectors: to be called before it decodes anything.

    It must not decode several frames at once (threads for slices are possible): FFmpeg would give the vectors of a
    frame that another thread is still decoding.
    """
    decoder = stream.codec_context
    if decoder.name not in DECODERS:
        raise NoMotionVectors(
            f"{name}: its decoder ({decoder.name}) gives no motion vectors; "
            'model.glance = "motion" is possible for H.264, MPEG-4, MPEG-2 and MPEG-1'
        )
    decoder.flags2 |= Flags2.export_mvs


class Motion:
    """The motion of a video since the last call of `take`.

    Only the vectors of P-frames are added up: each points to the reference before it, so their sum is the way that the
    picture has gone, whether or not B-frames lie between. (A vector into an older reference counts for too much: FFmpeg
    does not tell which reference it is.)
    """

    def __init__(self, *, mirrored: bool = False) -> None:
        """mirrored: as for `Frame`."""
        self._mirrored = mirrored
        self._rows = self._columns = 0
        """Blocks of _UNIT × _UNIT pixels."""
        self._sums = np.zeros((3, 0))
        """Of each block: way to the right and down, in pixels, and number of vectors."""
        self._num_intra = self._num_predicted = 0
        """I-frames and P-frames."""
        self._waiting: list[NDArray[np.void]] = []
        """Vectors that are not in the sums yet, as bytes."""
        self._layout = np.dtype(np.void)

    def add(self, picture: av.VideoFrame) -> None:
        """Add the next picture in the order shown."""
        # Whole macroblocks: the vectors go beyond the edge of a picture whose sides are not multiples of 16.
        rows, columns = -(-picture.height // 16) * 2, -(-picture.width // 16) * 2
        if (rows, columns) != (self._rows, self._columns):
            self._rows, self._columns = rows, columns
            self._begin()
        if picture.pict_type == PictureType.I:
            self._num_intra += 1
        elif picture.pict_type == PictureType.P:
            self._num_predicted += 1
            found = picture.side_data.get("MOTION_VECTORS")
            if found is not None:
                vectors = found.to_ndarray()  # type: ignore[attr-defined]
                self._layout = vectors.dtype
                # A copy, since the vectors would keep their picture in memory; of plain bytes, since that is faster.
                self._waiting.append(vectors.view(np.dtype((np.void, vectors.itemsize))).copy())
                if sum(map(len, self._waiting)) > _MAX_WAITING:
                    self._add_waiting()

    def take(self, picture: av.VideoFrame) -> NDArray[np.uint8]:
        """The motion up to this picture, upright: uint8 (3, 56, 56). Begins anew.

        Channels 0 and 1: movement to the right and down, 128 ± 16 log₂(1 + 16 d) for d pixels of the glance; 128: none.
        Channel 2: 255 (1 − 2⁻ⁿ) for n frames in which the cell was intra-coded: its content is new, or a keyframe came.
        """
        self._add_waiting()
        right, down, covered = self._sums.reshape(3, self._rows, self._columns)
        # Interlaced blocks have a vector for each field.
        fields = np.maximum(covered / max(self._num_predicted, 1), 1)
        intra = self._num_intra + np.maximum(self._num_predicted - covered, 0)
        blocks = np.stack([right / fields, down / fields, intra])
        # The blocks may reach beyond the picture; what is there is not shown.
        right, down, intra = _averaged(blocks, picture.height / _UNIT, picture.width / _UNIT)
        right, down = right * GLANCE_SIZE / picture.width, down * GLANCE_SIZE / picture.height
        if self._mirrored:
            right, down, intra = right[::-1], -down[::-1], intra[::-1]
        turns = quarter_turns(picture)
        for _ in range(turns):  # to the left: what went right goes up, what went down goes right
            right, down = down, -right
        values = np.stack([_stored(right), _stored(down), 255 * (1 - np.exp2(-intra))])
        self._begin()
        glance = np.rot90(np.rint(values).astype(np.uint8), turns, axes=(1, 2))
        return np.ascontiguousarray(glance)

    def _begin(self) -> None:
        self._sums = np.zeros((3, self._rows * self._columns))
        self._num_intra = self._num_predicted = 0
        self._waiting.clear()

    def _add_waiting(self) -> None:
        if not self._waiting:
            return
        vectors = np.concatenate(self._waiting).view(self._layout)
        self._waiting.clear()
        scale = np.maximum(vectors["motion_scale"], 1)
        # A vector points from the block to where it was.
        right, down = -vectors["motion_x"] / scale, -vectors["motion_y"] / scale
        wide, high = vectors["w"].astype(np.int16), vectors["h"].astype(np.int16)
        left, top = (vectors["dst_x"] - wide // 2) // _UNIT, (vectors["dst_y"] - high // 2) // _UNIT
        right_end, bottom = left + wide // _UNIT, top + high // _UNIT
        within = (left >= 0) & (top >= 0) & (right_end <= self._columns) & (bottom <= self._rows)
        first = top.astype(np.intp) * self._columns + left
        for row, column in ((0, 0), (0, 1), (1, 0), (1, 1)):  # a block covers up to four of ours
            inside = np.flatnonzero((wide > column * _UNIT) & (high > row * _UNIT) & within)
            place = first[inside] + (row * self._columns + column)
            for total, weights in zip(self._sums, (right[inside], down[inside], None), strict=True):
                total += np.bincount(place, weights, minlength=len(total))


def _averaged(grid: NDArray[np.float64], height: float, width: float) -> NDArray[np.float64]:
    """(3, rows, columns), of which `height` × `width` are shown -> means of 56 × 56 equal rectangles: (3, 56, 56)"""
    return np.asarray(_weights(grid.shape[1], height) @ grid @ _weights(grid.shape[2], width).T)


def _weights(count: int, length: float) -> NDArray[np.float64]:
    """(56, count): the share of each block in each of 56 equal parts of the first `length` blocks."""
    edges = np.arange(GLANCE_SIZE + 1) * length / GLANCE_SIZE
    blocks = np.arange(count)
    overlap = np.minimum(edges[1:, None], blocks + 1) - np.maximum(edges[:-1, None], blocks)
    return np.asarray(np.clip(overlap, 0, None) * GLANCE_SIZE / length)


def _stored(moved: NDArray[np.float64]) -> NDArray[np.float64]:
    far = 16 * np.log2(1 + _FINENESS * np.abs(moved))
    return np.asarray(np.clip(128 + np.copysign(far, moved), 0, 255))
