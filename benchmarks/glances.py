"""Other glances: what each kind costs, and what it tells.

    python benchmarks/glances.py cost FOLDER…
    python benchmarks/glances.py tell --data MSVD --out FILMS [--seed 0]
    python benchmarks/glances.py packets --data MSVD --out FILMS [--seed 0] [--bitrate 100k]

`cost` reads the videos of the folders, and a made one of 640×360 pixels, at one frame a second, and compares the time
with that of the same frames without a glance: CPU time of all threads, the best of `--repeats` runs.

`tell` makes 40 H.264 films of about five minutes from MSVD's training clips (see shaky_films.py) and asks how well a
small recurrent network can tell from each kind of glance whether an event is shown, second by second: trained on 20
films, tried on the other 20. It needs PyTorch, and half an hour on one core.

`packets` asks how many events would be seen if only the seconds with large packets were decoded, and what that saves:
on the same films, or on films encoded at a constant rate (into another folder, please).
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.reformatter import VideoReformatter
from films import FPS
from numpy.typing import NDArray
from shaky_films import CONSTANT_QUALITY, make_shaky_films

from picknet.config import GlanceKind
from picknet.files import written_whole
from picknet.study.films import Film, within
from picknet.video.file import Video, is_video_file

KINDS: tuple[GlanceKind, ...] = ("grey", "colour", "motion", "packets")
NUM_FILMS = 40
PICKS_PER_EVENT = 3
SEEDS = 3
"""Networks trained of each kind."""
EPOCHS, BATCH, WINDOW = 50, 5, 128
"""Training: films in a batch, and seconds taken of each."""
PATCH = 4
"""Sides of the first convolution, and its stride."""
MEMORY = 60
"""Seconds whose median a packet rule takes for quiet."""
TIMED_FILMS = 8
PACKETS_FIRST = 2.0
"""The rule of the network that reads packets first."""

# --- Cost ---


def cost(folders: Sequence[Path], *, repeats: int) -> None:
    print("| video | frames | no glance, ms a frame | " + " | ".join(KINDS) + " |")
    print("|---|---:|---:|" + "---:|" * len(KINDS))
    with tempfile.TemporaryDirectory() as scratch:
        groups = {folder.name: sorted(path for path in folder.iterdir() if is_video_file(path)) for folder in folders}
        made = Path(scratch) / "made.mp4"
        _write_640(made, [path for paths in groups.values() for path in paths])
        groups["made, 640×360 H.264"] = [made]
        for name, paths in groups.items():
            num_frames = sum(_read(path, None) for path in paths)
            _read(paths[0], "motion")  # NumPy's first use
            seconds = {kind: [np.inf] * len(paths) for kind in (None, *KINDS)}
            for _ in range(repeats):
                for kind, best in seconds.items():
                    for i, path in enumerate(paths):
                        began = time.process_time()
                        _read(path, kind)
                        best[i] = min(best[i], time.process_time() - began)
            plain, *others = (1000 * sum(best) / num_frames for best in seconds.values())
            cells = " | ".join(f"{other - plain:+.2f} ({(other / plain - 1):+.0%})" for other in others)
            print(f"| {name} | {num_frames} | {plain:.2f} | {cells} |", flush=True)


def _read(path: Path, kind: GlanceKind | None) -> int:
    """Sample a frame a second and glance at each. -> number of frames"""
    num_frames = 0
    with Video(path, glance=kind or "grey") as video:
        for frame in video.sample_by_time(fps=1.0):
            if kind:
                frame.glance_as(kind)
            num_frames += 1
    return num_frames


def _write_640(path: Path, sources: Sequence[Path], *, seconds: int = 60, fps: int = 25) -> None:
    """The given videos one after the other, scaled to 640×360."""

    def pictures() -> Iterator[av.VideoFrame]:
        while True:
            for source in sources:
                with av.open(str(source)) as container:
                    yield from container.decode(video=0)

    scaler = VideoReformatter()
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=fps, options={"preset": "medium", "crf": "23"})
        stream.width, stream.height, stream.pix_fmt = 640, 360, "yuv420p"
        for number, picture in zip(range(seconds * fps), pictures(), strict=False):
            scaled = scaler.reformat(picture, 640, 360, format="yuv420p")
            scaled.pts, scaled.time_base, scaled.pict_type = number, Fraction(1, fps), 0
            output.mux(stream.encode(scaled))
        output.mux(stream.encode(None))


# --- What they tell ---


@dataclass(frozen=True)
class Seen:
    """A film at one sample a second."""

    film: Film
    glances: dict[str, NDArray[np.uint8]]
    """kind -> (samples, channels, 56, 56)."""
    numbers: NDArray[np.int64]
    """(samples,): position of each among all frames."""
    keys: NDArray[np.int64]
    """Positions of the keyframes."""

    @property
    def shown(self) -> NDArray[np.bool_]:
        """(samples,): whether an event is shown."""
        shown = np.zeros(len(self.numbers), bool)
        for event in self.samples_of_events():
            shown[event] = True
        return shown

    def samples_of_events(self) -> list[list[int]]:
        return within(self.film.events, [number / FPS for number in self.numbers])

    @property
    def bits(self) -> NDArray[np.int16]:
        """(samples,): the packets since the sample before, without keyframes, 16 to each doubling."""
        return self.glances["packets"][:, 0, 0, 0].astype(np.int16)


def tell(data: Path, out: Path, *, num_films: int, seed: int) -> None:
    films = make_shaky_films(data, out, num_films=num_films, seed=seed, options=CONSTANT_QUALITY)
    seen = [_seen(film) for film in films]
    half = len(seen) // 2
    train, test = seen[:half], seen[half:]
    labels = np.concatenate([one.shown for one in test])
    print("| glance | AUC | events found at 3 picks an event |")
    print("|---|---:|---:|")
    for name, view in VIEWS.items():
        aucs, found = [], []
        for i in range(SEEDS):
            scores = _learned([(view(one), one.shown) for one in train], [view(one) for one in test], seed=seed + i)
            aucs.append(_auc(np.concatenate(scores), labels))
            found.append(_found(test, scores))
        cells = f"{np.mean(aucs):.3f} ± {np.std(aucs):.3f} | {np.mean(found):.0%} ± {np.std(found):.0%}"
        print(f"| {name} | {cells} |", flush=True)
    for name, rate in RATES.items():
        rates = [rate(one) for one in test]
        print(f"| {name} | {_auc(np.concatenate(rates), labels):.3f} | {_found(test, rates):.0%} |")


def packets(data: Path, out: Path, *, num_films: int, seed: int, bitrate: str | None) -> None:
    options = CONSTANT_QUALITY
    if bitrate:
        options = {"preset": "veryfast", "b": bitrate, "maxrate": bitrate, "bufsize": bitrate}  # a second of it
    films = make_shaky_films(data, out, num_films=num_films, seed=seed, options=options)
    seen = [_seen(film) for film in films]
    shown = np.concatenate([one.shown for one in seen])
    print(f"{len(films)} films, {len(shown) / 60:.0f} minutes, an event in {shown.mean():.0%} of the seconds\n")
    print("| seconds glanced at | of all | of the events' | events glanced at | frames to decode | time |")
    print("|---|---:|---:|---:|---:|---:|")
    everything = _seconds_to_read(seen, [np.ones(len(one.bits), bool) for one in seen])
    for name, gate in GATES.items():
        gates = [gate(one.bits) for one in seen]
        seconds = np.concatenate(gates)
        decoded = np.mean([_decoded_share(one, open_at) for one, open_at in zip(seen, gates, strict=True)])
        glanced = zip(seen, gates, strict=True)
        events = [any(open_at[event]) for one, open_at in glanced for event in one.samples_of_events()]
        took = _seconds_to_read(seen, gates) / everything
        cells = (seconds.mean(), seconds[shown].mean(), np.mean(events), decoded, took)
        print(f"| {name} | " + " | ".join(f"{cell:.0%}" for cell in cells) + " |", flush=True)
    bits = np.concatenate([one.bits for one in seen])
    print(f"\nAUC of the bytes alone: {_auc(bits.astype(np.float64), shown):.3f}")


def _seconds_to_read(seen: Sequence[Seen], gates: Sequence[NDArray[np.bool_]]) -> float:
    """Time to open some of the films, read their packets, and glance at the samples that are wanted."""
    began = time.perf_counter()
    for one, open_at in list(zip(seen, gates, strict=True))[:TIMED_FILMS]:
        with Video(one.film.path) as video:
            video.packets_by_time()
            for frame in video.sample_by_time(only=set(np.flatnonzero(open_at).tolist())):
                frame.glance()
    return time.perf_counter() - began


def _seen(film: Film) -> Seen:
    """All kinds of glances of a film, stored beside it."""
    path = film.path.with_suffix(".npz")
    if not path.exists():
        arrays: dict[str, Any] = {}
        with Video(film.path, glance="packets") as video:
            arrays["packets"] = np.stack([frame.glance_as("packets") for frame in video.sample_by_time()])
        with Video(film.path, glance="motion") as video:
            frames = [
                (frame.glance_as("grey"), frame.glance_as("colour"), frame.glance_as("motion"), frame.number)
                for frame in video.sample_by_time()
            ]
        for kind, values in zip(("grey", "colour", "motion", "numbers"), zip(*frames, strict=True), strict=True):
            arrays[kind] = np.stack(values)
        with av.open(str(film.path)) as container:
            stored = [(packet.pts, packet.is_keyframe) for packet in container.demux(video=0) if packet.pts is not None]
            arrays["keys"] = np.flatnonzero([is_key for _, is_key in sorted(stored)])
        with written_whole(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)
    with np.load(path) as arrays:
        return Seen(film, {kind: arrays[kind] for kind in KINDS}, arrays["numbers"], arrays["keys"])


Gate = Callable[[NDArray[np.int16]], NDArray[np.bool_]]
"""Bits of each second -> whether it is glanced at."""


def _largest(share: float) -> Gate:
    return lambda bits: bits > np.quantile(bits, 1 - share)


def _above(times: float) -> Gate:
    """So many times the median of the last minute."""

    def gate(bits: NDArray[np.int16]) -> NDArray[np.bool_]:
        quiet = np.array([np.median(bits[max(i - MEMORY, 0) : i] if i else bits[:1]) for i in range(len(bits))])
        return bits >= quiet + 16 * np.log2(times)

    return gate


GATES: dict[str, Gate] = {
    **{f"the {share:.0%} of a film with the largest packets": _largest(share) for share in (0.05, 0.1, 0.2, 0.3)},
    **{f"packets {times:g} times the median of the last minute": _above(times) for times in (1.1, 1.25, 1.5, 2.0)},
}


def _decoded_share(seen: Seen, open_at: NDArray[np.bool_]) -> float:
    """Share of the frames that must be decoded for these samples: each from its keyframe on."""
    needed = np.zeros(int(seen.numbers[-1]) + 1, bool)
    for number in seen.numbers[open_at]:
        needed[seen.keys[seen.keys <= number].max(initial=0) : number + 1] = True
    return float(needed.mean())


def _packets_first(seen: Seen) -> NDArray[np.uint8]:
    """Packets of every second; the grey glance of seconds with larger packets, otherwise the one before."""
    open_at = _above(PACKETS_FIRST)(seen.bits)
    open_at[0] = True
    last = np.maximum.accumulate(np.where(open_at, np.arange(len(open_at)), 0))
    return np.concatenate([seen.glances["grey"][last], seen.glances["packets"]], 1)


VIEWS: dict[str, Callable[[Seen], NDArray[np.uint8]]] = {
    "grey": lambda seen: seen.glances["grey"],
    "colour": lambda seen: seen.glances["colour"],
    "motion": lambda seen: seen.glances["motion"],
    "packets": lambda seen: seen.glances["packets"],
    "grey and packets": lambda seen: np.concatenate([seen.glances["grey"], seen.glances["packets"]], 1),
    f"packets first, grey where they are {PACKETS_FIRST:g} times the median": _packets_first,
}


def _change(seen: Seen) -> NDArray[np.float64]:
    grey = seen.glances["grey"].astype(np.float64)
    return np.abs(np.diff(grey, axis=0, prepend=grey[:1])).mean((1, 2, 3))


RATES: dict[str, Callable[[Seen], NDArray[np.float64]]] = {
    "no network: change of the grey glance": _change,
    "no network: bytes of the packets": lambda seen: np.exp2(seen.bits / 16),
    "evenly spaced": lambda seen: np.ones(len(seen.bits)),
}


def _found(seen: Sequence[Seen], rates: Sequence[NDArray[np.float64]]) -> float:
    """Share of the events with a pick, at 3 picks an event on average.

    Integrate and fire: a sample is picked when the sum of the rates passes a threshold, which is then taken off.
    """
    wanted = PICKS_PER_EVENT * sum(len(one.film.events) for one in seen)
    low, high = 1e-9, max(float(rate.sum()) for rate in rates)
    for _ in range(40):  # the threshold that gives as many picks
        threshold = (low + high) / 2
        picks = [np.flatnonzero(np.diff(np.floor(rate.cumsum() / threshold + 0.5), prepend=0) > 0) for rate in rates]
        low, high = (threshold, high) if sum(map(len, picks)) > wanted else (low, threshold)
    found = [
        not set(event).isdisjoint(picked.tolist())
        for one, picked in zip(seen, picks, strict=True)
        for event in one.samples_of_events()
    ]
    return float(np.mean(found))


def _auc(scores: NDArray[np.float64], labels: NDArray[np.bool_]) -> float:
    """The probability that a second of an event scores higher than another one; ties count half."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum() - (counts - 1) / 2)[inverse]
    positive, negative = labels.sum(), (~labels).sum()
    return float((ranks[labels].sum() - positive * (positive + 1) / 2) / (positive * negative))


