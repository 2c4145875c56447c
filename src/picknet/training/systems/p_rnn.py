"""p-RNN: attention to objects and to motion, and a multimodal layer (Yu et al., "Video Paragraph Captioning Using
Hierarchical Recurrent Neural Networks", CVPR 2016).

    β_i = wᵀ φ(W_q v_i + U_q h_{t-1} + b_q),   α = softmax(β),   u_t = Σ_i α_i v_i     for objects o and for actions a
    h_t = GRU(E w_{t-1}, h_{t-1})
    m_t = φ(W_o u^o_t + W_a u^a_t + W_h h_t + b),   p(w_t) = softmax(Eᵀ φ(W_m m_t + b_m) + d)

with φ(x) = 1.7159 tanh(2x / 3). The words of input and output share E. The GRU is the sentence generator; the paragraph
generator above it hands a state from one sentence to the next, and is left out, since a clip has one sentence.

The paper's actions are features of a 3-D CNN; here they are differences of the features of frames read one after
another, embedded by a matrix of their own; before the first frame there is nothing.
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
    gru_cell,
)


def scaled_tanh(x: Tensor) -> Tensor:
    """φ, which is about the identity at ±1."""
    return 1.7159 * torch.tanh(x * (2 / 3))


class Encoder(FrameEncoder):
    """Two cells of each frame: what is in it, and what has changed since the frame before.

    h is the last frame in the embedding of changes; c counts the frames.
    """

    attended = True

    def __init__(self, config: ModelConfig, feature_size: int) -> None:
        super().__init__()
        self.size = config.embedding_size
        self.embed = feature_embedding(feature_size, 2 * self.size)  # of what is there, and of what changes
        self.object_key = nn.Linear(self.size, self.size)
        self.action_key = nn.Linear(self.size, self.size)
        self.dropout = nn.Dropout(config.dropout)

    def see(self, features: Tensor) -> Tensor:
        seen: Tensor = self.embed(features.mean(-2))
        return seen

    def read(self, seen: Tensor, state: LSTMState) -> Read:
        there, now = seen.chunk(2, dim=-1)
        changed = torch.where(state.c > 0, now - state.h, torch.zeros_like(now))
        return LSTMState(now, state.c + 1), *self.cells(there[:, None], changed[:, None])

    def cells(self, there: Tensor, changed: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, frames, E) -> keys and values: (batch, 2 frames, E)"""
        there, changed = self.dropout(there), self.dropout(changed)
        keys = torch.stack([self.object_key(there), self.action_key(changed)], dim=2)
        return keys.flatten(1, 2), torch.stack([there, changed], dim=2).flatten(1, 2)

    def forward(self, features: Tensor, counts: Tensor) -> Memory:
        """As frame by frame, but at once."""
        there, now = self.see(features).chunk(2, dim=-1)
        changed = now.diff(dim=1, prepend=now[:, :1])
        present = are_picked(features, counts).repeat_interleave(2, dim=1)
        last = now[torch.arange(len(now), device=now.device), counts - 1]
        return Memory(last, *self.cells(there, changed), present)


class Decoder(WordDecoder):
    def __init__(self, config: ModelConfig, num_words: int, encoder: Encoder) -> None:
        size, embedding_size = config.state_size, config.embedding_size
        super().__init__(config, num_words, hidden_size=size, output_size=embedding_size)
        self.output.weight = self.embed.weight
        self.to_objects = SoftAttention(size, embedding_size, activation=scaled_tanh)
        self.to_actions = SoftAttention(size, embedding_size, activation=scaled_tanh)
        self.gru = gru_cell(embedding_size, size)
        self.multimodal = nn.Linear(2 * embedding_size + size, size)
        self.hidden = nn.Linear(size, embedding_size)

    def cell(self, words: Tensor, memory: Memory, state: Tensor) -> tuple[Tensor, Tensor]:
        # Not every second cell: in an exported graph the number of cells is any.
        is_action = torch.arange(memory.keys.shape[1], device=state.device) % 2 == 1
        seen = self.to_objects(state, memory.keys, memory.values, memory.present & ~is_action)
        done = self.to_actions(state, memory.keys, memory.values, memory.present & is_action)
        state = self.gru(words, state)
        multimodal = scaled_tanh(self.multimodal(torch.cat([seen, done, self.dropout(state)], dim=-1)))
        return scaled_tanh(self.hidden(multimodal)), state
