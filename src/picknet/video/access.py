"""What FFmpeg may open on behalf of a source, and how large its pictures may be. Files from strangers are hostile.

A file may open nothing but itself: only plain containers and pictures are read, so that no playlist, list of files or
session description is, and no protocol but the one the file is read with. A network stream may open other network
addresses, as HLS needs, but no files.
"""

import os
from pathlib import Path
from typing import Any

import av
from av.container import InputContainer
from av.video.stream import VideoStream

from picknet.errors import BadSetting
from picknet.video.frame import TOO_NARROW, is_narrow
from picknet.video.source import UnreadableVideo

_CONTAINERS = (
    "amv,apng,asf,av1,avi,avs2,avs3,cavsvideo,dhav,dirac,dnxhd,dv,evc,flv,gif,gxf,h261,h263,h264,hevc,ivf,jpegxl_anim"
    ",live_flv,m4v,matroska,mjpeg,mjpeg_2000,mov,mp4,mpeg,mpegts,mpegvideo,mpjpeg,mxf,nsv,nut,nuv,obu,ogg,pva,r3d,rm"
    ",smjpeg,swf,ty,vc1,vc1test,vvc,webm,wtv,yuv4mpegpipe"
)
"""Formats of FFmpeg that hold a video and refer to nothing outside of it."""
_PICTURES = (
    "image2,bmp_pipe,dpx_pipe,exr_pipe,gif_pipe,hdr_pipe,ico,j2k_pipe,jpeg_pipe,jpegls_pipe,jpegxl_pipe,pam_pipe"
    ",pbm_pipe,pcx_pipe,pgm_pipe,png_pipe,ppm_pipe,psd_pipe,qoi_pipe,sgi_pipe,sunrast_pipe,tiff_pipe,webp,webp_pipe"
)
"""The same for still pictures. image2 is what FFmpeg takes a name such as a.jpg for."""
_SPLIT_SUFFIX = ".y"
"""Of such a name, image2 reads the luma, and the chroma from files beside it."""
_STREAMS = "aac,ac3,dash,hls,mp3,rtp,rtsp,sdp,webvtt"
"""Beside these, what a network stream may have: playlists, which make FFmpeg open other addresses, and their items."""
_NETWORK_PROTOCOLS = (
    "crypto,data,ftp,http,httpproxy,https,mmsh,mmst,rist,rtmp,rtmpe,rtmps,rtmpt,rtmpte,rtmpts,rtp,srt,srtp,tcp,tls"
    ",udp,udplite"
)

MAX_PIXELS = 2**26
"""Pixels of a picture, by default: 8192 × 8192, twice what 8K television has. A picture takes 100 to 270 MB."""
ROW_ALIGNMENT = 64
"""FFmpeg pads the rows of a picture to a multiple of at most so many pixels."""
MAX_PICTURES_HELD = 32
"""So many pictures of as many pixels may be held at a time, or more of smaller ones: a thousand of 1920 × 1080."""
MAX_PIXELS_VARIABLE = "PICKNET_MAX_PIXELS"
"""The environment variable that sets another limit, for worker processes as well."""


def max_pixels() -> int:
    """The most pixels that a picture of a video may have."""
    stored = os.environ.get(MAX_PIXELS_VARIABLE) or str(MAX_PIXELS)
    if not stored.isdecimal() or not 1 <= int(stored) < 2**31:
        raise BadSetting(f"{MAX_PIXELS_VARIABLE} is {stored!r}: a number of pixels from 1 to {2**31 - 1:,} is possible")
    return int(stored)


def opened(file: Any, options: dict[str, str], **arguments: Any) -> InputContainer:
    """PyAV's container. Titles and other tags need not be UTF-8: nobody reads them here."""
    # Without the limit on pixels, looking for the streams would already decode the first picture of each.
    options = options | {"max_pixels": str(max_pixels())}
    container: InputContainer = av.open(file, options=options, metadata_errors="replace", **arguments)
    return container


def check_size(stream: VideoStream, name: str) -> None:
    """Refuse a stream of too large pictures, and see to it that its decoder refuses those that come later."""
    width, height = stream.codec_context.width, stream.codec_context.height
    check_pixels(width, height, name)
    # FFmpeg counts the columns that it pads rows with, whose number depends on the processor.
    limit = max(max_pixels(), -(-width // ROW_ALIGNMENT) * ROW_ALIGNMENT * height)
    stream.codec_context.options = {**stream.codec_context.options, "max_pixels": str(limit)}


def check_pixels(width: int, height: int, name: str, *, what: str = "its pictures have") -> None:
    """Raise `UnreadableVideo` for pictures that are too large, or too narrow to be scaled."""
    if is_narrow(width, height):
        raise UnreadableVideo(f"{name}: {what} {width:,} × {height:,} pixels: {TOO_NARROW}")
    if width * height > (limit := max_pixels()):
        raise UnreadableVideo(
            f"{name}: {what} {width:,} × {height:,} = {width * height:,} pixels: at most {limit:,} are "
            f"decoded; --max-pixels or {MAX_PIXELS_VARIABLE} sets another limit"
        )


def check_held(num_frames: int, width: int, height: int, name: str) -> None:
    """Raise `BadSetting` if so many frames of a video are too many to be held in memory."""
    if num_frames * width * height > (limit := MAX_PICTURES_HELD * max_pixels()):
        raise BadSetting(
            f"{name}: {num_frames:,} frames of {width:,} × {height:,} pixels are too many to hold in memory: at most "
            f"{limit // (width * height):,} are possible, or more with a higher --max-pixels or {MAX_PIXELS_VARIABLE}"
        )


def file_options(path: Path) -> dict[str, str]:
    """Options for a file that FFmpeg opens by its path."""
    pictures = _PICTURES.removeprefix("image2,") if path.suffix.lower() == _SPLIT_SUFFIX else _PICTURES
    # pattern_type: "%03d" in the name of a picture does not stand for numbers.
    return _options(f"{_CONTAINERS},{pictures}", protocols="file") | {"pattern_type": "none"}


def reader_options() -> dict[str, str]:
    """Options for bytes that Python reads for FFmpeg."""
    return _options(f"{_CONTAINERS},{_PICTURES}", protocols="none")


def network_options(scheme: str) -> dict[str, str]:
    """Options for an address with this scheme."""
    return _options(f"{_CONTAINERS},{_PICTURES},{_STREAMS}", protocols=f"{scheme},{_NETWORK_PROTOCOLS}")


def _options(formats: str, *, protocols: str) -> dict[str, str]:
    return {"format_whitelist": formats, "protocol_whitelist": protocols}
