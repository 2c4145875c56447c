"""The optimised captioner agrees with a plain one. `benchmarks/agreement.py` compares them on a whole split."""

from pathlib import Path

import numpy as np
import pytest

from picknet.captioner import load
from picknet.video.file import Video

ROOT = Path(__file__).resolve().parents[1]
MSVD = ROOT.parent / "shared" / "msvd" / "videos"
SAMPLE = ROOT / "samples" / "cockatoo.mp4"
NUM_CLIPS = 8


@pytest.fixture
def agreement(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import agreement

    return agreement


def some_clips() -> list[Path]:
    found = sorted(MSVD.glob("*.mp4")) if MSVD.is_dir() else []
    if not found:
        pytest.skip(f"needs MSVD's clips in {MSVD}")
    return found[:: len(found) // NUM_CLIPS][:NUM_CLIPS]


def test_the_sample_gets_the_caption_and_picks_of_the_plain_captioner(agreement) -> None:
    ((fast, plain),) = agreement.captions([SAMPLE])
    assert fast.text == plain.text
    assert [pick.index for pick in fast.picks] == [pick.index for pick in plain.picks]
    assert [pick.seconds for pick in fast.picks] == [pick.seconds for pick in plain.picks]


def test_real_clips_get_the_picks_of_the_plain_captioner_and_sentences_as_likely(agreement) -> None:
    found = list(agreement.captions(some_clips()))
    for fast, plain in found:
        assert [pick.index for pick in fast.picks] == [pick.index for pick in plain.picks]
        assert fast.frames_seen == plain.frames_seen
        assert fast.log_probability == pytest.approx(plain.log_probability, abs=0.3)
    # Of two sentences that score the same, 16 bits may choose the other.
    assert sum(fast.text != plain.text for fast, plain in found) <= 1


def test_real_clips_have_the_pixels_and_times_of_plain_decoding(agreement) -> None:
    captioner = load()
    for path in some_clips()[:3]:
        with Video(path) as video:
            for frame, other in zip(video.sample_evenly(), agreement.plainly_sampled(path, captioner), strict=True):
                np.testing.assert_array_equal(frame.pixels(), other.pixels())
                assert frame.seconds == pytest.approx(other.seconds, abs=1e-9)
