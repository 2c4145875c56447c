"""Events found in films: counted by hand, with PySceneDetect and without it."""

import csv
from pathlib import Path

import numpy as np
import pytest
from clips import write_clip

from picknet.captioner import Captioner, load
from picknet.study import detectors, finding
from picknet.study.films import Film, Part
from picknet.study.judging import RATES
from picknet.video.file import Video


@pytest.fixture(scope="module")
def captioner(model_folder: Path) -> Captioner:
    return load(model_folder)


@pytest.fixture
def films(tmp_path: Path) -> list[Film]:
    """Two films of 30 seconds, each with an event in seconds 10 to 14 and one in seconds 20 to 23."""
    events = (Part(10.0, 14.0, ("noise",), "cat"), Part(20.0, 23.0, ("noise",), "dog"))
    found = []
    for name in ("one", "two"):
        path = write_clip(tmp_path / f"{name}.mp4", num_frames=60, fps=2)
        found.append(Film(path, "msvd", "val", 30.0, "camera", "libx264", events, ()))
    return found


def test_picks_and_events_found_are_counted(captioner: Captioner, films: list[Film]) -> None:
    compared = finding.compare_films(captioner, films, num_draws=2)
    rows = {(row.picker, row.setting): row for row in compared.rows}
    # Every 7th of 30 samples: 3, 10, 17 and 24, of which only the second is in an event.
    stride = rows["stride", "n=7"]
    assert (stride.mean_picks, stride.mean_found) == (2.0, 0.5)
    assert (rows["every", "n=3"].mean_picks, rows["every", "n=3"].mean_found) == (5.0, 1.0)  # 1, 4, 7, 10 … 22 … 28
    assert rows["uniform", "k=30"].mean_found == 1.0
    assert rows["random", "k=30"].picks.tolist() == [15.0, 15.0]
    assert [row.setting for row in compared.rows if row.picker == "picknet"] == [f"rate={rate:g}" for rate in RATES]
    assert [row.setting for row in compared.rows if row.own] == ["rate=1"]
    assert stride.interval == (0.5, 0.5)


def test_the_page_says_how_many_draws_and_what_is_left_out(
    captioner: Captioner, films: list[Film], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detectors, "is_installed", lambda: False)
    compared = finding.compare_films(captioner, films[:1], num_draws=3)
    finding.write(compared, tmp_path / "out", command="picknet compare --films films")
    text = (tmp_path / "out" / "films.md").read_text()
    assert "$ picknet compare --films films" in text
    assert "1 films of msvd val, 0 minutes, 2 events" in text
    assert "Random is a mean of 3 draws. k-means is left out" in text
    assert 'PySceneDetect is not installed: pip install "picknet[bench]".' in text
    with (tmp_path / "out" / "films.csv").open() as file:
        rows = {(row["picker"], row["setting"]): row for row in csv.DictReader(file)}
    assert rows["stride", "n=7"]["found"] == "0.5000"
    assert not any(picker == "content" for picker, _ in rows)
    assert (tmp_path / "out" / "films.png").stat().st_size > 10_000
    assert "Events found in films" in (tmp_path / "out" / "films.svg").read_text()


def test_detectors_pick_the_first_sample_of_each_scene(tmp_path: Path) -> None:
    pytest.importorskip("scenedetect")
    import av

    with av.open(str(tmp_path / "cut.mp4"), "w") as output:
        stream = output.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for number in range(100):
            grey = 40 if number < 55 else 200  # a cut at 5.5 s
            frame = av.VideoFrame.from_ndarray(np.full((64, 96, 3), grey, np.uint8), format="rgb24")
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    with Video(tmp_path / "cut.mp4") as video:
        samples = list(video.sample_by_time(fps=1.0))
    found = detectors.detected(tmp_path / "cut.mp4", samples)
    assert {name for name, _ in found} == {"content", "adaptive", "histogram"}
    assert found["content", "threshold=27"] == (0, 6)
    assert found["adaptive", "threshold=3"] == (0, 6)
    assert found["histogram", "threshold=0.2"] == (0, 6)


def test_shared_measurements_change_nothing(films: list[Film]) -> None:
    scenedetect = pytest.importorskip("scenedetect")
    path = films[0].path
    with Video(path) as video:
        shared = detectors.scene_starts(video.sample_by_time(fps=1000), fps=video.fps)
        frames = list(video.sample_by_time(fps=1000))
    kinds = {
        "content": scenedetect.ContentDetector,
        "adaptive": lambda threshold: scenedetect.AdaptiveDetector(threshold, min_content_val=5 * threshold),
        "histogram": scenedetect.HistogramDetector,
    }
    for (name, setting), starts in shared.items():
        alone, cuts = kinds[name](float(setting.removeprefix("threshold="))), []
        for number, frame in enumerate(frames):
            at = scenedetect.FrameTimecode(number, fps=2.0)
            cuts += alone.process_frame(at, np.ascontiguousarray(frame.pixels()[:, :, ::-1]))
        assert starts == [frames[cut.frame_num].seconds for cut in cuts], (name, setting)
    assert any(shared.values())
