"""MS-RNN: a latent variable at each word (Song et al., "From Deterministic to Generative: Multimodal Stochastic RNNs
for Video Captioning", 2017).

An LSTM with soft temporal attention, d_t = [h_t; φ_t], and above it a chain of latent Gaussians, so that one video has
several captions:

    prior       p(z_t | z_{t-1}, d_t) = N(μ⁰_t, diag σ⁰_t²)
    posterior   q(z_t | z_{t-1}, a_t) = N(μ_t, diag σ_t²),     a_t = LSTM(a_{t+1}, [d_t; E w_t]), read backwards
    words       p(w_t | d_t, z_t) = softmax(W [d_t; z_t])
    loss        Σ_t −log p(w_t | d_t, z_t) + KL(q(z_t) ‖ p(z_t)),    z_t drawn from q: a variational bound of −log p

A caption is written with the prior's means; `several` draws from the prior instead.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from picknet.config import ModelConfig
from picknet.text import PAD
from picknet.training.systems import ta
from picknet.training.systems.parts import Memory, SoftAttention, WordDecoder, lstm_cell, word_loss

LATENT_SIZE = 64

Encoder = ta.Encoder


class Gaussian(nn.Module):
    """μ and log σ as functions of the latent variable before and of something else."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(size + LATENT_SIZE, size)
        self.both = nn.Linear(size, 2 * LATENT_SIZE)
        nn.init.normal_(self.both.weight, std=0.01)  # about N(0, 1) at first, so that prior and posterior agree
        nn.init.zeros_(self.both.bias)

    def forward(self, z: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_deviation = self.both(torch.tanh(self.hidden(torch.cat([z, given], dim=-1)))).chunk(2, dim=-1)
        return mean, log_deviation


class Decoder(WordDecoder):
    def __init__(self, config: ModelConfig, num_words: int, encoder: Encoder) -> None:
        size, embedding_size = config.state_size, config.embedding_size
        given_size = size + embedding_size
        super().__init__(
            config,
            num_words,
            hidden_size=2 * size + LATENT_SIZE,
            output_size=given_size + LATENT_SIZE,
        )
        self.start = nn.Linear(embedding_size, 2 * size)
        self.attention = SoftAttention(size, embedding_size)
        self.lstm = lstm_cell(2 * embedding_size, size)
        self.prior = Gaussian(given_size)
        self.backward_lstm = lstm_cell(given_size + embedding_size, given_size)
        self.posterior = Gaussian(given_size)
        self._draws = False

    def begin(self, video: Tensor) -> Tensor:
        return nn.functional.pad(torch.tanh(self.start(video)), (0, LATENT_SIZE))

    def cell(self, words: Tensor, memory: Memory, state: Tensor) -> tuple[Tensor, Tensor]:
        own, z = state[:, :-LATENT_SIZE], state[:, -LATENT_SIZE:]
        given, own = self.attended(words, memory, own)
        mean, log_deviation = self.prior(z, given)
        z = mean + torch.randn_like(mean) * log_deviation.exp() if self._draws else mean
        return torch.cat([given, z], dim=-1), torch.cat([own, z], dim=-1)

    def attended(self, words: Tensor, memory: Memory, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the LSTM, which knows no z. -> d_t, its state"""
        h, c = state.chunk(2, dim=-1)
        found = self.attention(h, memory.keys, memory.values, memory.present)
        h, c = self.lstm(torch.cat([words, found], dim=-1), (h, c))
        return torch.cat([h, found], dim=-1), torch.cat([h, c], dim=-1)

    @contextmanager
    def several(self) -> Iterator[None]:
        """Within it, captions differ from call to call: z_t is drawn from the prior."""
        self._draws = True
        try:
            yield
        finally:
            self._draws = False

    def loss(self, memory: Memory, words: Tensor, *, label_smoothing: float, **_: Any) -> Tensor:
        """The bound for the mean word. The true words are always the input: what is fed back has no posterior."""
        embedded = self.dropout(self.embed(words))
        state, given = torch.tanh(self.start(memory.video)), []
        for word in embedded[:, :-1].unbind(1):
            d, state = self.attended(word, memory, state)
            given.append(d)
        is_word = (words[:, 1:] != PAD)[..., None].to(embedded.dtype)

        a = a_cell = torch.zeros_like(given[0])
        backwards: list[Tensor] = []
        for t in reversed(range(len(given))):
            known = torch.cat([given[t], embedded[:, t + 1]], dim=-1)
            a, a_cell = (part * is_word[:, t] for part in self.backward_lstm(known, (a, a_cell)))
            backwards.insert(0, a)

        z = memory.video.new_zeros(len(words), LATENT_SIZE)
        outputs, divergences = [], []
        for d, a in zip(given, backwards, strict=True):
            prior, posterior = self.prior(z, d), self.posterior(z, a)
            z = posterior[0] + torch.randn_like(z) * posterior[1].exp()
            outputs.append(torch.cat([d, z], dim=-1))
            divergences.append(divergence(posterior, prior))
        likelihood = word_loss(self.logits(torch.stack(outputs, dim=1)), words, label_smoothing=label_smoothing)
        return likelihood + (torch.stack(divergences, dim=1) * is_word[..., 0]).sum() / is_word.sum()


def divergence(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> Tensor:
    """KL(one ‖ other) of two diagonal Gaussians, each μ and log σ: (batch, size) -> (batch,)"""
    (mean, log_deviation), (other_mean, other_log_deviation) = one, other
    ratio = (2 * (log_deviation - other_log_deviation)).exp()
    distance = ((mean - other_mean) * (-other_log_deviation).exp()).square()
    return (0.5 * (ratio + distance - 1) + other_log_deviation - log_deviation).sum(-1)
