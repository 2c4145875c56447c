"""BA: a boundary-aware encoder (Baraldi et al., "Hierarchical Boundary-Aware Neural Encoder for Video Captioning", CVPR
2017).

Before each frame the lower LSTM decides whether a new part of the video begins; then its state goes up to the upper
LSTM, and it starts anew:

    s_t = τ(σ(v_sᵀ(W_si x_t + W_sh h_{t-1} + b_s))),     τ(p) = 1 if p > threshold, else 0
    h_{t-1} ← (1 − s_t) h_{t-1},    c_{t-1} ← (1 − s_t) c_{t-1},    h_t, c_t = LSTM₁(x_t, h_{t-1}, c_{t-1})

The threshold is drawn from [0, 1] for each frame in training, and 0.5 in use; the gradient passes τ as if it were not
there. After the last frame the state goes up as well, and the upper LSTM's state is v. The decoder is a GRU that sees v
with each word.
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
    are_picked,
    feature_embedding,
    gru_cell,
    gru_states,
    lstm_cell,
    no_cells,
    with_video,
)


class Encoder(FrameEncoder):
    """h: v if this was the last frame, the state of the lower LSTM, and that of the upper. c: their cells, and whether
    there was a frame."""

    def __init__(self, config: ModelConfig, feature_size: int) -> None:
        super().__init__()
        size = config.state_size
        self.size = 3 * size
        self.embed = feature_embedding(feature_size, config.embedding_size)
        self.lower = lstm_cell(config.embedding_size, size)
        self.upper = lstm_cell(size, size)
        self.from_frame = nn.Linear(config.embedding_size, size)  # W_si and b_s
        self.from_state = nn.Linear(size, size, bias=False)  # W_sh
        self.decide = nn.Linear(size, 1, bias=False)  # v_s
        self.dropout = nn.Dropout(config.dropout)

    def see(self, features: Tensor) -> Tensor:
        seen: Tensor = self.dropout(self.embed(features.mean(-2)))
        return seen

    def boundary(self, seen: Tensor, h: Tensor) -> Tensor:
        """s_t: (batch, 1), 0 or 1; its gradient is that of the sigmoid."""
        probability = torch.sigmoid(self.decide(self.from_frame(seen) + self.from_state(h)))
        threshold = torch.rand_like(probability) if self.training else 0.5
        decided = (probability > threshold).to(probability.dtype)
        return decided + (probability - probability.detach())

    def read(self, seen: Tensor, state: LSTMState) -> Read:
        _, h, upper = state.h.chunk(3, dim=-1)
        c, upper_cell, has_begun = state.c.chunk(3, dim=-1)
        read = self._go_on(seen, (h, c, upper, upper_cell), has_begun[:, :1])
        _, c, _, upper_cell = read
        return LSTMState(self._video(*read), torch.cat([c, upper_cell, torch.ones_like(c)], dim=-1)), *no_cells(seen)

    def forward(self, features: Tensor, counts: Tensor) -> Memory:
        """As frame by frame, but v is computed once."""
        seen, present = self.see(features), are_picked(features, counts)
        state: tuple[Tensor, ...] = (features.new_zeros(len(features), self.size // 3),) * 4
        for number, (frame, is_there) in enumerate(zip(seen.unbind(1), present.unbind(1), strict=True)):
            new = self._go_on(frame, state, float(number > 0))
            state = tuple(torch.where(is_there[:, None], *both) for both in zip(new, state, strict=True))
        return Memory(self._video(*state), *no_cells(seen[:, 0]), present[:, :0])

    def _go_on(self, seen: Tensor, state: tuple[Tensor, ...], has_begun: Tensor | float) -> tuple[Tensor, ...]:
        """The state before and after a frame: h, c, and those of the upper LSTM."""
        h, c, upper, upper_cell = state
        boundary = self.boundary(seen, h) * has_begun  # there is nothing to send up before the first frame
        above, above_cell = self.upper(h, (upper, upper_cell))
        upper, upper_cell = torch.lerp(upper, above, boundary), torch.lerp(upper_cell, above_cell, boundary)
        return *self.lower(seen, (h * (1 - boundary), c * (1 - boundary))), upper, upper_cell

    def _video(self, h: Tensor, c: Tensor, upper: Tensor, upper_cell: Tensor) -> Tensor:
        """After the last frame the state goes up as well. -> h of the encoder"""
        video, _ = self.upper(h, (upper, upper_cell))
        return torch.cat([video, h, upper], dim=-1)


class Decoder(WordDecoder):
    def __init__(self, config: ModelConfig, num_words: int, encoder: Encoder) -> None:
        super().__init__(config, num_words, hidden_size=config.state_size, output_size=config.state_size)
        self.gru = gru_cell(config.embedding_size + config.state_size, config.state_size)

    def cell(self, words: Tensor, memory: Memory, state: Tensor) -> tuple[Tensor, Tensor]:
        state = self.gru(self._given(words, memory), state)
        return state, state

    def outputs(self, words: Tensor, memory: Memory, state: Tensor) -> Tensor:
        return gru_states(self.gru, self._given(words, memory), state)

    def _given(self, words: Tensor, memory: Memory) -> Tensor:
        return with_video(words, self.dropout(memory.video[:, : self.hidden_size]))
