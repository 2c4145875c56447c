"""Rewards against numbers worked by hand."""

import math

import numpy as np
import pytest
import torch

from picknet.config import RewardConfig
from picknet.metrics import Cider
from picknet.text import EOS, PAD, Vocabulary
from picknet.training.rewards import (
    cosine_diversity,
    deviation,
    language_reward,
    max_picks,
    total_reward,
    visual_diversity,
)

# Three frames, of which the first two are picked.
FEATURES = torch.tensor([[[1.0, 0.0], [3.0, 4.0], [100.0, -7.0]]])
PICKED = torch.tensor([[True, True, False]])


def test_deviation_sums_the_standard_deviations_of_the_picked_features():
    # Dimension 1: values 1, 3, mean 2, deviation 1. Dimension 2: values 0, 4, mean 2, deviation 2.
    assert deviation(FEATURES, PICKED).tolist() == [3.0]


def test_cosine_diversity_is_the_mean_distance_of_all_pairs():
    # cos((1, 0), (3, 4)) = 3/5.
    assert cosine_diversity(FEATURES, PICKED).item() == pytest.approx(0.4)
    three = torch.tensor([[True, True, True]])
    u = FEATURES[0].double().numpy()
    u = u / np.linalg.norm(u, axis=1, keepdims=True)
    distances = [1 - u[i] @ u[k] for i in range(3) for k in range(i)]
    assert cosine_diversity(FEATURES, three).item() == pytest.approx(np.mean(distances), abs=1e-6)


@pytest.mark.parametrize("diversity", [deviation, cosine_diversity])
def test_a_single_pick_has_no_diversity(diversity):
    assert diversity(FEATURES, torch.tensor([[False, True, False]])).tolist() == [0.0]


def test_the_config_chooses_the_form():
    assert visual_diversity(RewardConfig(diversity="deviation")) is deviation
    assert visual_diversity(RewardConfig(diversity="cosine")) is cosine_diversity


def test_rewards_outside_the_limits_are_the_penalty():
    config = RewardConfig(language_weight=2.0, diversity_weight=0.5, penalty=-1.0, min_picks=3)
    reward = total_reward(
        config,
        language=torch.full((4,), 0.7),
        diversity=torch.full((4,), 0.4),
        num_picks=torch.tensor([2, 3, 7, 8]),
        most_picks=7,
    )
    assert reward.tolist() == pytest.approx([-1.0, 1.6, 1.6, -1.0])


def test_every_pick_has_its_price():
    config = RewardConfig(language_weight=2.0, diversity_weight=0.5, price=0.1, min_picks=1)
    both = {"language": torch.full((3,), 0.7), "diversity": torch.full((3,), 0.4)}
    reward = total_reward(config, **both, num_picks=torch.tensor([1, 4, 8]), most_picks=7)
    assert reward.tolist() == pytest.approx([1.6 - 0.1, 1.6 - 0.4, -1.0])


def test_the_most_picks_shrink_from_a_third_of_the_frames_to_tau():
    config = RewardConfig(max_picks_share=1 / 3, max_picks_floor=7, shrink_share=0.5)
    found = [max_picks(config, num_frames=30, progress=p) for p in (0.0, 0.25, 0.5, 1.0)]
    assert found == pytest.approx([10.0, 8.5, 7.0, 7.0])
    assert max_picks(config, num_frames=12, progress=0.0) == 7  # never below τ


def test_the_language_reward_is_cider_of_the_decoded_words():
    vocabulary = Vocabulary(("<pad>", "<bos>", "<eos>", "<unk>", "a", "cat", "dog", "runs"))
    references = {"one": [["a", "cat", "runs"]], "two": [["a", "dog", "runs"]]}
    cider = Cider(references)
    words = torch.tensor([[4, 5, 7, EOS, PAD], [4, 5, 7, EOS, PAD]])
    rewards = language_reward(cider, vocabulary, ["one", "two"], words)
    # Against its own words a sentence of three scores 10 × 3/4: it has no 4-grams. Words in every reference weigh 0.
    assert rewards[0].item() == pytest.approx(7.5)
    # Of "a cat runs" only "a" and "runs" are in two's reference, and both are in every reference: log(2/2) = 0.
    assert rewards[1].item() == pytest.approx(0.0)
    assert math.isfinite(rewards.sum().item())
