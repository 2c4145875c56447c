"""The paper's equations in PyTorch: the Encoder, an LSTM over the features of picked frames; the Decoder, a GRU that
writes the caption; and the whole network, with a policy of `policies.py`. The ONNX graphs of a model folder are traced
from these modules, and its weights files use their parameter names.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from picknet.config import ModelConfig
from picknet.text import NEVER_WRITTEN, PAD
from picknet.training.cnn import CNN
from picknet.training.policies import PickNet, RatePickNet
from picknet.training.systems import build
from picknet.training.systems.parts import (
    FrameEncoder,
    LSTMState,
    Memory,
    WordDecoder,
    Writer,
    likeliest,
    whole_lstm,
)


class Encoder(nn.Module):
    """The LSTM over the features of picked frames; its last h is the video representation v.

    For a decoder with attention it also computes keys and values of the cells of each picked frame.
    """

    def __init__(self, config: ModelConfig, feature_size: int) -> None:
        super().__init__()
        self.size = config.state_size
        self.embed = nn.Linear(feature_size, config.embedding_size)
        self.from_input = nn.Linear(config.embedding_size, 4 * self.size)  # W_ix, W_fx, W_gx, W_ox and the biases
        self.from_state = nn.Linear(self.size, 4 * self.size, bias=False)  # W_ih, W_fh, W_gh, W_oh
        self.output_gate = torch.sigmoid if config.output_gate == "sigmoid" else torch.tanh
        self.dropout = nn.Dropout(config.dropout)
        self.cell_dropout = config.cell_dropout
        self.attended = config.attention_heads > 0
        if self.attended:
            self.place = nn.Parameter(torch.randn(config.grid**2, config.embedding_size) * 0.02)  # position in the grid
            self.normalise = nn.LayerNorm(config.embedding_size)
            self.lay_out = nn.Linear(config.embedding_size, 2 * config.embedding_size)
        nn.init.kaiming_normal_(self.embed.weight)
        _initialise(self.from_input.weight, self.from_state.weight, size=self.size)
        with torch.no_grad():
            self.from_input.bias.zero_()
            self.from_input.bias[self.size : 2 * self.size] = 1.0  # a forget gate that starts open

    def start(self, batch: int, device: torch.device | None = None) -> LSTMState:
        zeros = torch.zeros(batch, self.size, device=device)
        return LSTMState(zeros, zeros)

    def step(self, features: Tensor, state: LSTMState) -> tuple[LSTMState, Tensor, Tensor]:
        """features: (batch, cells, feature_size), the state so far
        -> the state after this frame, the frame's keys and values: (batch, cells, E)"""
        cells = self.embed(features)
        state = self._cell(self.from_input(cells.mean(1)), state)
        return state, *self._keys_and_values(cells)

    def forward(self, features: Tensor, counts: Tensor) -> Memory:
        """features of picked frames, padded: (batch, picks, cells, feature_size), counts: (batch,)"""
        cells = self.embed(features)
        shown = self._shown(cells) if self.training and self.cell_dropout else None
        inputs = self.dropout(cells.mean(2) if shown is None else _mean(cells, shown))
        state = self.start(len(features), features.device)
        steps = self._all_steps if self.output_gate is torch.sigmoid else self._step_by_step
        states = steps(inputs, state)
        video = self.dropout(states[torch.arange(len(states), device=states.device), counts - 1])
        keys, values = self._keys_and_values(cells)
        present = torch.arange(features.shape[1], device=features.device) < counts[:, None]
        present = present.repeat_interleave(keys.shape[2], dim=1)
        if shown is not None and self.attended:
            present = present & shown.flatten(1)
        return Memory(video, keys.flatten(1, 2), values.flatten(1, 2), present)

    def _shown(self, cells: Tensor) -> Tensor:
        """Which cells are seen this time, at least one of each frame: (batch, picks, cells, E) -> (…, cells) bool"""
        draws = torch.rand(cells.shape[:3], device=cells.device)
        return (draws >= self.cell_dropout) | (draws == draws.amax(2, keepdim=True))

    def _keys_and_values(self, cells: Tensor) -> tuple[Tensor, Tensor]:
        """(…, cells, E) -> keys, values: (…, cells, E); 0 cells without attention"""
        if not self.attended:
            return cells[..., :0, :], cells[..., :0, :]
        both = self.lay_out(self.dropout(self.normalise(cells) + self.place))
        keys, values = both.chunk(2, dim=-1)
        return keys, values

    def _step_by_step(self, inputs: Tensor, state: LSTMState) -> Tensor:
        states = []
        for given in self.from_input(inputs).unbind(1):
            state = self._cell(given, state)
            states.append(state.h)
        return torch.stack(states, dim=1)

    def _all_steps(self, inputs: Tensor, state: LSTMState) -> Tensor:
        # With a sigmoid gate, _cell is a standard LSTM, for which PyTorch has one fast operation.
        bias = self.from_input.bias
        weights = [self.from_input.weight, self.from_state.weight, bias, torch.zeros_like(bias)]
        return whole_lstm(inputs, *state, weights)

    def _cell(self, inputs: Tensor, state: LSTMState) -> LSTMState:
        i, f, g, o = (inputs + self.from_state(state.h)).chunk(4, dim=-1)
        c = torch.sigmoid(f) * state.c + torch.sigmoid(i) * torch.tanh(g)
        return LSTMState(self.output_gate(o) * torch.tanh(c), c)


