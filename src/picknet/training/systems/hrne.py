"""HRNE: a hierarchy of two recurrent encoders (Pan et al., "Hierarchical Recurrent Neural Encoder for Video
Representation with Application to Captioning", CVPR 2016).

The lower LSTM reads chunks of frames, and starts anew with each; the upper LSTM reads one summary of each chunk:

    h_i = LSTM₁(x_i, h_{i-1})
    e_i = wᵀ tanh(W h_i + U g_{k-1} + b),   α = softmax(e) within chunk k,   s_k = Σ_i α_i h_i
    g_k = LSTM₂(s_k, g_{k-1})

and the decoder, an LSTM, attends in the same way to the states g_k of all chunks before each word.

The paper's chunks overlap; here they follow each other. Frames are read one by one, and nobody knows which is the last,
so g_k is computed after every frame, of the chunk so far; the decoder leaves out those that a later frame of the same
chunk replaces, which it knows by the number of the chunk, the last number of each key.
"""

import torch
from torch import Tensor, nn

from picknet.config import ModelConfig
from picknet.training.systems.parts import (
    FrameEncoder,
    LSTMState,
    Memory,
    Read,
    SoftAttention,
    WordDecoder,
    are_picked,
    feature_embedding,
    lstm_cell,
    lstm_states,
)

CHUNK = 8
"""Frames of a chunk."""


class Encoder(FrameEncoder):
    """h: g_k, h_i, Σ exp(e_i) h_i and g_{k-1}. c: the cells of g_k, h_i and g_{k-1}; and Σ exp(e_i), the frames of the
    chunk, and the chunks before it."""

    attended = True

    def __init__(self, config: ModelConfig, feature_size: int) -> None:
        super().__init__()
        size, embedding_size = config.state_size, config.embedding_size
        self.size = 4 * size
        self.embed = feature_embedding(feature_size, embedding_size)
        self.lower = lstm_cell(embedding_size, size)
        self.upper = lstm_cell(size, size)
        self.frame_key = nn.Linear(size, embedding_size)
        self.query = nn.Linear(size, embedding_size, bias=False)
        self.score = nn.Linear(embedding_size, 1, bias=False)
        self.key = nn.Linear(size, embedding_size - 1)
        self.value = nn.Linear(size, embedding_size)
        self.dropout = nn.Dropout(config.dropout)

    def see(self, features: Tensor) -> Tensor:
        seen: Tensor = self.dropout(self.embed(features.mean(-2)))
        return seen

    def read(self, seen: Tensor, state: LSTMState) -> Read:
        g, h, summed, g_before = state.h.chunk(4, dim=-1)
        g_cell, h_cell, g_cell_before, numbers = state.c.chunk(4, dim=-1)
        total, frames, chunk = numbers[:, :1], numbers[:, 1:2], numbers[:, 2:3]

        goes_on = (frames < CHUNK).to(seen.dtype)  # 0 with the first frame of the next chunk
        g_before, g_cell_before = torch.lerp(g, g_before, goes_on), torch.lerp(g_cell, g_cell_before, goes_on)
        h, h_cell, summed, total, frames = (part * goes_on for part in (h, h_cell, summed, total, frames))
        chunk = chunk + 1 - goes_on

        h, h_cell = self.lower(seen, (h, h_cell))
        weight = self.score(torch.tanh(self.frame_key(h) + self.query(g_before))).exp()
        summed, total, frames = summed + weight * h, total + weight, frames + 1
        g, g_cell = self.upper(self.dropout(summed / total), (g_before, g_cell_before))

        rest = numbers[:, 3:]
        new = LSTMState(
            torch.cat([g, h, summed, g_before], dim=-1),
            torch.cat([g_cell, h_cell, g_cell_before, total, frames, chunk, rest], dim=-1),
        )
        keys = torch.cat([self.key(g), chunk], dim=-1)
        return new, keys[:, None], self.value(g)[:, None]


    def forward(self, features: Tensor, counts: Tensor) -> Memory:
        """As frame by frame, but whole chunks at once, each with one key: that of its end."""
        batch, frames = features.shape[:2]
        missing = -frames % CHUNK
        seen = nn.functional.pad(self.see(features), (0, 0, 0, missing)).view(-1, CHUNK, self.embed.out_features)
        present = nn.functional.pad(are_picked(features, counts), (0, missing)).view(batch, -1, CHUNK)
        g = g_cell = features.new_zeros(batch, self.size // 4)
        nothing = g.new_zeros(len(seen), self.size // 4)
        states = lstm_states(self.lower, seen, nothing, nothing).view(*present.shape, -1)
        upper = []
        for h, key, there in zip(states.unbind(1), self.frame_key(states).unbind(1), present.unbind(1), strict=True):
            scores = self.score(torch.tanh(key + self.query(g)[:, None]))
            weights = scores.exp() * there[..., None]
            summary = (weights * h).sum(1) / weights.sum(1).where(there[:, :1], 1.0)
            new = self.upper(self.dropout(summary), (g, g_cell))
            g, g_cell = (torch.where(there[:, :1], *both) for both in zip(new, (g, g_cell), strict=True))
            upper.append(g)
        ends = torch.stack(upper, dim=1)
        numbers = torch.arange(len(upper), device=g.device, dtype=g.dtype)[None, :, None].expand(batch, -1, 1)
        keys = torch.cat([self.key(ends), numbers], dim=-1)
        return Memory(nn.functional.pad(g, (0, self.size - g.shape[1])), keys, self.value(ends), present[..., 0])


class Decoder(WordDecoder):
    def __init__(self, config: ModelConfig, num_words: int, encoder: Encoder) -> None:
        size, embedding_size = config.state_size, config.embedding_size
        super().__init__(config, num_words, hidden_size=2 * size, output_size=size + embedding_size)
        self.start = nn.Linear(size, 2 * size)
        self.attention = SoftAttention(size, embedding_size - 1)
        self.lstm = lstm_cell(2 * embedding_size, size)

    def begin(self, video: Tensor) -> Tensor:
        return torch.tanh(self.start(video[:, : self.start.in_features]))

    def cell(self, words: Tensor, memory: Memory, state: Tensor) -> tuple[Tensor, Tensor]:
        h, c = state.chunk(2, dim=-1)
        found = self.attention(h, memory.keys[..., :-1], memory.values, ends_of_chunks(memory))
        h, c = self.lstm(torch.cat([words, found], dim=-1), (h, c))
        return torch.cat([h, found], dim=-1), torch.cat([h, c], dim=-1)


def ends_of_chunks(memory: Memory) -> Tensor:
    """The last frames of the chunks that are present: (batch, frames) bool"""
    chunks = memory.keys[..., -1].masked_fill(~memory.present, -1)
    following = nn.functional.pad(chunks[:, 1:], (0, 1), value=-1.0)
    return memory.present & (chunks != following)
