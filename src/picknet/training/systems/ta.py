"""TA: soft temporal attention (Yao et al., "Describing Videos by Exploiting Temporal Structure", ICCV 2015).

Before each word the decoder weighs all frames anew, by its state:

    e_i = wᵀ tanh(W_a h_{t-1} + U_a v_i + b_a),   α = softmax(e),   φ_t = Σ_i α_i v_i
    h_t = LSTM([E w_{t-1}; φ_t], h_{t-1})
    p(w_t) = softmax(U tanh(W_p [h_t; φ_t; E w_{t-1}] + b_p) + d)

The paper also has a 3-D CNN of motion; here v_i are features of frames alone, as in its row without it. The state
starts as tanh of a linear map of the mean of all v_i, as in its authors' code.
"""

import torch
from torch import Tensor, nn

from picknet.config import ModelConfig
from picknet.training.systems.parts import (
    MeanEncoder,
    Memory,
    SoftAttention,
    WordDecoder,
    lstm_cell,
)


class Encoder(MeanEncoder):
    """The frames in their order, each with its key, and their mean."""

    attended = True

    def __init__(self, config: ModelConfig, feature_size: int) -> None:
        super().__init__(config, feature_size)
        self.key = nn.Linear(config.embedding_size, config.embedding_size)

    def cells(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        return self.key(seen), seen


class Decoder(WordDecoder):
    def __init__(self, config: ModelConfig, num_words: int, encoder: Encoder) -> None:
        size, embedding_size = config.state_size, config.embedding_size
        super().__init__(config, num_words, hidden_size=2 * size, output_size=embedding_size)
        self.start = nn.Linear(embedding_size, 2 * size)
        self.attention = SoftAttention(size, embedding_size)
        self.lstm = lstm_cell(2 * embedding_size, size)
        self.before_output = nn.Linear(size + 2 * embedding_size, embedding_size)

    def begin(self, video: Tensor) -> Tensor:
        return torch.tanh(self.start(video))

    def cell(self, words: Tensor, memory: Memory, state: Tensor) -> tuple[Tensor, Tensor]:
        h, c = state.chunk(2, dim=-1)
        found = self.attention(h, memory.keys, memory.values, memory.present)
        h, c = self.lstm(torch.cat([words, found], dim=-1), (h, c))
        output = torch.tanh(self.before_output(torch.cat([self.dropout(h), found, words], dim=-1)))
        return output, torch.cat([h, c], dim=-1)
