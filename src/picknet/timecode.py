"""Times as text: for people, for subtitles, and as time codes that count frames."""


def clock(seconds: float) -> str:
    """Hours, minutes and whole seconds: 0:01:05."""
    minutes, whole = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{whole:02d}"


def short_clock(seconds: float, *, tenths: bool = False) -> str:
    """A time as players show it: 0:03, 12:05, 1:02:03; with tenths 0:03.2.

    Without tenths the time is rounded down, with them to the nearest.
    """
    whole, tenth = divmod(round(seconds * 10), 10) if tenths else (int(seconds), 0)
    minutes, rest = divmod(whole, 60)
    shown = f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
    return f"{shown}.{tenth}" if tenths else shown


def duration(seconds: float) -> str:
    """14.2 s, and from a minute on 1:03."""
    return f"{seconds:.1f} s" if round(seconds, 1) < 60 else short_clock(round(seconds))


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