def _learned(
    train: Sequence[tuple[NDArray[np.uint8], NDArray[np.bool_]]], test: Sequence[NDArray[np.uint8]], *, seed: int
) -> list[NDArray[np.float64]]:
    """Train the network. -> for each film of `test` the probability that an event is shown: (samples,)"""
    import torch
    from torch import Tensor, nn

    torch.manual_seed(seed)
    chance = np.random.default_rng(seed)
    channels = train[0][0].shape[1]
    train = [(_patches(glances), shown) for glances, shown in train]

    class Network(nn.Module):
        """Each glance and its change go through two small convolutions, then a GRU remembers."""

        def __init__(self) -> None:
            super().__init__()
            self.look = nn.Linear(channels * PATCH**2, 2 * 8)  # of each patch
            self.think = nn.Sequential(
                nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
                nn.Dropout(0.2), nn.Linear(16 * 7 * 7, 32), nn.ReLU(),
            )  # fmt: skip
            self.remember = nn.GRU(32, 32, batch_first=True)
            self.decide = nn.Linear(32, 1)

        def forward(self, glances: Tensor) -> Tensor:
            """(films, samples, 14 · 14, channels · 4 · 4) -> logits (films, samples)"""
            # Of each patch what is there, and what has changed: the change of a linear layer is that of its input.
            shown, other = self.look(glances.float() / 255 - 0.5).chunk(2, dim=3)
            change = torch.diff(other, dim=1, prepend=other[:, :1])
            maps = (shown + 4 * change).flatten(0, 1).transpose(1, 2).unflatten(2, (14, 14))
            thought = self.think(maps).unflatten(0, glances.shape[:2])
            logits: Tensor = self.decide(self.remember(thought)[0]).squeeze(2)
            return logits

    network = Network()
    learner = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=1e-2)
    num_steps = EPOCHS * len(train) // BATCH
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(learner, num_steps)
    for _ in range(num_steps):
        glances, shown = [], []
        for film in chance.choice(len(train), BATCH, replace=False):
            first = int(chance.integers(max(len(train[film][1]) - WINDOW, 0) + 1))
            glances.append(train[film][0][first : first + WINDOW])
            shown.append(train[film][1][first : first + WINDOW])
        shortest = min(map(len, shown))
        batch = torch.from_numpy(np.stack([part[:shortest] for part in glances]))
        target = torch.from_numpy(np.stack([part[:shortest] for part in shown])).float()
        loss = nn.functional.binary_cross_entropy_with_logits(network(batch), target)
        learner.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        learner.step()
        schedule.step()
    network.eval()
    with torch.inference_mode():
        films = (torch.from_numpy(_patches(film))[None] for film in test)
        return [torch.sigmoid(network(film))[0].double().numpy() for film in films]


