"""The reward of picks: the caption's CIDEr, the visual diversity of the picks, and limits on their number."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from picknet.config import RewardConfig
from picknet.metrics import Cider
from picknet.text import Vocabulary


def language_reward(cider: Cider, vocabulary: Vocabulary, videos: Sequence[str], words: Tensor) -> Tensor:
    """r_l: the CIDEr of each caption against its video's references. words: (batch, length) -> (batch,)"""
    captions = [vocabulary.decode(ids).split() for ids in words.tolist()]
    return torch.as_tensor(cider.scores(videos, captions), dtype=torch.float32, device=words.device)


def deviation(features: Tensor, picked: Tensor) -> Tensor:
    """r_v of arXiv v1: the sum of the per-dimension standard deviations of the picked features. -> (batch,)

    features: (batch, frames, D), picked: (batch, frames). It grows with D, so it needs a smaller λ_v than
    the cosine form.
    """
    weight = picked[:, :, None].to(features.dtype)
    count = weight.sum(1)
    mean = (features * weight).sum(1) / count
    variance = ((features - mean[:, None]).square() * weight).sum(1) / count
    return variance.sqrt().sum(1)


def cosine_diversity(features: Tensor, picked: Tensor) -> Tensor:
    """r_v of ECCV 2018: the mean cosine distance of all pairs of picked features; 0 for a single pick. -> (batch,)"""
    weight = picked[:, :, None].to(features.dtype)
    count = weight.sum((1, 2))
    directions = torch.nn.functional.normalize(features, dim=-1) * weight
    # ‖Σu‖² contains the cosine of every pair twice, and that of every feature with itself once.
    twice_cosines = directions.sum(1).square().sum(-1) - count
    pairs = count * (count - 1)
    return (1 - twice_cosines / pairs.clamp(min=1)).masked_fill(count < 2, 0.0)


def visual_diversity(config: RewardConfig) -> Callable[[Tensor, Tensor], Tensor]:
    """The form of r_v that the config selects."""
    return cosine_diversity if config.diversity == "cosine" else deviation


def max_picks(config: RewardConfig, *, num_frames: int, progress: float) -> float:
    """N_max at `progress` (0 to 1) of a stage's epochs: shrinks linearly from a share of the frames to τ."""
    start = max(config.max_picks_share * num_frames, config.max_picks_floor)
    shrunk = min(1.0, progress / config.shrink_share) if config.shrink_share > 0 else 1.0
    return start + (config.max_picks_floor - start) * shrunk


def total_reward(
    config: RewardConfig, *, language: Tensor, diversity: Tensor, num_picks: Tensor, most_picks: float
) -> Tensor:
    """r: λ_l r_l + λ_v r_v − the price of the picks within the limits, R⁻ outside. All (batch,)"""
    reward = config.language_weight * language + config.diversity_weight * diversity - config.price * num_picks
    allowed = (config.min_picks <= num_picks) & (num_picks <= most_picks)
    return reward.masked_fill(~allowed, config.penalty)
