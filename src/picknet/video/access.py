"""What FFmpeg may open on behalf of a source. Files and streams from strangers are hostile.

A file may open nothing but itself: formats that refer to other files or hosts (playlists, lists of files, session
descriptions) are refused, and so is every protocol but the one the file is read with. A network stream may open other
network addresses, as HLS needs, but no files.
"""

import functools
from collections.abc import Set

import av

_NETWORK_FORMATS = frozenset({"applehttp", "dash", "hls", "rtp", "rtsp", "sap", "sdp", "webm_dash_manifest"})
"""Formats that make FFmpeg open other addresses."""
_LOCAL_FORMATS = frozenset({"avisynth", "concat", "dvdvideo", "imf", "lavfi", "vapoursynth", "vobsub"})
"""Formats that make FFmpeg open other files, or run filters."""
_NETWORK_PROTOCOLS = (
    "crypto,data,ftp,http,httpproxy,https,mmsh,mmst,rist,rtmp,rtmpe,rtmps,rtmpt,rtmpte,rtmpts,rtp,srt,srtp,tcp,tls"
    ",udp,udplite"
)


def file_options() -> dict[str, str]:
    """Options for a file that FFmpeg opens by its path."""
    # pattern_type: "%03d" in the name of a picture does not stand for numbers.
    return _options(_NETWORK_FORMATS | _LOCAL_FORMATS, protocols="file") | {"pattern_type": "none"}


def reader_options() -> dict[str, str]:
    """Options for bytes that Python reads for FFmpeg."""
    return _options(_NETWORK_FORMATS | _LOCAL_FORMATS, protocols="none")


def network_options(scheme: str) -> dict[str, str]:
    """Options for an address with this scheme."""
    return _options(_LOCAL_FORMATS, protocols=f"{scheme},{_NETWORK_PROTOCOLS}")


@functools.cache
def _allowed_formats(refused: Set[str]) -> str:
    names = {name for names in av.formats_available for name in names.split(",")}
    return ",".join(sorted(names - refused))


def _options(refused: Set[str], *, protocols: str) -> dict[str, str]:
    return {"format_whitelist": _allowed_formats(refused), "protocol_whitelist": protocols}