def _patches(glances: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(samples, channels, 56, 56) -> (samples, 14 · 14, channels · 4 · 4)"""
    samples, channels, side, _ = glances.shape
    blocks = glances.reshape(samples, channels, side // PATCH, PATCH, side // PATCH, PATCH)
    return blocks.transpose(0, 2, 4, 1, 3, 5).reshape(samples, (side // PATCH) ** 2, channels * PATCH**2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    costs = commands.add_parser("cost", help="time of each kind")
    costs.add_argument("folders", type=Path, nargs="+", help="folders with videos")
    costs.add_argument("--repeats", type=int, default=3)
    tells = commands.add_parser("tell", help="what each kind tells")
    sizes = commands.add_parser("packets", help="what packets alone tell, and what they save")
    sizes.add_argument("--bitrate", help="films at this constant rate, such as 100k, instead of constant quality")
    for command in (tells, sizes):
        command.add_argument("--data", type=Path, required=True, help="folder with MSVD's videos and captions")
        command.add_argument("--out", type=Path, required=True, help="folder for the films, outside of the repository")
        command.add_argument("--films", type=int, default=NUM_FILMS)
        command.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.command == "cost":
        cost(arguments.folders, repeats=arguments.repeats)
    elif arguments.command == "tell":
        tell(arguments.data, arguments.out, num_films=arguments.films, seed=arguments.seed)
    else:
        packets(
            arguments.data,
            arguments.out,
            num_films=arguments.films,
            seed=arguments.seed,
            bitrate=arguments.bitrate,
        )


if __name__ == "__main__":
    main()
