"""Films made of clips: what is where, and the reward of a policy on them."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from picknet.config import Config, ModelConfig, ReinforcementConfig, RewardConfig, VideoConfig
from picknet.training import films
from picknet.training.films import (
    BLACK,
    EVENT_FRAMES,
    GREY,
    KINDS,
    PARAMETERS,
    STATIC,
    TORN,
    WHITE,
    FilmBatch,
    make_clips,
    make_films,
)
from picknet.training.policies import Policy, RatePickNet
from picknet.training.stages import film_loss, with_films

NUM_CLIPS, NUM_FRAMES = 6, 12
COUNTS = [12, 12, 12, 9, 7, 12]


def clips():
    """Frame t of clip c is of the grey value 10 + 20 c + t."""
    values = 10 + 20 * torch.arange(NUM_CLIPS)[:, None] + torch.arange(NUM_FRAMES)
    glances = values[:, :, None, None].expand(-1, -1, 56, 56).to(torch.uint8).contiguous()
    return glances, torch.tensor(COUNTS)


def films_of(seed, *, num_films=8, num_frames=96):
    return make_films(*clips(), num_films=num_films, num_frames=num_frames, chance=np.random.default_rng(seed))


@pytest.fixture
def _nothing_but_cuts(monkeypatch):
    """No effects and no damage."""
    monkeypatch.setattr(films, "KINDS", ())
    monkeypatch.setattr(films, "_quieten", lambda *_: None)
    monkeypatch.setattr(films, "_spoil", lambda *_, share: None)


def test_a_batch_of_films_has_these_shapes():
    batch = films_of(0)
    assert len(batch) == 8
    assert (batch.glances.shape, batch.glances.dtype) == ((8, 96, 56, 56), torch.uint8)
    assert batch.counts.tolist() == [96] * 8
    assert batch.segments.shape == batch.places.shape == (8, 96)
    assert batch.clips.shape == (8, int(batch.segments.max()) + 1)
    assert int(batch.clips.max()) < NUM_CLIPS
    parts = batch.parts(3)
    assert [len(part) for part in parts] == [3, 3, 2]
    assert torch.equal(torch.cat([part.glances for part in parts]), batch.glances)


def test_one_seed_gives_one_film():
    one, same, other = films_of(1), films_of(1), films_of(2)
    for name in ("glances", "counts", "segments", "clips", "places"):
        assert torch.equal(getattr(one, name), getattr(same, name))
    assert not torch.equal(one.glances, other.glances)


@pytest.mark.usefixtures("_nothing_but_cuts")
def test_every_frame_of_an_event_is_where_the_batch_says():
    batch = films_of(3)
    assert (batch.places[batch.clips.gather(1, batch.segments) < 0] == -1).all()
    num_events = 0
    for glances, segments, of_segment, places in zip(
        batch.glances, batch.segments, batch.clips.tolist(), batch.places, strict=True
    ):
        assert set(segments.diff().tolist()) <= {0, 1}  # one after the other
        for segment, clip in enumerate(of_segment[: int(segments.max()) + 1]):
            inside = segments == segment
            shown = glances[inside, 0, 0].tolist()
            if clip < 0:
                assert len(set(shown)) == 1  # a still
                continue
            num_events += 1
            where = places[inside].tolist()
            assert where == sorted(where)
            assert max(where) < COUNTS[clip]
            assert shown == [10 + 20 * clip + place for place in where]
            ends_early = bool(inside[-1])
            assert len(where) <= EVENT_FRAMES[1]
            assert ends_early or len(where) >= min(EVENT_FRAMES[0], COUNTS[clip])
            # A whole event covers its clip.
            assert ends_early or where[-1] - where[0] >= COUNTS[clip] // 2
    assert num_events > 20


@pytest.mark.usefixtures("_nothing_but_cuts")
def test_clips_are_films_of_one_event():
    batch = make_clips(*clips(), [4, 0, 3], chance=np.random.default_rng(0))
    assert batch.counts.tolist() == [7, 12, 9]
    assert batch.glances.shape == (3, 12, 56, 56)
    assert batch.clips.tolist() == [[4], [0], [3]]
    assert not batch.segments.any()
    assert batch.places[1].tolist() == list(range(12))
    assert batch.glances[1, :, 0, 0].tolist() == list(range(10, 22))
    assert batch.places[0, :7].tolist() == list(range(7))


def test_damaged_frames_have_no_place():
    chance, damaged, num_lost = np.random.default_rng(5), set(), 0
    for _ in range(300):
        script = films._empty(12, chance)
        films._add(script, slice(2, 12), 3, [(3, place) for place in range(10)])
        films._spoil(script, slice(2, 12), chance, share=1.0)
        fade, blur = (script.parameters[name][2:] for name in ("fade", "blur"))
        lost = (script.damage[2:] > 0) | (fade > 0.6) | (blur >= 0.7)
        assert (script.places[2:][lost] == -1).all()
        assert script.places[2:][~lost].tolist() == np.flatnonzero(~lost).tolist()
        assert not lost.all()
        num_lost += lost.any()
        damaged |= set(script.damage.tolist())
    assert num_lost > 200
    assert damaged == {0, BLACK, WHITE, GREY, STATIC, TORN}


def scene(num_frames):
    """A still with texture: one film of `num_frames` frames."""
    rng = np.random.default_rng(0)
    still = rng.integers(40, 216, (7, 7), dtype=np.uint8).repeat(8, axis=0).repeat(8, axis=1)
    return torch.from_numpy(still).expand(1, num_frames, -1, -1).contiguous()


def pictures(num_frames, parameters, damage=None):
    glances = scene(num_frames)
    tensors = {name: torch.from_numpy(values)[None] for name, values in parameters.items()}
    damage = torch.zeros(1, num_frames, dtype=torch.int64) if damage is None else damage
    patch = torch.tensor([[0.2, 0.3, 0.25, 0.25]])
    return films._pictures(glances, tensors, patch, damage, torch.Generator().manual_seed(0))


def untouched(num_frames):
    return {name: np.zeros(num_frames, np.float32) for name in PARAMETERS}


def test_without_effects_a_glance_stays_as_it_is():
    assert torch.equal(pictures(5, untouched(5)), scene(5))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.strip("_"))
def test_every_kind_of_quiet_changes_a_still(kind):
    num_frames, changed = 30, 0
    for seed in range(5):
        parameters = untouched(num_frames)
        kind(parameters, slice(5, num_frames), np.random.default_rng(seed))
        for name, values in parameters.items():
            assert not values[:5].any(), name  # nothing outside of its stretch
            assert values.dtype == np.float32
        found = pictures(num_frames, parameters)
        assert (found.shape, found.dtype) == ((1, num_frames, 56, 56), torch.uint8)
        assert torch.equal(found[:, :5], scene(5))
        changed += not torch.equal(found, scene(num_frames))
    assert changed >= 4


def test_the_kinds_of_damage():
    kinds = torch.tensor([[0, BLACK, WHITE, GREY, STATIC, TORN]])
    plain, black, white, grey, static, torn = pictures(6, untouched(6), kinds)[0].float()
    still = scene(1)[0, 0].float()
    assert torch.equal(plain, still)
    assert black.max() < 20
    assert white.min() > 235
    assert (grey - 127.5).abs().max() < 20
    assert static.std() > 60
    assert torch.equal(torn[:30], still[:30])  # the upper part is whole
    assert not torch.equal(torn[36:], still[36:])


def hand_made():
    """Two films of six frames: clip 7, then quiet; quiet, then clips 8 and 9."""
    return FilmBatch(
        glances=torch.zeros(2, 6, 56, 56, dtype=torch.uint8),
        counts=torch.tensor([6, 6]),
        segments=torch.tensor([[0, 0, 0, 0, 1, 1], [0, 1, 1, 1, 2, 2]]),
        clips=torch.tensor([[7, -1, -1], [-1, 8, 9]]),
        places=torch.tensor([[0, 2, -1, 4, -1, -1], [-1, 1, 3, 3, 0, 2]]),
    )


def test_picks_of_a_film_are_picks_of_its_clips():
    picked = torch.tensor(
        [
            [0, 1, 1, 1, 0, 1],  # of clip 7 places 2 and 4 and a damaged frame; one quiet frame
            [0, 0, 0, 0, 0, 0],
            [1, 1, 1, 1, 0, 0],  # a quiet frame; of clip 8 place 1, and 3 twice
            [0, 0, 0, 0, 1, 0],
        ],
        dtype=torch.bool,
    )
    of_clips, num_picks = hand_made().picked_of_clips(picked, num_frames=5)
    assert num_picks.tolist() == [[3, 1, 0], [0, 0, 0], [1, 3, 0], [0, 0, 1]]
    places = [[event.nonzero().flatten().tolist() for event in row] for row in of_clips]
    assert places == [[[2, 4], [], []], [[], [], []], [[], [1, 3], []], [[], [], [0]]]


class Dealt(Policy):
    """A policy whose samples are given; the log-probability of each action is one weight."""

    def __init__(self, picked):
        super().__init__()
        self.picked = torch.tensor(picked, dtype=torch.bool)
        self.weights = torch.zeros(self.picked.shape, requires_grad=True)

    def walk(self, glances, counts, chances):
        assert chances.T.shape == self.picked.shape
        return self.picked

    def log_probabilities(self, glances, counts, picked):
        return self.weights


class Judged:
    """An environment in which a clip's sentence is worth a tenth for each picked place."""

    pooled = torch.zeros(10, 5, 3)

    def language_rewards(self, clips, picked, *, max_words):
        assert (clips >= 7).all()
        assert picked.any(1).all()
        return picked.sum(1) / 10


