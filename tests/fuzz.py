"""A fuzzer: videos, playlists and model folders with random damage must end in a caption or in a `PicknetError`.

Of a video whose index is damaged, but which decodes from its first packet to its last, every sampled frame must also
be the one that this gives.

    python tests/fuzz.py --cases 10000 --seconds 3600

Case n of a seed is always the same, so that `--only n` repeats it. Cases run one after the other in a child process
with a limit on memory; one that takes too long, or ends the process, is a failure like any other error. The files of a
failed case are kept in the folder `--keep`.
"""

import argparse
import collections
import contextlib
import copy
import hashlib
import io
import itertools
import json
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import clips
import numpy as np

from picknet.model.folder import PARTS

Random = random.Random

MAX_SECONDS = 20.0
"""Of processor time that a case may take. A healthy one takes some hundredths, with a model to compile up to four."""
MAX_WAIT = 120.0
"""Seconds after which a case hangs, even on a busy machine."""
MAX_BYTES = 3 << 30
"""Of private memory that the child may have; OpenVINO and FFmpeg reserve about one gigabyte of it."""
MAX_RESIDENT_KB = 2_000_000
"""Of memory that the child may really use: to pick from a GIF of 8192 × 8192 takes most of it."""
KINDS = {"video": 16, "index": 10, "playlist": 3, "model": 1}
"""Kinds of cases, and how often each comes."""


RICH_CARD = Path(__file__).parents[1] / "src/picknet/models/msvd/card.json"
"""A card with everything that a card can have."""


# --- Damage ----------------------------------------------------------------------------------------------------------

NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)


