"""DenseCap: sequences of regions with lexical features (Shen et al., "Weakly Supervised Dense Video Captioning", CVPR
2017, also DenseVidCap).

    lexicon     p_r^w = σ(L x_r), the probability that region r shows word w, learned from captions of whole videos by
                multi-instance multi-label learning: p^w = 1 − Π_r (1 − p_r^w), a video shows what any region shows
    sequences   one region of each frame, chosen greedily for the largest gain of three submodular functions:
                  informative   Σ_w max_{r ∈ A} p_r^w, over that of all regions
                  coherent      cos(x_r, x_s), s the region chosen of the frame before
                  diverse       KL(p_r ‖ q), q the mean of the regions of the sequences before this one
    captions    v_k: a bidirectional LSTM over [W x_r; p_r] of sequence k;  h_0 = tanh(W v_k),
                h_t = LSTM([E w_{t-1}; v_k], h_{t-1})
    loss        winner takes all: a caption teaches the sequence k with the largest Σ_{w in it} max_{r ∈ k} p_r^w;
                plus the binary cross entropy of p^w

Regions are the cells of `model.grid`. The three functions weigh the same; the paper learns their weights. A clip's
caption is that of its first sequence, the most informative; the others tell what else there is (`Decoder.dense`).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from picknet.config import ModelConfig
from picknet.text import NEVER_WRITTEN, SPECIAL_WORDS
from picknet.training.systems.candidates import bag_of_words
from picknet.training.systems.parts import (
    FrameEncoder,
    LSTMDecoder,
    Memory,
    are_picked,
    feature_embedding,
    lstm_cell,
    lstm_states,
    with_video,
    word_loss,
)

NUM_SEQUENCES = 3
LEXICON = 500
"""The most frequent words, which a vocabulary begins with after the special ones."""
LEAST = 1e-6
LEXICON_SHARE = 100
"""The cross entropy of the lexicon is summed over its words and divided by this."""


class Encoder(FrameEncoder):
    """The video of its memory: v_k of all sequences, then max p_r^w of all sequences, then log(1 − p^w).

    It reads backwards as well, so that there is no reading frame by frame.
    """

    def __init__(self, config: ModelConfig, feature_size: int) -> None:
        super().__init__()
        self.state_size = config.state_size
        self.size = LEXICON + NUM_SEQUENCES * (2 * config.state_size + LEXICON)
        self.lexicon = nn.Linear(feature_size, LEXICON)
        nn.init.constant_(self.lexicon.bias, -7.0)  # hundreds of regions: a video shows hardly any word at first
        self.embed = feature_embedding(feature_size, config.embedding_size)
        self.forwards = lstm_cell(config.embedding_size + LEXICON, config.state_size)
        self.backwards = lstm_cell(config.embedding_size + LEXICON, config.state_size)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, features: Tensor, counts: Tensor) -> Memory:
        """features of picked frames, padded: (batch, picks, cells, feature_size), counts: (batch,)"""
        present = are_picked(features, counts)
        logits = self.lexicon(features)
        shows_none = (nn.functional.logsigmoid(-logits) * present[..., None, None]).sum((1, 2))
        shown = torch.sigmoid(logits.detach()) * present[..., None, None]
        chosen = region_sequences(features, shown, NUM_SEQUENCES)
        # All sequences at once, as a batch of as many times the size.
        regions, shown = (torch.cat([_of_regions(part, each) for each in chosen]) for part in (features, shown))
        videos = self._read(torch.cat([self.dropout(self.embed(regions)), shown], dim=-1), counts)
        video = torch.cat([*videos.chunk(NUM_SEQUENCES), *shown.amax(1).chunk(NUM_SEQUENCES), shows_none], dim=-1)
        none = video[:, None, :][:, :0]
        return Memory(video, none, none, present[:, :0])

    def _read(self, inputs: Tensor, counts: Tensor) -> Tensor:
        """(sequences × batch, frames, …), (batch,) -> last states both ways: (sequences × batch, 2 S)"""
        counts = counts.repeat(len(inputs) // len(counts))
        rows = torch.arange(len(inputs), device=inputs.device)
        # From the last frame to the first; padding stays behind them.
        turned = (counts[:, None] - 1 - torch.arange(inputs.shape[1], device=inputs.device)) % inputs.shape[1]
        nothing = inputs.new_zeros(len(inputs), self.state_size)
        ends = [
            lstm_states(cell, given, nothing, nothing)[rows, counts - 1]
            for cell, given in ((self.forwards, inputs), (self.backwards, inputs[rows[:, None], turned]))
        ]
        return torch.cat(ends, dim=-1)


def region_sequences(features: Tensor, shown: Tensor, count: int) -> list[Tensor]:
    """Choose a region of each frame, `count` times. features x_r: (batch, frames, cells, feature_size), shown p_r:
    (batch, frames, cells, words) -> for each sequence, cells: (batch, frames)"""
    directions = nn.functional.normalize(features, dim=-1)
    most = shown.amax((1, 2)).sum(-1, keepdim=True).clamp(min=LEAST)  # (batch, 1): what all regions together tell
    distributions = (shown + LEAST) / (shown + LEAST).sum(-1, keepdim=True)
    sequences: list[Tensor] = []
    before: list[Tensor] = []  # the mean distribution of each sequence: (batch, words)
    for _ in range(count):
        covered, last, cells = torch.zeros_like(shown[:, 0, 0]), None, []
        divergence = torch.zeros_like(shown[..., 0])
        if before:
            mean = torch.stack(before).mean(0)[:, None, None]
            divergence = (distributions * (distributions.log() - mean.log())).sum(-1)
        for frame in range(features.shape[1]):
            gain = (shown[:, frame] - covered[:, None]).clamp(min=0).sum(-1) / most + divergence[:, frame]
            if last is not None:
                gain = gain + (directions[:, frame] * last[:, None]).sum(-1)
            cell = gain.argmax(-1)
            cells.append(cell)
            last = _of_cell(directions[:, frame], cell)
            covered = torch.maximum(covered, _of_cell(shown[:, frame], cell))
        sequences.append(torch.stack(cells, dim=1))
        before.append(_of_regions(distributions, sequences[-1]).mean(1))
    return sequences


def _of_cell(cells: Tensor, chosen: Tensor) -> Tensor:
    """(batch, cells, size), (batch,) -> (batch, size)"""
    return cells[torch.arange(len(cells), device=cells.device), chosen]


def _of_regions(cells: Tensor, chosen: Tensor) -> Tensor:
    """(batch, frames, cells, size), (batch, frames) -> (batch, frames, size)"""
    return cells.gather(2, chosen[..., None, None].expand(-1, -1, 1, cells.shape[-1]))[:, :, 0]


class Decoder(LSTMDecoder):
    """It describes one sequence: the first numbers of a memory's video are its v_k."""

    def __init__(self, config: ModelConfig, num_words: int, encoder: Encoder) -> None:
        size = config.state_size
        super().__init__(config, num_words, input_size=config.embedding_size + 2 * size)
        self.start = nn.Linear(2 * size, 2 * size)

    def begin(self, video: Tensor) -> Tensor:
        return torch.tanh(self.start(video[:, : self.hidden_size]))

    def given(self, words: Tensor, memory: Memory) -> Tensor:
        return with_video(words, self.dropout(memory.video[:, : self.hidden_size]))

    def loss(self, memory: Memory, words: Tensor, *, label_smoothing: float, **settings: Any) -> Tensor:
        told = bag_of_words(words, self.embed.num_embeddings)[:, len(SPECIAL_WORDS) :][:, :LEXICON]
        told = nn.functional.pad(told, (0, LEXICON - told.shape[1]))
        videos, shown, shows_none = self._sequences(memory)
        winner = (shown * told[:, None]).sum(-1).argmax(-1)
        logits = self(memory._replace(video=_of_cell(videos, winner)), words[:, :-1], **settings)
        shows = (-torch.expm1(shows_none.clamp(max=-LEAST))).log()  # log p^w
        of_lexicon = -(told * shows + (1 - told) * shows_none).sum(-1).mean()
        return word_loss(logits, words, label_smoothing=label_smoothing) + of_lexicon / LEXICON_SHARE

    def dense(self, memory: Memory, *, max_words: int, never_written: Sequence[int] = NEVER_WRITTEN) -> list[Tensor]:
        """The captions of all sequences. -> for each, words: (batch, at most max_words)"""
        several = self._sequences(memory)[0].unbind(1)
        settings: dict[str, Any] = {"max_words": max_words, "never_written": never_written}
        return [self.write(memory._replace(video=video), **settings) for video in several]

    def _sequences(self, memory: Memory) -> tuple[Tensor, Tensor, Tensor]:
        """-> v_k: (batch, sequences, 2 S), max p_r^w: (batch, sequences, LEXICON), log(1 − p^w): (batch, LEXICON)"""
        sizes = [NUM_SEQUENCES * self.hidden_size, NUM_SEQUENCES * LEXICON, LEXICON]
        videos, shown, shows_none = memory.video.split_with_sizes(sizes, dim=-1)
        videos, shown = (part.reshape(len(part), NUM_SEQUENCES, -1) for part in (videos, shown))
        return videos, shown, shows_none