FILM_CONFIG = Config(
    video=VideoConfig(num_frames=5),
    model=ModelConfig(picker="rate"),
    reward=RewardConfig(language_weight=1.0, diversity_weight=0.0, price=0.02, min_picks=1, max_picks_floor=5),
    reinforcement=ReinforcementConfig(samples=2, baseline="others", films=2),
)


def test_every_segment_of_a_film_has_its_own_credit():
    policy = Dealt(
        [
            [0, 1, 1, 1, 0, 1],
            [0, 0, 0, 0, 0, 0],
            [1, 1, 1, 1, 0, 0],
            [0, 0, 0, 0, 1, 0],
        ]
    )
    loss, figures = film_loss(policy, Judged(), FILM_CONFIG, hand_made(), torch.Generator())
    # A tenth for each place, minus 0.02 for each pick. Film 1: 0.2 − 0.06 and −0.02; 0 and 0.
    # Film 2: −0.02, 0.2 − 0.06 and 0; 0, 0 and 0.1 − 0.02.
    # The advantage of one sample of two is its reward minus that of the other.
    advantages = [[0.14, -0.02], [-0.14, 0.02], [-0.02, 0.14, -0.08], [0.02, -0.14, 0.08]]
    segments = [[0, 0, 0, 0, 1, 1]] * 2 + [[0, 1, 1, 1, 2, 2]] * 2
    loss.backward()
    expected = [[-row[segment] / 4 for segment in of] for row, of in zip(advantages, segments, strict=True)]
    assert torch.allclose(policy.weights.grad, torch.tensor(expected))
    # Three events in two samples: six in all.
    rewards = 0.14 - 0.02 - 0.02 + 0.14 + 0.08
    assert figures["reward"].item() == pytest.approx(rewards / 6)
    assert figures["language"].item() == pytest.approx(0.5 / 6)
    assert figures["picks"].item() == pytest.approx(9 / 6)


