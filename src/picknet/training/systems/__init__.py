"""Captioning systems of the paper's tables, one module each: an encoder, a decoder and its loss.

They see the same features as PickNet's own captioner in `network.py` and take its place, from training to the graphs of
a model folder: `model.system` says which.
"""

from picknet.config import ModelConfig
from picknet.training.systems import aalto, ba, densecap, hrne, lstm_e, mean, ms_rnn, p_rnn, ruc_uva, s2vt, ta
from picknet.training.systems.parts import FrameEncoder, WordDecoder

SYSTEMS = {
    "mean": mean,
    "ta": ta,
    "s2vt": s2vt,
    "lstm-e": lstm_e,
    "p-rnn": p_rnn,
    "hrne": hrne,
    "ba": ba,
    "ruc-uva": ruc_uva,
    "aalto": aalto,
    "densecap": densecap,
    "ms-rnn": ms_rnn,
}
"""By `model.system`."""


def build(config: ModelConfig, *, feature_size: int, num_words: int) -> tuple[FrameEncoder, WordDecoder]:
    """The encoder and the decoder of a system."""
    system = SYSTEMS[config.system]
    encoder: FrameEncoder = system.Encoder(config, feature_size)
    decoder: WordDecoder = system.Decoder(config, num_words, encoder)
    return encoder, decoder