def damaged(content: bytes, others: list[bytes], rng: Random) -> bytes:
    """The content after one to eight random changes."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        # The beginning holds headers, where damage does most.
        place = int(len(data) * rng.random() ** rng.choice((1, 3)))
        length = min(int(2 ** rng.uniform(0, 12)), max(len(data) // 4, 1))
        change = rng.randrange(8)
        if change == 0 and data:
            data[min(place, len(data) - 1)] ^= 1 << rng.randrange(8)
        elif change == 1:
            data[place : place + length] = rng.randbytes(length)
        elif change == 2:
            size = rng.choice((1, 2, 4, 8))
            number = rng.choice(NUMBERS) & (256**size - 1)
            data[place : place + size] = number.to_bytes(size, rng.choice(("big", "little")))
        elif change == 3:
            del data[place:]
        elif change == 4:
            del data[place : place + length]
        elif change == 5:
            data[place:place] = data[place : place + length] * rng.choice((1, 1, 50))
        elif change == 6 and others:
            other = rng.choice(others)
            start = rng.randrange(len(other))
            data[place : place + length] = other[start : start + length]
        else:
            data[place : place + length] = bytes([rng.choice((0, 255))]) * length
    return bytes(data)


SIDES = (1, 2, 3, 255, 256, 2048, 2049, 8192, 65535)


def on_canvas(gif: bytes, rng: Random) -> bytes:
    """The same GIF on a canvas with sides that are hard to decode or to scale."""
    sides = b"".join(rng.choice(SIDES).to_bytes(2, "little") for _ in range(2))
    return gif[:6] + sides + gif[10:]


BOXES = (b"stts", b"ctts", b"stss", b"stsz", b"stsc", b"stco", b"elst", b"mvhd", b"tkhd", b"mdhd", b"sdtp")
"""What an MP4 tells about its packets and their times: a size of four bytes, the name, the content."""
FRAGMENT_BOXES = (b"mfhd", b"tfhd", b"tfdt", b"trun", b"trex", b"sidx", b"tfra", b"mvex")
CHUNKS = (b"idx1", b"indx", b"avih", b"strh")
"""The same of an AVI: the name, a size of four bytes, the content."""
ELEMENTS = (b"\x1c\x53\xbb\x6b", b"\x11\x4d\x9b\x74", b"\x15\x49\xa9\x66", b"\x1f\x43\xb6\x75")
"""The same of a Matroska file: cues, the list of elements, the header, and clusters of packets with their times."""
ELEMENT_BYTES = 16
"""So much of an element is changed at most: of a cluster its size and time, and not the packets."""


def damaged_index(content: bytes, rng: Random) -> bytes:
    """The content after one to four changes of its index: of numbers, or a part is hidden. All stays where it is."""
    data = bytearray(content)
    parts = []
    for name in BOXES + FRAGMENT_BOXES + CHUNKS + ELEMENTS:
        place = content.find(name)
        while place >= 0:
            start, order = place + 4, "big"
            if name in CHUNKS:
                start, order, size = start + 4, "little", int.from_bytes(content[start : start + 4], "little")
            else:
                size = int.from_bytes(content[place - 4 : place], "big") - 8
            parts.append((place, start, ELEMENT_BYTES if name in ELEMENTS else min(size, len(data) - start), order))
            place = content.find(name, place + 1)
    for _ in range(rng.choice((1, 1, 2, 4))):
        name, start, size, order = rng.choice(parts)
        if rng.random() < 0.1:
            data[name : name + 4] = b"free"
            continue
        width = rng.choice((1, 2, 4, 4, 4))
        places = range(start, start + size - width + 1, min(width, 4))
        if not places:
            continue
        place, other = rng.choice(places), rng.choice(places)
        number = int.from_bytes(data[place : place + width], order)
        different = rng.choice((number + rng.choice((-2, -1, 1, 2)), number ^ 1 << rng.randrange(8 * width), 0))
        match rng.randrange(4):
            case 0:
                data[place : place + width] = data[other : other + width]
            case 1:
                data[place : place + width] = rng.choice(NUMBERS).to_bytes(8, "big")[-width:]
            case 2:
                data[place : place + width], data[other : other + width] = (
                    data[other : other + width],
                    data[place : place + width],
                )
            case _:
                data[place : place + width] = (different % 256**width).to_bytes(width, order)
    return bytes(data)


LIST_STARTS = (b"#EXTM3U", b"ffconcat", b"<", b"v=0")


def playlist(folder: Path, name: str, rng: Random) -> bytes:
    """A list of files that names itself, its neighbours, files of the system or hosts, for ever or not."""
    entries = [name, "healthy.mp4", str(folder / "healthy.mp4"), f"file://{folder}/healthy.mp4", "/etc/passwd"]
    entries += ["http://127.0.0.1:9/a.ts", "concat:healthy.mp4|healthy.mp4", "subfile,,start,0,end,0,,:healthy.mp4"]
    chosen = [rng.choice(entries) for _ in range(int(2 ** rng.uniform(0, 11)))]
    kind = rng.randrange(6)
    if kind == 0:
        lines = ["#EXTM3U", "#EXT-X-TARGETDURATION:1", *(line for one in chosen for line in ("#EXTINF:1,", one))]
        text = "\n".join(lines + ["#EXT-X-ENDLIST"] * rng.randrange(2))
    elif kind == 1:
        text = "#EXTM3U\n" + "".join(f"#EXT-X-STREAM-INF:BANDWIDTH=1\n{one}\n" for one in chosen)
    elif kind == 2:
        text = "ffconcat version 1.0\n" + "".join(f"file '{one}'\n" for one in chosen)
    elif kind == 3:
        urls = "".join(f"<BaseURL>{one}</BaseURL>" for one in chosen)
        text = f'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011">{urls}</MPD>'
    elif kind == 4:
        text = "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=video 5004 RTP/AVP 96\r\n"
    else:
        text = f'<svg xmlns="http://www.w3.org/2000/svg"><image href="{chosen[0]}"/></svg>'
    return text.encode()


def damaged_json(content: bytes, rng: Random) -> bytes:
    """JSON in which a value has become another one."""
    odd = (None, True, -1, 1e308, float("nan"), "", "\x1b[31m", [], {}, [[]], {"": {}}, "x" * 10_000)
    card = json.loads(content)
    for _ in range(rng.randint(1, 3)):
        place = card
        while isinstance(place, dict) and place:
            key = rng.choice(list(place))
            if not isinstance(place[key], dict) or rng.random() < 0.3:
                place[key] = copy.deepcopy(rng.choice(odd))
                break
            place = place[key]
    return json.dumps(card).encode()


def damaged_toml(content: bytes, rng: Random) -> bytes:
    """Settings of which some have another value."""
    lines = content.decode().splitlines()
    values = ("0", "-1", "1", "1e308", "nan", '""', "true", "[]", "[[[]]]", "2147483648", "0xffffffffffffffff", "{}")
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(lines))
        name, equals, _ = lines[place].partition("=")
        lines[place] = f"{name}= {rng.choice(values)}" if equals else rng.choice(["", "[", *lines])
    return ("\n".join(lines) + "\n").encode()


def deep_toml(rng: Random) -> bytes:
    """One name of many parts, as a setting, a group or in a table, or brackets in each other."""
    depth = int(2 ** rng.uniform(3, 15))
    name = rng.choice((".", " . ")).join([rng.choice(("a", '"a"', "'a'"))] * depth)
    text = rng.choice(
        (f"{name} = 1", f"[{name}]", f"[[{name}]]", f"beam = {{{name} = 1}}", "beam = " + "[" * depth, "a={" * depth)
    )
    return f"{rng.choice(('', '# it is', 'x = 1.5'))}\n{text}\n".encode()


def large_text(content: bytes, rng: Random) -> bytes:
    """A text of up to 60 MB: lists in a list, or its lines again and again."""
    num_bytes = int(2 ** rng.uniform(14, 26))
    start, piece, end = rng.choice(((b"[", b"[],", b"[]]"), (b"", content or b"\n", b"\n"), (b"", b"a\n", b"")))
    return start + piece * (num_bytes // len(piece)) + end


def make_odd(path: Path, rng: Random) -> None:
    """Put a pipe, a link, a folder or a huge file in the place of a part."""
    path.unlink(missing_ok=True)
    match rng.randrange(4):
        case 0:
            os.mkfifo(path)
        case 1:
            path.symlink_to(rng.choice(("/etc/passwd", "/dev/zero", path.name, "words.txt", "none")))
        case 2:
            path.mkdir()
        case _:
            path.touch()
            os.truncate(path, rng.choice((0, 1 << 20, 3 << 30)))


# --- Cases -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Corpus:
    """What is damaged: healthy videos, and a healthy model folder."""

    videos: dict[str, bytes]
    indexed: dict[str, bytes]
    """Videos of several groups of frames, in containers with an index."""
    model: Path

    @classmethod
    def made(cls, folder: Path, model: Path) -> "Corpus":
        folder.mkdir(parents=True, exist_ok=True)
        for suffix in ("mp4", "mkv", "avi", "flv", "ts", "h264", "mov"):
            clips.write_clip(folder / f"x264.{suffix}", num_frames=12)
        clips.write_clip(folder / "sound.mp4", num_frames=12, with_audio=True)
        clips.write_clip(folder / "first.mp4", num_frames=12, index_first=True)
        clips.write_clip(folder / "mpeg4.avi", num_frames=12, codec="mpeg4")
        clips.write_clip(folder / "mpeg2.mpg", num_frames=12, codec="mpeg2video")
        clips.write_clip(folder / "vp8.webm", num_frames=6, codec="libvpx")
        clips.write_clip(folder / "wmv2.wmv", num_frames=12, codec="wmv2")
        clips.write_clip(folder / "theora.mjpeg", num_frames=6, codec="mjpeg", pixel_format="yuvj420p")
        clips.write_packed_avi(folder / "packed.avi", num_frames=12)
        clips.write_gif(folder / "clip.gif", num_frames=6)
        videos = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
        groups = {"x264-params": "keyint=15:bframes=2:b-adapt=0:scenecut=0"}
        for suffix in ("mp4", "mov", "mkv", "avi"):
            clips.write_clip(folder / f"groups.{suffix}", num_frames=90, options=groups)
        closed = {"x264-params": "keyint=12:bframes=0:scenecut=0"}
        clips.write_clip(folder / "first.groups.mp4", num_frames=72, options=closed, index_first=True, with_audio=True)
        clips.write_clip(folder / "closed.groups.avi", num_frames=60, options=closed)
        unordered = clips.write_clip(folder / "order.groups.avi", num_frames=60, options={"profile": "main", **groups})
        unordered.write_bytes(clips.without_order(unordered.read_bytes()))
        clips.write_clip(folder / "mpeg4.groups.mp4", num_frames=60, codec="mpeg4", options={"g": "15"})
        clips.write_clip(folder / "mpeg4.groups.avi", num_frames=60, codec="mpeg4", options={"g": "15", "bf": "0"})
        clips.write_clip(folder / "vp8.groups.webm", num_frames=40, codec="libvpx", options={"g": "10"})
        clips.fragment(folder / "groups.mp4", folder / "fragments.groups.mp4")
        indexed = {path.name: path.read_bytes() for path in sorted(folder.glob("*groups*"))}
        return cls(videos, indexed, model)


def write_case(corpus: Corpus, seed: int, number: int, folder: Path) -> tuple[str, Path, Random]:
    """Write the files of a case into an empty folder -> its kind, what is to be read, and its generator."""
    rng = Random(f"{seed}/{number}")
    kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
    if kind == "model":
        path = folder / "model"
        path.mkdir()
        part = rng.choice(sorted(one.name for one in corpus.model.iterdir() if one.name != "README.md"))
        for one in corpus.model.iterdir():
            if one.name != "manifest.json" or part == "manifest.json" or rng.random() < 0.1:
                os.link(one, path / one.name)
        content = (path / part).read_bytes()
        if part == "card.json" and rng.random() < 0.7:
            content = RICH_CARD.read_bytes()
        (path / part).unlink(missing_ok=True)
        if rng.random() < 0.2:  # other parts are missing, or are no parts
            for name in rng.sample(PARTS, rng.randint(1, 2)):
                (path / name).unlink(missing_ok=True)
            make_odd(path / rng.choice(PARTS), rng)
        if rng.random() < 0.1:
            make_odd(path / part, rng)
            return kind, path, rng
        if part.endswith((".json", ".txt", ".toml")) and rng.random() < 0.2:
            content = large_text(content, rng)
        elif part == "config.toml" and rng.random() < 0.3:
            content = deep_toml(rng)
        elif part.endswith(".json") and rng.random() < 0.7:
            content = damaged_json(content, rng)
        elif part == "config.toml" and rng.random() < 0.7:
            content = damaged_toml(content, rng)
        else:
            content = damaged(content, [], rng)
        if not os.path.lexists(path / part):
            (path / part).write_bytes(content)
        return kind, path, rng
    if kind == "playlist":
        (folder / "healthy.mp4").write_bytes(corpus.videos["x264.mp4"])
        path = folder / rng.choice(("list.m3u8", "list.mp4", "list.ts", "list.txt", "list.mpd", "list.sdp", "l%d.png"))
        content = playlist(folder, path.name, rng)
        path.write_bytes(content if rng.random() < 0.8 else damaged(content, [], rng))
        return kind, path, rng
    if kind == "index":
        name = rng.choice(list(corpus.indexed))
        path = folder / name
        path.write_bytes(damaged_index(corpus.indexed[name], rng))
        return kind, path, rng
    name = rng.choice(list(corpus.videos))
    other = rng.choice([".Y", *(Path(one).suffix for one in corpus.videos)])
    suffix = Path(name).suffix if rng.random() < 0.8 else other
    path = folder / (rng.choice(("case", "case%03d", "a:b", "caf\udce9")) + suffix)  # the last is not UTF-8
    if suffix == ".gif" and rng.random() < 0.7:
        path.write_bytes(on_canvas(corpus.videos["clip.gif"], rng))
    else:
        path.write_bytes(damaged(corpus.videos[name], list(corpus.videos.values()), rng))
    return kind, path, rng


def run_case(captioner: Any, kind: str, path: Path, rng: Random) -> str:
    """Do with the case what users do -> what came of it. Errors are those of picknet."""
    from picknet.captioner import load
    from picknet.cli import main
    from picknet.video.file import stored_seconds

    if kind == "model":
        printed = io.StringIO()
        both = contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed)
        with both[0], both[1], contextlib.suppress(SystemExit):
            main(["info", str(path), "--format", rng.choice(("text", "json", "csv", "markdown"))])
        assert "\x1b" not in printed.getvalue(), "an escape code reached the terminal"
        pixels = np.random.default_rng(0).integers(0, 256, (6, 64, 64, 3), dtype=np.uint8)
        return load(path).caption(pixels).text
    stored_seconds(path)
    uses: list[Callable[[], object]] = [
        lambda: captioner.caption(path),
        lambda: captioner.caption(path.read_bytes()),
        lambda: captioner.caption(path, picker=captioner.counted_picker(3)),
        lambda: list(captioner.timeline(path)),
        lambda: captioner.pick(path, budget=3),
        lambda: list(captioner.stream(path)),
    ]
    if kind == "index":
        return compare_frames(path, rng)
    result = str(rng.choice(uses)())
    # Damage at its beginning can make it a video of its own: three bytes do for H.263.
    if kind == "playlist" and path.read_bytes().startswith(LIST_STARTS):
        raise AssertionError(f"a playlist has frames, which are not its own: {result}")
    return result


def compare_frames(path: Path, rng: Random) -> str:
    """Sample frames of a video in one way -> how many of them were compared with those of decoding all of it."""
    from picknet.video.content import content_of
    from picknet.video.file import MOST_DELAYED, Video
    from picknet.video.passes import Damage, Pass

    count, fps = rng.randint(1, 12), rng.choice((0.3, 1.0, 2.5, 7.0, 25.0))
    samplings: list[Callable[[Video], Iterable[Any]]] = [
        lambda video: video.sample_evenly(count=count),
        lambda video: video.sample_evenly(count=count, only=set(rng.sample(range(count), rng.randint(1, count)))),
        lambda video: video.sample_by_time(fps=fps),
        lambda video: video.sample_sparsely(fps=fps),
    ]
    with Video(path) as video:
        frames = rng.choice(samplings)(video)
        sampled = [(frame.number, frame._picture.pts, _digest(frame._picture)) for frame in frames]
        num_frames = video.num_samples(sys.maxsize)
    with contextlib.closing(Pass(content_of(path, timeout=0), Damage())) as packets:
        stored = [packet.pts for packet in packets.packets()]
    damage = Damage()
    with contextlib.closing(Pass(content_of(path, timeout=0), damage, threads=1)) as everything:

        def decoded() -> list[tuple[int | None, bytes]]:
            return [(picture.pts, _digest(picture)) for picture, _ in everything.timed_pictures()]

        pictures = decoded()
        guesses_times = everything.guesses_times
        # Where a packet lacks data, FFmpeg's VP8 decoder shows what earlier pictures left there, and says nothing.
        if everything.stream.codec_context.name == "vp8" and everything.rewind() and decoded() != pictures:
            damage.undecodable = "its pictures are others when they are decoded again"
    if str(damage):
        return "frames of a damaged video"
    times = [pts for pts, _ in pictures]
    if guesses_times or None in times or (not _is_sorted(times[:MOST_DELAYED]) and _is_sorted(stored[:MOST_DELAYED])):
        # Then a frame is known by its number.
        wrong = [number for number, _, digest in sampled if pictures[number][1] != digest]
    else:
        # Damage to the sound may end the reading of both a little early.
        wrong = [number for number, *frame in sampled if tuple(frame) not in pictures and frame[0] <= times[-1]]
        if len({later - earlier for earlier, later in itertools.pairwise(times)}) == 1 and len(times) == num_frames:
            wrong += [number for number, pts, _ in sampled if times[number] != pts]
    assert not wrong, f"frames {wrong} are not those that decoding everything gives"
    return "the frames of decoding everything"


def _is_sorted(times: list[Any]) -> bool:
    return None not in times and times == sorted(times)


def _digest(picture: Any) -> bytes:
    return hashlib.sha256(picture.to_ndarray(format="rgb24").tobytes()).digest()


# --- The child -------------------------------------------------------------------------------------------------------


def serve(connection: Any, model: Path) -> None:
    """Run cases as they come: (kind, path, state of the generator) -> (what came of it, is it a failure, kilobytes)"""
    os.environ["PICKNET_CACHE"] = str(model.parent / "fuzz-cache")
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_BYTES, MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # FFmpeg and OpenVINO say much about damage
        os.dup2(silence, descriptor)
    from picknet.captioner import load
    from picknet.errors import PicknetError

    captioner = load(model)
    captioner.caption(np.zeros((2, 64, 64, 3), np.uint8))
    connection.send(None)
    while True:
        kind, path, state = connection.recv()
        rng = Random()
        rng.setstate(state)
        try:
            answer, is_failure = run_case(captioner, kind, path, rng), False
            answer = answer if kind == "index" else "a caption"
        except PicknetError as error:
            is_failure = "\n" in str(error)
            answer = f"an error of two lines: {error}" if is_failure else type(error).__name__
        except Exception:  # noqa: BLE001 - this is what the fuzzer looks for
            answer, is_failure = traceback.format_exc(), True
        used = _peak_kb()
        if used > MAX_RESIDENT_KB and not is_failure:
            answer, is_failure = f"{used:,} kB of memory", True
        connection.send((answer, is_failure, used))


def _peak_kb() -> int:
    """The largest resident memory of this process; `getrusage` tells that of the process that started it, if larger."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _processor_seconds(process: int) -> float:
    """What a process has used so far, as Linux tells it."""
    after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


