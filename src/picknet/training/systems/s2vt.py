"""S2VT: one stack of two LSTMs reads all frames, then writes all words (Venugopalan et al., ICCV 2015).

    reading:  h¹_t = LSTM₁(x_t, h¹_{t-1}),      h²_t = LSTM₂([h¹_t; 0], h²_{t-1})
    writing:  h¹_t = LSTM₁(0, h¹_{t-1}),        h²_t = LSTM₂([h¹_t; E w_{t-1}], h²_{t-1}),   p(w_t) = softmax(W h²_t)

Zeros stand for the word while it reads, and for the frame while it writes. Both phases have the same weights and go on
with the same states, so that the video is not squeezed through anything.
"""

import torch
from torch import Tensor, nn

from picknet.config import ModelConfig
from picknet.training.systems.parts import (
    FrameEncoder,
    LSTMState,
    Memory,
    Read,
    WordDecoder,
    feature_embedding,
    lstm_cell,
    lstm_states,
    no_cells,
)


class Stack(nn.Module):
    """The two LSTMs. Their four states are packed into one vector: h¹, c¹, h², c²."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.first = lstm_cell(config.embedding_size, config.state_size)
        self.second = lstm_cell(config.state_size + config.embedding_size, config.state_size)

    def forward(self, frames: Tensor, words: Tensor, packed: Tensor) -> Tensor:
        """frames, words: (batch, E), packed: (batch, 4 S) -> (batch, 4 S)"""
        h1, c1, h2, c2 = packed.chunk(4, dim=-1)
        h1, c1 = self.first(frames, (h1, c1))
        h2, c2 = self.second(torch.cat([h1, words], dim=-1), (h2, c2))
        return torch.cat([h1, c1, h2, c2], dim=-1)


class Encoder(FrameEncoder):
    """h is the packed state of the stack; c counts frames, for nobody."""

    def __init__(self, config: ModelConfig, feature_size: int) -> None:
        super().__init__()
        self.size = 4 * config.state_size
        self.embed = feature_embedding(feature_size, config.embedding_size)
        self.stack = Stack(config)
        self.dropout = nn.Dropout(config.dropout)

    def see(self, features: Tensor) -> Tensor:
        seen: Tensor = self.dropout(self.embed(features.mean(-2)))
        return seen

    def read(self, seen: Tensor, state: LSTMState) -> Read:
        return LSTMState(self.stack(seen, torch.zeros_like(seen), state.h), state.c + 1), *no_cells(seen)


class Decoder(WordDecoder):
    def __init__(self, config: ModelConfig, num_words: int, encoder: Encoder) -> None:
        """encoder: the one whose stack goes on."""
        super().__init__(config, num_words, hidden_size=encoder.size, output_size=config.state_size)
        self.stack = encoder.stack

    def begin(self, video: Tensor) -> Tensor:
        return video

    def cell(self, words: Tensor, memory: Memory, state: Tensor) -> tuple[Tensor, Tensor]:
        state = self.stack(torch.zeros_like(words), words, state)
        _, _, h2, _ = state.chunk(4, dim=-1)
        return h2, state

    def outputs(self, words: Tensor, memory: Memory, state: Tensor) -> Tensor:
        h1, c1, h2, c2 = state.chunk(4, dim=-1)
        first = lstm_states(self.stack.first, torch.zeros_like(words), h1, c1)
        return lstm_states(self.stack.second, torch.cat([first, words], dim=-1), h2, c2)
