"""Times as text: for people, for subtitles, and as time codes that count frames."""


def clock(seconds: float) -> str:
    """Hours, minutes and whole seconds: 0:01:05."""
    minutes, whole = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{whole:02d}"


def timestamp(seconds: float, *, point: str = ".") -> str:
    """Hours to milliseconds: 01:02:03.456. point: the decimal point, a comma in SubRip."""
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    minutes, whole = divmod(whole, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{whole:02d}{point}{milliseconds:03d}"


def timecode(frame: int, *, rate: int) -> str:
    """The SMPTE time code of a frame, without dropped numbers: 01:02:03:24. rate: whole frames a second."""
    seconds, frames = divmod(frame, rate)
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes // 60 % 24:02d}:{minutes % 60:02d}:{seconds:02d}:{frames:02d}"