def test_the_diversity_of_an_event_is_that_of_its_clip():
    # Places 2 and 4 of clip 7 point in opposite directions: 1 − cos = 2; a single place has none.
    environment = Judged()
    environment.pooled = torch.zeros(10, 5, 3)
    environment.pooled[7, 2, 0], environment.pooled[7, 4, 0] = 1.0, -1.0
    config = replace(
        FILM_CONFIG, reward=replace(FILM_CONFIG.reward, language_weight=0.0, diversity_weight=0.5, price=0.0)
    )
    policy = Dealt([[0, 1, 0, 1, 0, 0], [0, 1, 0, 0, 0, 0], [0] * 6, [0] * 6])
    loss, figures = film_loss(policy, environment, config, hand_made(), torch.Generator())
    assert figures["reward"].item() == pytest.approx(0.5 * 2 / 6)
    loss.backward()
    assert policy.weights.grad[0].tolist() == pytest.approx([-0.25] * 4 + [0, 0])
    assert not policy.weights.grad[2:].any()


def test_films_without_any_pick_have_a_loss():
    policy = Dealt([[0] * 6] * 4)
    loss, figures = film_loss(policy, Judged(), FILM_CONFIG, hand_made(), torch.Generator())
    assert loss.item() == 0
    assert figures["picks"].item() == 0


def test_a_policy_is_validated_on_films_too():
    glances, counts = clips()
    config = replace(FILM_CONFIG, reinforcement=replace(FILM_CONFIG.reinforcement, film_frames=16))
    torch.manual_seed(0)
    policy = RatePickNet(replace(FILM_CONFIG.model, picker_hidden=4, initial_pick_probability=0.5))
    glances[..., ::2, :] = 255 - glances[..., ::2, :]  # so that every frame shows something
    split = SimpleNamespace(glances=glances, counts=counts)
    validate = with_films(lambda network: {"score": 3.0}, split, replace(config, video=VideoConfig(num_frames=12)))
    figures = validate(SimpleNamespace(picknet=policy))
    assert set(figures) == {"score", "val_found", "val_event_picks"}
    # Every third frame is picked, so that no event of four frames or more is missed, unless it is lost or too dark.
    assert figures["val_found"] > 80
    assert figures["val_event_picks"] > 1
    assert validate(SimpleNamespace(picknet=policy)) == figures
