"""ruc-uva: predicted tags go in, and sentences are re-ranked by their similarity to the video (Dong et al., "Early
Embedding and Late Reranking for Video Captioning", ACM Multimedia 2016).

    tags        p = σ(f(v)),  v the mean of all features, one number for each word; labels are the words of a caption
    early       h_0 = LSTM(W_v v + W_t p),  h_t = LSTM(E w_{t-1}, h_{t-1}),  p(w_t) = softmax(W h_t)
    late        of 20 sentences by beam search, the one with the highest log p(s) / |s| + cos(g(s), v), both made
                standard over the 20; g predicts the features of a video from the words of a sentence (Word2VisualVec)
    loss        cross entropy of words + binary cross entropy of tags + ‖g(s) − v‖² / size of v

The paper's tags come from another network's predictions, and their vectors and those of sentences from word2vec; here
all are learned from the same captions. It tunes the weight of the similarity on validation clips; here both weigh the
same.
"""

from typing import Any

import torch
from torch import Tensor, nn

from picknet.config import ModelConfig
from picknet.text import PAD
from picknet.training.systems.candidates import bag_of_words, beam_candidates, chosen_words
from picknet.training.systems.parts import FeatureMeanEncoder, LSTMDecoder, Memory, feature_embedding

NUM_CANDIDATES = 20

Encoder = FeatureMeanEncoder


class Decoder(LSTMDecoder):
    def __init__(self, config: ModelConfig, num_words: int, encoder: Encoder) -> None:
        size, embedding_size, feature_size = config.state_size, config.embedding_size, encoder.size
        super().__init__(config, num_words, input_size=embedding_size)
        self.embed_video = feature_embedding(feature_size, embedding_size)
        self.embed_tags = nn.Linear(num_words, embedding_size, bias=False)
        self.tags = nn.Sequential(nn.Linear(feature_size, size), nn.ReLU(), nn.Dropout(config.dropout))
        self.tags.append(nn.Linear(size, num_words))
        self.visual = nn.Sequential(nn.Linear(num_words, size), nn.ReLU(), nn.Linear(size, feature_size))  # g

    def begin(self, video: Tensor) -> Tensor:
        tags = torch.sigmoid(self.tags(video)).detach()  # learned from their labels alone
        first = self.embed_video(self.dropout(video)) + self.embed_tags(tags)
        nothing = first.new_zeros(len(first), self.lstm.hidden_size)
        return torch.cat(self.lstm(first, (nothing, nothing)), dim=-1)

    def loss(self, memory: Memory, words: Tensor, **settings: Any) -> Tensor:
        bags = bag_of_words(words, self.embed.num_embeddings)
        of_words = super().loss(memory, words, **settings)
        of_tags = nn.functional.binary_cross_entropy_with_logits(self.tags(memory.video), bags)
        return of_words + of_tags * bags.shape[1] / TAGS_SHARE + nn.functional.mse_loss(self.visual(bags), memory.video)

    def similarity(self, memory: Memory, words: Tensor) -> Tensor:
        """words of sentences: (batch, candidates, length) -> cosines: (batch, candidates)"""
        predicted = self.visual(bag_of_words(words, self.embed.num_embeddings))
        return nn.functional.cosine_similarity(predicted, memory.video[:, None], dim=-1)

    @torch.no_grad()
    def write(self, memory: Memory, *, some_words: object = None, **settings: Any) -> Tensor:
        """Late re-ranking. settings: as those of other decoders
        -> words: (batch, at most max_words + 1), padded after <eos>"""
        words, likely = beam_candidates(self, memory, beam=NUM_CANDIDATES, **settings)
        likely = likely / (words != PAD).sum(-1)
        return chosen_words(words, standardised(likely) + standardised(self.similarity(memory, words)))


TAGS_SHARE = 100
"""A tag's cross entropy is summed over all words, which are hardly ever in a sentence, and divided by this."""


def standardised(scores: Tensor) -> Tensor:
    """(batch, candidates), minus their mean and over their deviation; candidates that do not exist stay at −∞."""
    exist = scores.isfinite()
    known = scores.masked_fill(~exist, 0.0)
    count = exist.sum(1, keepdim=True)
    mean = known.sum(1, keepdim=True) / count
    variance = ((known - mean).square() * exist).sum(1, keepdim=True) / count
    return ((scores - mean) / variance.sqrt().clamp(min=1e-6)).masked_fill(~exist, -torch.inf)