class Attention(nn.Module):
    """Not in the paper: multi-head attention of the decoder's state over the cells of the picked frames."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size, embedding_size = config.state_size, config.embedding_size
        self.heads = config.attention_heads
        self.before = nn.LayerNorm(size)
        self.query = nn.Linear(size, embedding_size)
        self.found = nn.Linear(embedding_size, size)
        self.between = nn.LayerNorm(size)
        self.widen = nn.Linear(size, config.attention_hidden)
        self.narrow = nn.Linear(config.attention_hidden, size)
        self.after = nn.LayerNorm(size)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, states: Tensor, keys: Tensor, values: Tensor, present: Tensor | None = None) -> Tensor:
        """states p: (batch, length, S), keys, values: (batch or 1, cells, E) -> (batch, length, S)"""
        query, keys, values = (
            part.view(*part.shape[:2], self.heads, -1).transpose(1, 2)
            for part in (self.query(self.before(states)), keys, values)
        )  # (batch, heads, length or cells, E / heads)
        scores = query @ keys.transpose(2, 3) / math.sqrt(query.shape[-1])
        if present is not None:
            scores = scores.masked_fill(~present[:, None, None, :], -torch.inf)
        found = (scores.softmax(-1) @ values).transpose(1, 2).flatten(2)
        states = states + self.dropout(self.found(found))
        wide = nn.functional.gelu(self.widen(self.between(states)))
        states = states + self.dropout(self.narrow(self.dropout(wide)))
        normal: Tensor = self.after(states)
        return normal


class Decoder(Writer):
    """The GRU that writes the caption, with the paper's equations.

    They differ from `nn.GRUCell`: the reset gate is applied to the state before the matrix product, and z weights the
    new state. With attention, the state attends to the picked frames before the next word is chosen.
    """

    def __init__(self, config: ModelConfig, num_words: int) -> None:
        super().__init__()
        self.size = config.state_size
        self.embed = nn.Embedding(num_words, config.embedding_size)  # W_w
        self.from_word = nn.Linear(config.embedding_size, 3 * self.size)  # W_zw, W_rw, W_pw and the biases
        self.from_video = nn.Linear(self.size, 3 * self.size, bias=False)  # W_zv, W_rv, W_pv
        self.gates_from_state = nn.Linear(self.size, 2 * self.size, bias=False)  # W_zp, W_rp
        self.from_state = nn.Linear(self.size, self.size, bias=False)  # W_pp
        self.attention = Attention(config) if config.attention_heads else None
        self.tied = config.tied_words
        if self.tied:
            # W_p = W_w W: rare words get gradients from the input and the output side.
            self.output = nn.Linear(self.size, config.embedding_size, bias=False)
            nn.init.normal_(self.embed.weight, std=0.06)  # N(0, 1) would give far too large logits
        else:
            self.output = nn.Linear(self.size, num_words, bias=False)  # W_p
        self.left_out = nn.Linear(self.word_rows.shape[1], 1) if config.left_out else None  # see shortlist.py
        self.dropout = nn.Dropout(config.dropout)
        _initialise(self.from_word.weight, self.gates_from_state.weight, self.from_state.weight, size=self.size)
        _initialise(self.from_video.weight, size=self.size)
        nn.init.zeros_(self.from_word.bias)

    def step(self, words: Tensor, video: Tensor, keys: Tensor, values: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """words: (batch,), v: (batch, S), keys, values: (batch or 1, cells, E), p_{t-1}: (batch, S)
        -> log-probabilities: (batch, words), p_t: (batch, S)"""
        state = self._cell(self.from_word(self.embed(words)) + self.from_video(video), state)
        said = self._said(state[:, None], keys, values)[:, 0]
        logits = nn.functional.linear(said, self.word_rows)
        if self.left_out is not None:  # <pad>, the first word, stands for all words that were left out
            logits = torch.cat([self.left_out(said), logits[:, PAD + 1 :]], dim=1)
        return logits.log_softmax(-1), state

    def forward(
        self,
        memory: Memory,
        words: Tensor,
        *,
        feed_back: Sequence[bool] | Tensor = (),
        never_written: Sequence[int] = NEVER_WRITTEN,
    ) -> Tensor:
        """words from <bos> on: (batch, length) -> logits of the next words: (batch, length, words)

        Scheduled sampling: if feed_back[t], the input of step t is not the true word, but the likeliest word after step
        t - 1 that is not in `never_written`. With a tensor, of bools, the likeliest words are computed in every step.
        """
        states, cells = self._states(memory, words, feed_back, never_written)
        return self._logits(states, *cells)

    def said(self, memory: Memory, words: Tensor) -> Tensor:
        """words from <bos> on: (batch, length)
        -> the hidden vectors that `word_rows` turn into logits: (batch, length, row)"""
        states, cells = self._states(memory, words)
        return self._said(states, *cells)

    @property
    def word_rows(self) -> Tensor:
        """(words, row): the output layer; a word's logit is the product of its row and the hidden vector, `said`."""
        return self.embed.weight if self.tied else self.output.weight

    def _states(
        self,
        memory: Memory,
        words: Tensor,
        feed_back: Sequence[bool] | Tensor = (),
        never_written: Sequence[int] = NEVER_WRITTEN,
    ) -> tuple[Tensor, list[Tensor]]:
        """As `forward` -> the states p: (batch, length, S), and what is attended to"""
        video, *cells = memory
        context = self.from_video(video)
        inputs = self.from_word(self.dropout(self.embed(words))) + context[:, None]
        state = torch.zeros_like(video)
        states = []
        # Unbound rather than indexed: the gradient of each inputs[:, t] would have the size of all inputs.
        for t, given in enumerate(inputs.unbind(1)):
            if t > 0 and len(feed_back) and (isinstance(feed_back, Tensor) or feed_back[t]):
                with torch.no_grad():
                    written = likeliest(self._logits(state[:, None], *cells)[:, 0], never_written)
                own = self.from_word(self.dropout(self.embed(written))) + context
                given = torch.where(feed_back[t], own, given) if isinstance(feed_back, Tensor) else own
            state = self._cell(given, state)
            states.append(state)
        return torch.stack(states, dim=1), cells

    def begin_writing(self, memory: Memory) -> tuple[Tensor, tuple[Tensor, ...]]:
        video, *cells = memory
        return torch.zeros_like(video), (self.from_video(video), *cells)

    def next_logits(self, word: Tensor, state: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
        context, *cells = given
        state = self._cell(self.from_word(self.embed(word)) + context, state)
        return self._logits(state[:, None], *cells)[:, 0], state

    def _logits(self, states: Tensor, keys: Tensor, values: Tensor, present: Tensor | None = None) -> Tensor:
        """states p: (batch, length, S) -> (batch, length, words)"""
        return nn.functional.linear(self._said(states, keys, values, present), self.word_rows)

    def _said(self, states: Tensor, keys: Tensor, values: Tensor, present: Tensor | None = None) -> Tensor:
        """states p: (batch, length, S) -> (batch, length, row)"""
        if self.attention is not None:
            states = self.attention(states, keys, values, present)
        states = self.dropout(states)
        said: Tensor = self.output(states) if self.tied else states
        return said

    def _cell(self, inputs: Tensor, state: Tensor) -> Tensor:
        gate_inputs, p_input = inputs.split_with_sizes([2 * self.size, self.size], dim=-1)
        z, r = torch.sigmoid(gate_inputs + self.gates_from_state(state)).chunk(2, dim=-1)
        candidate = torch.tanh(p_input + self.from_state(r * state))
        return torch.lerp(state, candidate, z)  # (1 − z) p + z p̃


def _mean(cells: Tensor, shown: Tensor) -> Tensor:
    """The mean of the cells that are shown: (…, cells, E), (…, cells) -> (…, E)"""
    weights = shown.to(cells.dtype)
    return (cells * weights[..., None]).sum(-2) / weights.sum(-1, keepdim=True)


def _initialise(*gates: Tensor, size: int) -> None:
    """Orthogonal for square matrices of a gate (from the state and from the video), otherwise Xavier.

    The paper does not say. With PyTorch's default the video's influence is so small that the decoder ignores it for
    epochs.
    """
    for weight in gates:
        for gate in weight.detach().chunk(weight.shape[0] // size):
            (nn.init.orthogonal_ if gate.shape[0] == gate.shape[1] else nn.init.xavier_uniform_)(gate)


def word_matrices(config: ModelConfig) -> tuple[str, ...]:
    """The names of the weights that have a row for each word."""
    return ("decoder.embed.weight",) if config.tied_words else ("decoder.embed.weight", "decoder.output.weight")


class Network(nn.Module):
    """The whole system: PickNet, the CNN, and the Encoder-Decoder, the paper's or that of another system."""

    def __init__(self, config: ModelConfig, num_words: int, *, pretrained: bool = True) -> None:
        super().__init__()
        self.picknet = PickNet(config) if config.picker == "difference" else RatePickNet(config)
        self.cnn = CNN(config, pretrained=pretrained).eval()
        self.encoder: Encoder | FrameEncoder
        self.decoder: Decoder | WordDecoder
        if config.system == "picknet":
            self.encoder = Encoder(config, self.cnn.feature_size)
            self.decoder = Decoder(config, num_words)
        else:
            self.encoder, self.decoder = build(config, feature_size=self.cnn.feature_size, num_words=num_words)
