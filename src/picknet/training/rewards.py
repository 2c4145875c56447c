"""What a choice of frames is worth: the caption's CIDEr, the diversity of the picks, and limits on their number."""

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
    """r_v of arXiv v1: per-dimension standard deviations of the picked features, summed. -> (batch,)

    features: (batch, frames, D), picked: (batch, frames). It grows with D, so its λ_v is not the cosine form's.
    """
    weight = picked[:, :, None].to(features.dtype)
    count = weight.sum(1)
    mean = (features * weight).sum(1) / count
    variance = ((features - mean[:, None]).square() * weight).sum(1) / count
    return variance.sqrt().sum(1)


def cosine_diversity(features: Tensor, picked: Tensor) -> Tensor:
    """r_v of ECCV 2018: mean cosine distance over all pairs of picked features; 0 for a single pick. -> (batch,)"""
    weight = picked[:, :, None].to(features.dtype)
    count = weight.sum((1, 2))
    directions = torch.nn.functional.normalize(features, dim=-1) * weight
    # ‖Σu‖² counts every pair's cosine twice and every feature with itself once.
    twice_cosines = directions.sum(1).square().sum(-1) - count
    pairs = count * (count - 1)
    return torch.where(count > 1, 1 - twice_cosines / pairs.clamp(min=1), 0.0)


def visual_diversity(config: RewardConfig) -> Callable[[Tensor, Tensor], Tensor]:
    """The form of r_v the config asks for."""
    return cosine_diversity if config.diversity == "cosine" else deviation


def max_picks(config: RewardConfig, *, num_frames: int, progress: float) -> float:
    """N_max when `progress` (0 to 1) of a stage's epochs are done: from a share of the frames evenly down to τ."""
    start = max(config.max_picks_share * num_frames, config.max_picks_floor)
    shrunk = min(1.0, progress / config.shrink_share) if config.shrink_share > 0 else 1.0
    return start + (config.max_picks_floor - start) * shrunk


def total_reward(
    config: RewardConfig, *, language: Tensor, diversity: Tensor, num_picks: Tensor, most_picks: float
) -> Tensor:
    """r: λ_l r_l + λ_v r_v inside the limits, less the price of the picks, and R⁻ outside. All (batch,)"""
    reward = config.language_weight * language + config.diversity_weight * diversity - config.price * num_picks
    allowed = (config.min_picks <= num_picks) & (num_picks <= most_picks)
    return torch.where(allowed, reward, config.penalty)
