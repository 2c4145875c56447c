"""What captioning systems are made of: an encoder that reads picked frames one by one, a decoder that writes a sentence
word by word, and the parts that several of them share."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from picknet.config import ModelConfig
from picknet.text import BOS, EOS, NEVER_WRITTEN, PAD

WORDS_AT_ONCE = 5
"""Words of greedy captions that are written before a check whether all captions have ended, which waits for the
device."""


class LSTMState(NamedTuple):
    """The encoder's state after the frames picked so far. Both (batch, S)."""

    h: Tensor
    c: Tensor


class Memory(NamedTuple):
    """The decoder's input: the video as one vector and, with attention, keys and values of the cells of all picks."""

    video: Tensor
    """v: (batch, S)."""
    keys: Tensor
    """(batch, cells of all picks, E); 0 cells without attention."""
    values: Tensor
    present: Tensor
    """(batch, cells of all picks) bool: false for padding."""

    def of(self, rows: Tensor) -> "Memory":
        """Select rows of the batch, which may repeat."""
        return Memory(*(part[rows] for part in self))


Read = tuple[LSTMState, Tensor, Tensor]
"""The state after a frame, and the frame's keys and values: (batch, cells, E), 0 cells without attention."""


class FrameEncoder(nn.Module):
    """The encoder of a system. It sees each frame by itself, and reads what it saw one frame after the other.

    What it keeps of the frames so far is packed into h, of which the decoder gets the last one as the video, and c.
    """

    size: int
    """Of h and of c: S."""
    attended = False
    """Whether the decoder attends to keys and values of each frame."""

    def start(self, batch: int, device: torch.device | None = None) -> LSTMState:
        zeros = torch.zeros(batch, self.size, device=device)
        return LSTMState(zeros, zeros)

    def see(self, features: Tensor) -> Tensor:
        """(…, cells, feature_size) -> (…, size of what is seen)"""
        raise NotImplementedError

    def read(self, seen: Tensor, state: LSTMState) -> Read:
        """What is seen of a frame: (batch, …), and the state so far."""
        raise NotImplementedError

    def step(self, features: Tensor, state: LSTMState) -> Read:
        """features: (batch, cells, feature_size), the state so far"""
        return self.read(self.see(features), state)

    def forward(self, features: Tensor, counts: Tensor) -> Memory:
        """features of picked frames, padded: (batch, picks, cells, feature_size), counts: (batch,)"""
        state = self.start(len(features), features.device)
        keys, values = [], []
        for number, seen in enumerate(self.see(features).unbind(1)):
            new, *cells = self.read(seen, state)
            is_picked = (number < counts)[:, None]
            state = LSTMState(*(torch.where(is_picked, *both) for both in zip(new, state, strict=True)))
            keys.append(cells[0])
            values.append(cells[1])
        present = are_picked(features, counts).repeat_interleave(keys[0].shape[1], dim=1)
        return Memory(state.h, torch.cat(keys, dim=1), torch.cat(values, dim=1), present)


