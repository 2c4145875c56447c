"""Aalto: several captioners, and a learned evaluator that chooses among their sentences (Shetty and Laaksonen, "Frame-
and Segment-Level Features and Candidate Pool Evaluation for Video Caption Generation", ACM Multimedia 2016).

    captioner   h_0 = LSTM([A a; B b], 0),  h_t = LSTM([E w_{t-1}; B b], h_{t-1}),  p(w_t) = softmax(W h_t)
    evaluator   r(v, s) = (V v) · LSTM(s),   loss −log σ(r(v, s)) − log σ(−r(v, s′)),   s′ a caption of another clip

a is what a captioner sees at first, b what it sees with every word. The paper's are features of frames (CNNs) and of
segments (trajectories, a 3-D CNN); here the mean of the features of frames, x, and the mean of the absolute differences
of successive ones, y. Three captioners have (a, b) = (x, x), (x, y) and (y, x); the evaluator sees v = [x; y].
"""

from typing import Any

import torch
from torch import Tensor, nn

from picknet.config import ModelConfig
from picknet.text import PAD
from picknet.training.systems.candidates import chosen_words
from picknet.training.systems.parts import (
    FrameEncoder,
    LSTMDecoder,
    LSTMState,
    Memory,
    Read,
    WordDecoder,
    are_picked,
    feature_embedding,
    no_cells,
    with_video,
)


class Encoder(FrameEncoder):
    """h: the mean of the frames, the mean of their absolute differences, and the last frame. c counts the frames."""

    def __init__(self, config: ModelConfig, feature_size: int) -> None:
        super().__init__()
        self.size = 3 * feature_size

    def see(self, features: Tensor) -> Tensor:
        return features.mean(-2)

    def read(self, seen: Tensor, state: LSTMState) -> Read:
        frames, changes, last = state.h.chunk(3, dim=-1)
        count = state.c[:, :1]
        change = torch.where(count > 0, (seen - last).abs(), torch.zeros_like(seen))
        frames = frames + (seen - frames) / (count + 1)
        changes = changes + (change - changes) / count.clamp(min=1)
        return LSTMState(torch.cat([frames, changes, seen], dim=-1), state.c + 1), *no_cells(seen)

    def forward(self, features: Tensor, counts: Tensor) -> Memory:
        """As frame by frame, but at once."""
        seen, present = self.see(features), are_picked(features, counts)
        frames = (seen * present[..., None]).sum(1) / counts[:, None]
        changes = (seen.diff(dim=1).abs() * present[:, 1:, None]).sum(1) / (counts[:, None] - 1).clamp(min=1)
        last = seen[torch.arange(len(seen), device=seen.device), counts - 1]
        return Memory(torch.cat([frames, changes, last], dim=-1), *no_cells(frames), present[:, :0])


class Captioner(LSTMDecoder):
    """One of them. first, always: which third of the encoder's h it sees at first and with every word."""

    def __init__(self, config: ModelConfig, num_words: int, encoder: Encoder, *, first: int, always: int) -> None:
        embedding_size = config.embedding_size
        super().__init__(config, num_words, input_size=2 * embedding_size)
        self.first, self.always = first, always
        self.embed_first = feature_embedding(encoder.size // 3, embedding_size)
        self.embed_always = feature_embedding(encoder.size // 3, embedding_size)

    def begin(self, video: Tensor) -> Tensor:
        first = self.embed_first(self.dropout(video.chunk(3, dim=-1)[self.first]))
        nothing = video.new_zeros(len(video), self.lstm.hidden_size)
        return torch.cat(self.lstm(with_video(first, self._seen(video)), (nothing, nothing)), dim=-1)

    def given(self, words: Tensor, memory: Memory) -> Tensor:
        return with_video(words, self._seen(memory.video))

    def _seen(self, video: Tensor) -> Tensor:
        seen: Tensor = self.embed_always(self.dropout(video.chunk(3, dim=-1)[self.always]))
        return seen


class Evaluator(nn.Module):
    """How well a sentence fits a video."""

    def __init__(self, config: ModelConfig, num_words: int, encoder: Encoder) -> None:
        super().__init__()
        self.embed = nn.Embedding(num_words, config.embedding_size, padding_idx=PAD)
        self.lstm = nn.LSTM(config.embedding_size, config.state_size, batch_first=True)
        self.embed_video = nn.Linear(2 * encoder.size // 3, config.state_size)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, memory: Memory, words: Tensor) -> Tensor:
        """words without <bos>, padded after <eos>: (batch, length) -> r: (batch,)"""
        states = self.lstm(self.dropout(self.embed(words)))[0]
        last = (words != PAD).sum(1).clamp(min=1) - 1
        sentence = states.gather(1, last[:, None, None].expand(-1, 1, states.shape[-1]))[:, 0]
        video = memory.video[:, : self.embed_video.in_features]
        fit: Tensor = (self.embed_video(self.dropout(video)) * sentence).sum(-1)
        return fit


class Decoder(Captioner):
    """The first captioner, with the others and the evaluator."""

    def __init__(self, config: ModelConfig, num_words: int, encoder: Encoder) -> None:
        super().__init__(config, num_words, encoder, first=0, always=0)
        views = ((0, 1), (1, 0))
        self.others = nn.ModuleList(
            [Captioner(config, num_words, encoder, first=first, always=always) for first, always in views]
        )
        self.evaluator = Evaluator(config, num_words, encoder)

    @property
    def captioners(self) -> "tuple[Captioner, ...]":
        return (self, *(each for each in self.others if isinstance(each, Captioner)))

    def loss(self, memory: Memory, words: Tensor, **settings: Any) -> Tensor:
        of_captioners = [WordDecoder.loss(each, memory, words, **settings) for each in self.captioners]
        sentences = words[:, 1:]
        # Half a batch away is a caption of another clip, but for a few by chance.
        others = sentences.roll(len(words) // 2, dims=0)
        right, wrong = self.evaluator(memory, sentences), self.evaluator(memory, others)
        of_evaluator = nn.functional.softplus(-right).mean() + nn.functional.softplus(wrong).mean()
        return torch.stack(of_captioners).sum() + of_evaluator

    @torch.no_grad()
    def write(self, memory: Memory, *, some_words: object = None, **settings: Any) -> Tensor:
        """The evaluator's choice among the greedy sentences of all captioners. settings: as those of other decoders
        -> words: (batch, at most max_words)"""
        written = [WordDecoder.write(each, memory, **settings) for each in self.captioners]
        length = max(words.shape[1] for words in written)
        padded = [nn.functional.pad(words, (0, length - words.shape[1]), value=PAD) for words in written]
        scores = [self.evaluator(memory, words) for words in padded]
        return chosen_words(torch.stack(padded, dim=1), torch.stack(scores, dim=1))
