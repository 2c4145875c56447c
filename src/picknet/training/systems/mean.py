"""Mean pooling and a stack of two LSTMs: the plain captioner that every other system should be better than.

Venugopalan et al., "Translating Videos to Natural Language Using Deep Recurrent Neural Networks", NAACL 2015:

    v   = 1/n Σ_i x_i
    h¹_t = LSTM₁([E w_{t-1}; v], h¹_{t-1}),   h²_t = LSTM₂(h¹_t, h²_{t-1}),   p(w_t) = softmax(W h²_t)
"""

import torch
from torch import Tensor

from picknet.config import ModelConfig
from picknet.training.systems.parts import MeanEncoder, Memory, WordDecoder, lstm_cell, lstm_states, with_video

Encoder = MeanEncoder


class Decoder(WordDecoder):
    def __init__(self, config: ModelConfig, num_words: int, encoder: Encoder) -> None:
        size = config.state_size
        super().__init__(config, num_words, hidden_size=4 * size, output_size=size)
        self.first = lstm_cell(2 * config.embedding_size, size)
        self.second = lstm_cell(size, size)

    def cell(self, words: Tensor, memory: Memory, state: Tensor) -> tuple[Tensor, Tensor]:
        h1, c1, h2, c2 = state.chunk(4, dim=-1)
        h1, c1 = self.first(with_video(words, memory.video), (h1, c1))
        h2, c2 = self.second(self.dropout(h1), (h2, c2))
        return h2, torch.cat([h1, c1, h2, c2], dim=-1)

    def outputs(self, words: Tensor, memory: Memory, state: Tensor) -> Tensor:
        h1, c1, h2, c2 = state.chunk(4, dim=-1)
        first = lstm_states(self.first, with_video(words, memory.video), h1, c1)
        return lstm_states(self.second, self.dropout(first), h2, c2)