class FeatureMeanEncoder(FrameEncoder):
    """v is the mean of the features of all frames: h holds it, c how many they are. Nothing in it is trained."""

    def __init__(self, config: ModelConfig, feature_size: int) -> None:
        super().__init__()
        self.size = feature_size

    def see(self, features: Tensor) -> Tensor:
        return features.mean(-2)

    def read(self, seen: Tensor, state: LSTMState) -> Read:
        count = state.c + 1
        return LSTMState(state.h + (seen - state.h) / count, count), *self.cells(seen[:, None])

    def cells(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """What is seen of frames: (batch, frames, …) -> their keys and values: (batch, frames, E), or none"""
        return seen[:, :0], seen[:, :0]

    def forward(self, features: Tensor, counts: Tensor) -> Memory:
        """As frame by frame, but at once."""
        seen, present = self.see(features), are_picked(features, counts)
        keys, values = self.cells(seen)
        video = (seen * present[..., None]).sum(1) / counts[:, None]
        return Memory(video, keys, values, present[:, : keys.shape[1]])


class MeanEncoder(FeatureMeanEncoder):
    """v is the mean of the embedded features of all frames."""

    def __init__(self, config: ModelConfig, feature_size: int) -> None:
        super().__init__(config, feature_size)
        self.size = config.embedding_size
        self.embed = feature_embedding(feature_size, config.embedding_size)
        self.dropout = nn.Dropout(config.dropout)

    def see(self, features: Tensor) -> Tensor:
        seen: Tensor = self.embed(self.dropout(features.mean(-2)))
        return seen


class Writer(nn.Module):
    """What all decoders have in common: their loss, and greedy decoding."""

    def begin_writing(self, memory: Memory) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The state before the first word, and what every word needs beside it."""
        raise NotImplementedError

    def next_logits(self, word: Tensor, state: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
        """The last word: (batch,), the state, and what `begin_writing` gave
        -> logits of the next word: (batch, words), the state after the last"""
        raise NotImplementedError

    def loss(
        self,
        memory: Memory,
        words: Tensor,
        *,
        feed_back: Sequence[bool] | Tensor,
        never_written: Sequence[int],
        label_smoothing: float,
    ) -> Tensor:
        """L_X: words from <bos> to <eos>, padded: (batch, length + 1) -> the mean cross entropy of a word"""
        logits = self(memory, words[:, :-1], feed_back=feed_back, never_written=never_written)
        return word_loss(logits, words, label_smoothing=label_smoothing)

    @torch.no_grad()
    def write(
        self,
        memory: Memory,
        *,
        max_words: int,
        first_words: Tensor | None = None,
        never_written: Sequence[int] = NEVER_WRITTEN,
        some_words: Callable[..., tuple[Tensor, Tensor, Tensor]] | None = None,
    ) -> Tensor:
        """Greedy decoding, as in the paper. -> words: (batch, at most max_words), padded after <eos>

        first_words: (batch,) <bos> or a style word for each caption, by default <bos>. Words in `never_written` are
        never chosen. some_words: in place of the method, `Replayed`.
        """
        video = memory.video
        state, given = self.begin_writing(memory)
        word = torch.full((len(video),), BOS, device=video.device) if first_words is None else first_words
        finished = torch.zeros_like(word, dtype=torch.bool)
        words: list[Tensor] = []
        for _ in range(0, max_words, WORDS_AT_ONCE):
            written, state, finished = (some_words or self.some_words)(
                word, finished, state, *given, never_written=tuple(never_written)
            )
            words.append(written)
            word = written[:, -1]
            if finished.all():
                break
        return torch.cat(words, dim=1)[:, :max_words]

    @torch.no_grad()
    def some_words(
        self, word: Tensor, finished: Tensor, state: Tensor, *given: Tensor, never_written: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Go on with greedy captions. word (the last), finished: (batch,), the state and what `begin_writing` gave
        -> words: (batch, WORDS_AT_ONCE), state and finished after them"""
        words = []
        for _ in range(WORDS_AT_ONCE):
            logits, state = self.next_logits(word, state, *given)
            word = likeliest(logits, never_written).masked_fill(finished, PAD)
            finished = finished | (word == EOS)
            words.append(word)
        return torch.stack(words, dim=1), state, finished


class WordDecoder(Writer):
    """The decoder of a system: a state, a cell that takes a word, and logits of the next one.

    The state has a last number more than the cell's, which says whether the sentence has begun: before, the cell's is
    `begin(video)`, and whoever writes a sentence starts with zeros, whatever the system.
    """

    def __init__(self, config: ModelConfig, num_words: int, *, hidden_size: int, output_size: int) -> None:
        """hidden_size: of the cell's state. output_size: of what the logits are made of."""
        super().__init__()
        self.hidden_size = hidden_size
        self.size = hidden_size + 1
        self.embed = nn.Embedding(num_words, config.embedding_size)
        self.output = nn.Linear(output_size, num_words)
        self.dropout = nn.Dropout(config.dropout)
        nn.init.normal_(self.embed.weight, std=WORD_DEVIATION)
        nn.init.zeros_(self.output.bias)

    def begin(self, video: Tensor) -> Tensor:
        """The cell's state before the first word. v: (batch, S) -> (batch, hidden_size)"""
        return video.new_zeros(len(video), self.hidden_size)

    def cell(self, words: Tensor, memory: Memory, state: Tensor) -> tuple[Tensor, Tensor]:
        """Embedded words: (batch, E), memory of one video or of each, state: (batch, hidden_size)
        -> output: (batch, output_size), state"""
        raise NotImplementedError

    def outputs(self, words: Tensor, memory: Memory, state: Tensor) -> Tensor:
        """`cell` for all words of sentences, one after the other, or in a faster way.
        words: (batch, length, E), memory of each video -> (batch, length, output_size)"""
        found = []
        for word in words.unbind(1):
            output, state = self.cell(word, memory, state)
            found.append(output)
        return torch.stack(found, dim=1)

    def logits(self, outputs: Tensor) -> Tensor:
        """(…, output_size) -> (…, words)"""
        found: Tensor = self.output(self.dropout(outputs))
        return found

    def step(self, words: Tensor, video: Tensor, keys: Tensor, values: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """words: (batch,), v: (batch or 1, S), keys, values: (batch or 1, cells, E), state: (batch, size)
        -> log-probabilities: (batch, words), state: (batch, size)"""
        present = torch.ones(keys.shape[:2], dtype=torch.bool, device=keys.device)
        own, has_begun = state[:, :-1], state[:, -1:]
        own = torch.where(has_begun > 0, own, self.begin(video))
        output, own = self.cell(self.embed(words), Memory(video, keys, values, present), own)
        return self.logits(output).log_softmax(-1), torch.cat([own, torch.ones_like(has_begun)], dim=-1)

    def forward(
        self,
        memory: Memory,
        words: Tensor,
        *,
        feed_back: Sequence[bool] | Tensor = (),
        never_written: Sequence[int] = NEVER_WRITTEN,
    ) -> Tensor:
        """words from <bos> on: (batch, length) -> logits of the next words: (batch, length, words)

        feed_back: scheduled sampling, as in `Decoder.forward` of PickNet's own captioner.
        """
        state, true_words = self.begin(memory.video), self.dropout(self.embed(words))
        if not isinstance(feed_back, Tensor) and not any(feed_back):
            return self.logits(self.outputs(true_words, memory, state))
        outputs: list[Tensor] = []
        for t, given in enumerate(true_words.unbind(1)):
            if t > 0 and (isinstance(feed_back, Tensor) or feed_back[t]):
                with torch.no_grad():
                    written = likeliest(self.logits(outputs[-1]), never_written)
                own = self.dropout(self.embed(written))
                given = torch.where(feed_back[t], own, given) if isinstance(feed_back, Tensor) else own
            output, state = self.cell(given, memory, state)
            outputs.append(output)
        return self.logits(torch.stack(outputs, dim=1))

    def begin_writing(self, memory: Memory) -> tuple[Tensor, tuple[Tensor, ...]]:
        return self.begin(memory.video), memory

    def next_logits(self, word: Tensor, state: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
        output, state = self.cell(self.embed(word), Memory(*given), state)
        return self.logits(output), state


class LSTMDecoder(WordDecoder):
    """A decoder whose cell is one LSTM: the next word depends on its h alone."""

    def __init__(self, config: ModelConfig, num_words: int, *, input_size: int) -> None:
        """input_size: of what the LSTM is given with each word."""
        super().__init__(config, num_words, hidden_size=2 * config.state_size, output_size=config.state_size)
        self.lstm = lstm_cell(input_size, config.state_size)

    def given(self, words: Tensor, memory: Memory) -> Tensor:
        """The LSTM's input: by default the words. words: (batch, E), or (batch, length, E) -> (…, input_size)"""
        return words

    def cell(self, words: Tensor, memory: Memory, state: Tensor) -> tuple[Tensor, Tensor]:
        h, c = self.lstm(self.given(words, memory), state.chunk(2, dim=-1))
        return h, torch.cat([h, c], dim=-1)

    def outputs(self, words: Tensor, memory: Memory, state: Tensor) -> Tensor:
        return lstm_states(self.lstm, self.given(words, memory), *state.chunk(2, dim=-1))


def with_video(words: Tensor, video: Tensor) -> Tensor:
    """Words with their video beside each. words: (batch, E), or (batch, length, E), video: (batch or 1, S)"""
    video = video if words.dim() == 2 else video[:, None]
    return torch.cat([words, video.expand(*words.shape[:-1], -1)], dim=-1)


class SoftAttention(nn.Module):
    """e_i = wᵀ tanh(W h + U v_i + b); a softmax over i gives weights α_i; the result is Σ α_i v_i.

    The keys U v_i + b do not depend on h: the encoder computes them once.
    """

    def __init__(self, state_size: int, size: int, *, activation: Callable[[Tensor], Tensor] = torch.tanh) -> None:
        super().__init__()
        self.activation = activation
        self.query = nn.Linear(state_size, size, bias=False)
        self.score = nn.Linear(size, 1, bias=False)

    def forward(self, state: Tensor, keys: Tensor, values: Tensor, present: Tensor) -> Tensor:
        """state h: (batch, state_size), keys, values: (batch or 1, cells, size), present: (batch or 1, cells)
        -> (batch, size)"""
        scores = self.score(self.activation(self.query(state)[:, None] + keys))[..., 0]
        weights = scores.masked_fill(~present, -torch.inf).softmax(-1)
        # A matrix product would fix the number of memories in an exported graph.
        found: Tensor = (weights[..., None] * values).sum(1)
        return found


WORD_DEVIATION = 0.06
"""Of new word embeddings. PyTorch's N(0, 1) drowns the video."""


def feature_embedding(feature_size: int, size: int) -> nn.Linear:
    layer = nn.Linear(feature_size, size)
    nn.init.kaiming_normal_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def lstm_cell(input_size: int, size: int) -> nn.LSTMCell:
    """An LSTM whose forget gate starts open. Each gate is orthogonal from the state and Xavier from the input."""
    cell = nn.LSTMCell(input_size, size)
    _initialise(cell, gates=4)
    with torch.no_grad():
        cell.bias_ih[size : 2 * size] = 1.0
    return cell


def gru_cell(input_size: int, size: int) -> nn.GRUCell:
    cell = nn.GRUCell(input_size, size)
    _initialise(cell, gates=3)
    return cell


def lstm_states(cell: nn.LSTMCell, inputs: Tensor, h: Tensor, c: Tensor) -> Tensor:
    """A cell over a whole sequence. inputs: (batch, length, …), h, c before it: (batch, S) -> h: (batch, length, S)"""
    return whole_lstm(inputs, h, c, (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh))


def whole_lstm(inputs: Tensor, h: Tensor, c: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """PyTorch's fast operation for a standard LSTM. weights: from input, from state, and their biases"""
    before = (h[None].contiguous(), c[None].contiguous())
    # train=True with dropout 0: cuDNN needs the flag to compute gradients.
    return torch.lstm(inputs, before, list(weights), True, 1, 0.0, True, False, True)[0]


def gru_states(cell: nn.GRUCell, inputs: Tensor, h: Tensor) -> Tensor:
    """As `lstm_states`."""
    weights = [cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh]
    return torch.gru(inputs, h[None].contiguous(), weights, True, 1, 0.0, True, False, True)[0]


def _initialise(cell: nn.LSTMCell | nn.GRUCell, *, gates: int) -> None:
    for from_input, from_state in zip(
        cell.weight_ih.detach().chunk(gates), cell.weight_hh.detach().chunk(gates), strict=True
    ):
        nn.init.xavier_uniform_(from_input)
        nn.init.orthogonal_(from_state)
    nn.init.zeros_(cell.bias_ih)
    nn.init.zeros_(cell.bias_hh)


def are_picked(features: Tensor, counts: Tensor) -> Tensor:
    """(batch, picks, …), (batch,) -> (batch, picks) bool: false for padding"""
    return torch.arange(features.shape[1], device=counts.device) < counts[:, None]


def no_cells(seen: Tensor) -> tuple[Tensor, Tensor]:
    """The keys and values of an encoder to which no decoder attends: (batch, 0, size)"""
    none = seen[:, None, :][:, :0]
    return none, none


def word_loss(logits: Tensor, words: Tensor, *, label_smoothing: float) -> Tensor:
    """logits: (batch, length, words), words from <bos> to <eos>: (batch, length + 1) -> the mean over words"""
    return nn.functional.cross_entropy(
        logits.flatten(0, 1), words[:, 1:].flatten(), ignore_index=PAD, label_smoothing=label_smoothing
    )


@lru_cache(maxsize=16)
def barred(never_written: tuple[int, ...], num_words: int, device: torch.device) -> Tensor:
    """-> (words,) bool: the words that are never written. Kept, since a copy to the device waits for it."""
    found = torch.zeros(num_words, dtype=torch.bool)
    found[list(never_written)] = True
    return found.to(device)


def likeliest(logits: Tensor, never_written: Sequence[int]) -> Tensor:
    """logits: (batch, words), which are changed -> the likeliest words that may be written: (batch,)"""
    return logits.masked_fill_(barred(tuple(never_written), logits.shape[-1], logits.device), -torch.inf).argmax(-1)