class Child:
    """A process that runs cases; a new one is started where it ended."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self._process: Any = None
        self._connection: Any = None

    def run(self, kind: str, path: Path, rng: Random) -> tuple[str, bool, int]:
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=serve, args=(theirs, self._model), daemon=True)
            self._process.start()
            theirs.close()
            self._connection.recv()
        try:
            self._connection.send((kind, path, rng.getstate()))
            start, began = time.monotonic(), _processor_seconds(self._process.pid)
            while not self._connection.poll(0.5):
                if time.monotonic() - start > MAX_WAIT or _processor_seconds(self._process.pid) - began > MAX_SECONDS:
                    self.close()
                    return f"no end after {time.monotonic() - start:.0f} s", True, 0
            answer: tuple[str, bool, int] = self._connection.recv()
            if answer[2] > MAX_RESIDENT_KB:
                self.close()  # what it has used is not given back
            return answer
        except (EOFError, OSError):
            code = self.close()
            return f"the process ended with {code}", True, 0

    def close(self) -> int | None:
        if self._process is None:
            return None
        with contextlib.suppress(OSError):
            self._connection.close()
        self._process.join(1)
        self._process.kill()
        self._process.join()
        code: int | None = self._process.exitcode
        self._process = None
        return code


@dataclass
class Report:
    outcomes: "collections.Counter[str]" = field(default_factory=collections.Counter)
    failures: dict[int, str] = field(default_factory=dict)
    slowest: tuple[float, int] = (0.0, -1)
    """Seconds, and the number of the case."""
    kilobytes: int = 0

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {what}" for what, count in self.outcomes.most_common())
        slowest = f"the slowest took {self.slowest[0]:.1f} s (case {self.slowest[1]})"
        return f"{self.outcomes.total()} cases: {counts}; {slowest}; at most {self.kilobytes // 1024} MB"


def fuzz(corpus: Corpus, *, seed: int, cases: Iterable[int], seconds: float, keep: Path | None = None) -> Report:
    """Run cases until the time is over. keep: where the files of failed ones go, which are printed as well."""
    report, end = Report(), time.monotonic() + seconds
    child = Child(corpus.model)
    try:
        # Beside the model, since its parts are linked.
        with tempfile.TemporaryDirectory(dir=corpus.model.parent) as place:
            for number in cases:
                folder = Path(place) / str(number)
                folder.mkdir()
                kind, path, rng = write_case(corpus, seed, number, folder)
                start = time.monotonic()
                answer, is_failure, used = child.run(kind, path, rng)
                report.slowest = max(report.slowest, (time.monotonic() - start, number))
                report.kilobytes = max(report.kilobytes, used)
                report.outcomes[f"{kind}: {'FAILED' if is_failure else answer}"] += 1
                if is_failure:
                    report.failures[number] = f"{kind} {path.name!a}: {answer}"
                    if keep:
                        print(f"case {number} of seed {seed}: {report.failures[number]}\n", flush=True)
                        shutil.copytree(folder, keep / str(number), dirs_exist_ok=True)
                shutil.rmtree(folder)
                if time.monotonic() > end:
                    break
    finally:
        child.close()
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description="Damage videos, playlists and model folders, and see what happens.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--only", type=int, help="run this case alone")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="folder for the files of failed cases")
    options = parser.parse_args()
    from conftest import ATTENDING, exported  # imports PyTorch, which the child does not need

    first, cases = (options.first, options.cases) if options.only is None else (options.only, 1)
    with tempfile.TemporaryDirectory() as place:
        corpus = Corpus.made(Path(place) / "videos", exported(Path(place) / "models" / "tiny", ATTENDING))
        numbers = range(first, first + cases)
        report = fuzz(corpus, seed=options.seed, cases=numbers, seconds=options.seconds, keep=options.keep)
    print(report)
    sys.exit(bool(report.failures))


if __name__ == "__main__":
    main()
