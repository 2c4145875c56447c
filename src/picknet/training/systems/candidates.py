"""Several sentences for each video, for systems that choose among them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from picknet.text import BOS, EOS, NEVER_WRITTEN, PAD, SPECIAL_WORDS
from picknet.training.systems.parts import Memory, WordDecoder, barred


@torch.no_grad()
def beam_candidates(
    decoder: WordDecoder,
    memory: Memory,
    *,
    beam: int,
    max_words: int,
    first_words: Tensor | None = None,
    never_written: Sequence[int] = NEVER_WRITTEN,
) -> tuple[Tensor, Tensor]:
    """What a beam search finds for each video of a batch, likeliest first.

    -> words: (batch, beam, at most max_words + 1), padded after <eos>, log-probabilities: (batch, beam)
    """
    batch, device = len(memory.video), memory.video.device
    firsts = torch.arange(batch, device=device)[:, None] * beam  # the first row of each video
    memory = memory.of(torch.arange(batch, device=device).repeat_interleave(beam))
    state, finished = decoder.begin(memory.video), torch.zeros(batch * beam, dtype=torch.bool, device=device)
    word = finished.long() + BOS if first_words is None else first_words.repeat_interleave(beam)
    words = word[:, None][:, :0]
    totals = torch.full((batch, beam), -torch.inf, device=device)
    totals[:, 0] = 0.0
    for number in range(max_words + 1):
        output, state = decoder.cell(decoder.embed(word), memory, state)
        scores = decoder.logits(output).log_softmax(-1)
        scores = scores.masked_fill(barred(tuple(never_written), scores.shape[-1], device), -torch.inf)
        if number == max_words:  # only <eos> may follow the last word
            scores[:, EOS + 1 :] = -torch.inf
        scores[finished] = -torch.inf
        scores[:, PAD] = scores[:, PAD].masked_fill(finished, 0.0)  # a finished sentence goes on for nothing
        longer = (totals[..., None] + scores.view(batch, beam, -1)).flatten(1)
        totals, chosen = longer.topk(beam)
        rows, word = (firsts + chosen // scores.shape[-1]).flatten(), (chosen % scores.shape[-1]).flatten()
        words, state, finished = torch.cat([words[rows], word[:, None]], dim=1), state[rows], finished[rows]
        finished = finished | (word == EOS)
        if finished.all():
            break
    return words.view(batch, beam, -1), totals


def chosen_words(words: Tensor, scores: Tensor) -> Tensor:
    """The sentences with the highest scores. (batch, candidates, length), (batch, candidates) -> (batch, length)"""
    return words[torch.arange(len(words), device=words.device), scores.argmax(1)]


def bag_of_words(words: Tensor, num_words: int) -> Tensor:
    """Which words a sentence has, without <pad>, <bos>, <eos> and <unk>. (…, length) -> (…, num_words), 0 or 1"""
    special = len(SPECIAL_WORDS)
    bags = torch.zeros(*words.shape[:-1], num_words, device=words.device).scatter_(-1, words, 1.0)
    return torch.cat([torch.zeros_like(bags[..., :special]), bags[..., special:]], dim=-1)
