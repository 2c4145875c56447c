"""LSTM-E: a joint embedding of videos and sentences (Pan et al., "Jointly Modeling Embedding and Translation to Bridge
Video and Language", CVPR 2016).

    relevance   E_r = ‖T_v v − T_s s‖² / E,  v the mean of all features, s the sentence as a bag of words
    coherence   E_c = −Σ_t log p(w_t | v, w_0 … w_{t-1})
    loss        (1 − λ) E_r + λ E_c

The LSTM's first input is the embedded video T_v v, the others are the embedded words T_s w_t: T_s is the embedding of
single words as well as of whole sentences.

E_r is divided by E, the size of the embedding, which the paper does not do: as a sum over 512 numbers it outweighs the
words, and captions are worse than without it; as a mean it makes them better (docs/field.md).
"""

from typing import Any

import torch
from torch import Tensor

from picknet.config import ModelConfig
from picknet.text import PAD, SPECIAL_WORDS
from picknet.training.systems.parts import LSTMDecoder, MeanEncoder, Memory

COHERENCE = 0.7
"""λ: the weight of the coherence, the best in the paper."""

Encoder = MeanEncoder


class Decoder(LSTMDecoder):
    def __init__(self, config: ModelConfig, num_words: int, encoder: Encoder) -> None:
        super().__init__(config, num_words, input_size=config.embedding_size)

    def begin(self, video: Tensor) -> Tensor:
        nothing = video.new_zeros(len(video), self.lstm.hidden_size)
        return torch.cat(self.lstm(video, (nothing, nothing)), dim=-1)

    def relevance(self, memory: Memory, words: Tensor) -> Tensor:
        """E_r of each sentence. words from <bos> to <eos>, padded: (batch, length) -> (batch,)"""
        in_bag = words >= len(SPECIAL_WORDS)
        sentences = (self.embed(words) * in_bag[..., None]).sum(1)
        distances: Tensor = (memory.video - sentences).square().mean(-1)
        return distances

    def loss(self, memory: Memory, words: Tensor, **settings: Any) -> Tensor:
        # E_c is a sum over the words of a sentence.
        words_of_sentence = (words[:, 1:] != PAD).sum() / len(words)
        coherence = super().loss(memory, words, **settings) * words_of_sentence
        return (1 - COHERENCE) * self.relevance(memory, words).mean() + COHERENCE * coherence
