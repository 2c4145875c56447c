"""Every hyper-parameter, once: frozen dataclasses with the paper's values as defaults, TOML files and `--set`."""

import dataclasses
import difflib
import json
import tomllib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from picknet.errors import PicknetError


class BadConfig(PicknetError):
    """A config file or a `--set` that cannot be used."""


@dataclass(frozen=True)
class VideoConfig:
    num_frames: int = 30
    """Frames sampled evenly from every clip."""


@dataclass(frozen=True)
class TextConfig:
    min_count: int = 3
    """Words seen less often become <unk>."""
    vocabulary_splits: tuple[str, ...] = ("train",)
    """The splits whose captions are counted; the paper's 5,491 words need ["train", "val", "test"]."""
    max_words: int = 30
    """Longest caption written or learned from, without <eos>."""
    styles: bool = False
    """Of several data sets the first is the one to learn, and validated on; captions of the others begin with a word of
    their own, such as [msrvtt], so that the captioner can tell their style from the first's."""


@dataclass(frozen=True)
class ModelConfig:
    cnn: str = "resnet152"
    """efficientnet_lite0, efficientnet_lite2, or a timm model's name (with the timm extra)."""
    image_size: int = 224
    """The CNN sees a picked frame as image_size × image_size pixels."""
    embedding_size: int = 512
    """Size of the embeddings of features and of words."""
    state_size: int = 1024
    """Size of the LSTM's and the GRU's states."""
    grid: int = 1
    """A frame's features are one vector for each of grid × grid cells; 1: one vector a frame, as in the paper."""
    attention_heads: int = 0
    """Heads with which the decoder looks at the cells of picked frames; 0: it has v alone, as in the paper."""
    attention_hidden: int = 2048
    """Size of the layer that turns what attention found into the next word."""
    tied_words: bool = False
    """Whether words are written by the same matrix that they are read by."""
    picker: Literal["difference", "stride"] = "difference"
    """The paper's policy on a difference of glances, or one that starts out as a steady stride."""
    picker_hidden: int = 1024
    """Size of PickNet's hidden layer."""
    stride: float = 7.5
    """The stride policy: how many frames lie between two picks, until it learns otherwise. This is its dial."""
    first_pick: float = 2.0
    """The stride policy: the frame it picks first, or half a stride into the video where that is earlier."""
    output_gate: Literal["sigmoid", "tanh"] = "sigmoid"
    """The encoder's output gate: tanh as arXiv v1 prints it, sigmoid as ECCV 2018 (an ordinary LSTM)."""
    pick_threshold: float = 0.5
    """A frame is picked in use when its probability is above this; 0.5 is the likelier action, as in the paper."""
    max_gap: int = 0
    """The difference policy: at the latest so many frames after a pick another is forced; 0: never, as in the paper."""
    initial_pick_probability: float = 0.5
    """The difference policy: how often it picks untrained; 0.5 is what a plain initialisation gives."""
    dropout: float = 0.5
    """Dropout on the input and the output of the encoder and the decoder."""


@dataclass(frozen=True)
class RewardConfig:
    language_weight: float = 1.0
    """λ_l: the weight of the caption's CIDEr."""
    diversity_weight: float = 1.0
    """λ_v: the weight of the visual diversity of the picks."""
    diversity: Literal["deviation", "cosine"] = "cosine"
    """r_v: summed standard deviations (arXiv v1) or mean pairwise cosine distance (ECCV 2018)."""
    penalty: float = -1.0
    """R⁻: the reward when the number of picks leaves [N_min, N_max]."""
    min_picks: int = 3
    """N_min."""
    max_picks_share: float = 1 / 3
    """N_max at the start, as a share of the frames (1/3 in arXiv v1, 1/2 in ECCV 2018)."""
    price: float = 0.0
    """What each pick costs, off the reward."""
    max_picks_floor: int = 7
    """τ: where the shrinking N_max stops."""
    shrink_share: float = 0.5
    """N_max shrinks evenly over this share of the stage's epochs, then stays at τ."""


@dataclass(frozen=True)
class CaptioningConfig:
    epochs: int = 100
    """An epoch visits every caption once."""
    learning_rate: float = 3e-4
    schedule: Literal["constant", "cosine"] = "constant"
    """How the learning rate goes over the stage: as it is, or down to zero along half a cosine."""
    batch_size: int = 128
    """Captions a batch."""
    captions_per_video: int = 1
    """Captions of one clip that share one pass of its frames through the encoder."""
    teacher_forcing_floor: float = 0.6
    """Scheduled sampling: the true word is fed with probability max(floor, k / (k + exp(epoch / k)))."""
    teacher_forcing_k: float = 24.0
    label_smoothing: float = 0.0
    weight_decay: float = 0.0
    average: float = 0.0
    """Decay of the moving average of the weights that is validated and kept; 0: none."""
    keep: Literal["best", "last"] = "best"
    """The epoch a stage ends with: the best one on the validation clips, or the last."""


@dataclass(frozen=True)
class SupervisionConfig(CaptioningConfig):
    min_frames: int = 0
    """0: the encoder reads all frames, as in the paper. n: random subsets of n frames up to max_frames."""
    max_frames: int = 0
    cnn_learning_rate: float = 0.0
    """The CNN learns too, at this rate; 0: it stays as ImageNet left it, as in the paper."""
    frames_per_batch: int = 512
    """Frames a batch, instead of batch_size, while the CNN learns."""
    crop: float = 0.9375
    """While it learns, the CNN sees random crops of this share of a frame's sides, mirrored half of the time."""
    warmup_steps: int = 0
    """The learning rates rise evenly over the first steps."""


@dataclass(frozen=True)
class SamplingConfig:
    epochs: int = 100
    """An epoch visits every clip once."""
    learning_rate: float = 3e-4
    schedule: Literal["constant", "cosine"] = "constant"
    batch_size: int = 128
    """Clips a batch."""
    samples: int = 1
    """Monte-Carlo samples of the picks, or in refinement of the sentence, of a clip."""
    weight_decay: float = 0.0
    average: float = 0.0
    keep: Literal["best", "last"] = "best"


@dataclass(frozen=True)
class ReinforcementConfig(SamplingConfig):
    baseline: Literal["greedy", "others"] = "greedy"
    """What a sample's reward is held against: the greedy picks', as in the paper, or the clip's other samples'."""


@dataclass(frozen=True)
class AdaptationConfig(CaptioningConfig):
    learning_rate: float = 1e-4


@dataclass(frozen=True)
class RefinementConfig(SamplingConfig):
    epochs: int = 0
    """Not in the paper, so off unless asked for."""
    learning_rate: float = 5e-5
    samples: int = 5
    """Sentences sampled for each clip."""


@dataclass(frozen=True)
class Config:
    """All settings of a run. The defaults are the paper's; docs/paper.md says where it is silent."""

    seed: int = 0
    beam: int = 1
    """Beam width when captioning: 1 is greedy, as in the paper."""
    length_exponent: float = 0.7
    """Sentences of a beam are compared by log-probability / length ** this; 0 favours short ones."""
    video: VideoConfig = field(default_factory=VideoConfig)
    text: TextConfig = field(default_factory=TextConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    supervision: SupervisionConfig = field(default_factory=SupervisionConfig)
    reinforcement: ReinforcementConfig = field(default_factory=ReinforcementConfig)
    adaptation: AdaptationConfig = field(default_factory=AdaptationConfig)
    refinement: RefinementConfig = field(default_factory=RefinementConfig)

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("seed", self.seed, 0, 2**63),
            ("beam", self.beam, 1, 100),
            ("video.num_frames", self.video.num_frames, 1, 10_000),
            ("text.min_count", self.text.min_count, 1, 10**9),
            ("text.max_words", self.text.max_words, 1, 1000),
            ("model.image_size", self.model.image_size, 32, 2048),
            ("model.embedding_size", self.model.embedding_size, 1, 2**16),
            ("model.state_size", self.model.state_size, 1, 2**16),
            ("model.grid", self.model.grid, 1, 64),
            ("model.attention_heads", self.model.attention_heads, 0, 1024),
            ("model.attention_hidden", self.model.attention_hidden, 1, 2**16),
            ("model.stride", self.model.stride, 1, 10**6),
            ("model.first_pick", self.model.first_pick, 0, 10**6),
            ("model.picker_hidden", self.model.picker_hidden, 1, 2**16),
            ("model.pick_threshold", self.model.pick_threshold, 0, 1),
            ("model.max_gap", self.model.max_gap, 0, 10**6),
            ("length_exponent", self.length_exponent, 0, 10),
            ("model.initial_pick_probability", self.model.initial_pick_probability, 0.01, 0.99),
            ("model.dropout", self.model.dropout, 0, 0.99),
            ("reward.min_picks", self.reward.min_picks, 1, self.video.num_frames),
            ("reward.max_picks_floor", self.reward.max_picks_floor, self.reward.min_picks, 10_000),
            ("reward.max_picks_share", self.reward.max_picks_share, 0, 1),
            ("reward.shrink_share", self.reward.shrink_share, 0, 1),
            ("supervision.min_frames", self.supervision.min_frames, 0, self.video.num_frames),
            ("supervision.max_frames", self.supervision.max_frames, self.supervision.min_frames, self.video.num_frames),
        ):
            _check_range(name, value, low, high)
        captioning = {"supervision": self.supervision, "adaptation": self.adaptation}
        sampling = {"reinforcement": self.reinforcement, "refinement": self.refinement}
        for name, stage in (captioning | sampling).items():
            _check_range(f"{name}.epochs", stage.epochs, 0, 10**6)
            _check_range(f"{name}.batch_size", stage.batch_size, 1, 2**20)
            _check_range(f"{name}.learning_rate", stage.learning_rate, 0, 1)
            _check_range(f"{name}.weight_decay", stage.weight_decay, 0, 1)
            _check_range(f"{name}.average", stage.average, 0, 0.999999)
        for name, taught in captioning.items():
            _check_range(f"{name}.captions_per_video", taught.captions_per_video, 1, taught.batch_size)
            _check_range(f"{name}.teacher_forcing_floor", taught.teacher_forcing_floor, 0, 1)
            _check_range(f"{name}.teacher_forcing_k", taught.teacher_forcing_k, 1e-3, 1e6)
            _check_range(f"{name}.label_smoothing", taught.label_smoothing, 0, 0.99)
        supervision = self.supervision
        _check_range("supervision.cnn_learning_rate", supervision.cnn_learning_rate, 0, 1)
        most_frames = supervision.max_frames if supervision.min_frames else self.video.num_frames
        if supervision.cnn_learning_rate:
            _check_range("supervision.frames_per_batch", supervision.frames_per_batch, most_frames, 2**20)
        _check_range("supervision.crop", supervision.crop, 0.1, 1)
        _check_range("supervision.warmup_steps", supervision.warmup_steps, 0, 10**9)
        if self.model.attention_heads and self.model.embedding_size % self.model.attention_heads:
            raise BadConfig(
                f"model.attention_heads is {self.model.attention_heads}; "
                f"possible: what divides model.embedding_size, {self.model.embedding_size}"
            )
        least_samples = 1 if self.reinforcement.baseline == "greedy" else 2
        _check_range("reinforcement.samples", self.reinforcement.samples, least_samples, 1000)
        # A sentence is weighed against the others of its clip, so there must be another.
        _check_range("refinement.samples", self.refinement.samples, 2, 1000)


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """The config in a TOML file, with `name.key=value` overrides laid over it."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise BadConfig(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise BadConfig(f"{path}: is not UTF-8 text (byte {error.start})") from error
    return parse_config(text, overrides, source=str(path))


def parse_config(text: str, overrides: Iterable[str] = (), *, source: str = "config") -> Config:
    """The config in TOML `text`; `source` names it in errors."""
    try:
        settings = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadConfig(f"{source}: is not TOML ({error})") from error
    for override in overrides:
        name, equals, value = override.partition("=")
        if not equals:
            raise BadConfig(f"--set {override}: expected name=value, as in reward.penalty=-2")
        table = settings
        *parents, key = name.strip().split(".")
        for parent in parents:
            table = table.setdefault(parent, {})
            if not isinstance(table, dict):
                raise BadConfig(f"--set {override}: '{parent}' is a setting, not a group of settings")
        table[key] = _literal(value.strip())
    config: Config = _build(Config, settings, prefix="", source=source)
    return config


def to_toml(config: Config) -> str:
    """The config as TOML that `parse_config` reads back."""
    lines: list[str] = []
    groups: list[tuple[str, Any]] = []
    for name, value in ((f.name, getattr(config, f.name)) for f in dataclasses.fields(config)):
        if dataclasses.is_dataclass(value):
            groups.append((name, value))
        else:
            # A JSON scalar or list of scalars is TOML too.
            lines.append(f"{name} = {json.dumps(value)}")
    for name, group in groups:
        lines += ["", f"[{name}]"]
        lines += [f"{f.name} = {json.dumps(getattr(group, f.name))}" for f in dataclasses.fields(group)]
    return "\n".join(lines) + "\n"


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested table by dotted names, as in supervision.epochs."""
    named: dict[str, Any] = {}
    for key, value in table.items():
        named |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return named


def _literal(value: str) -> Any:
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return value  # a bare word is a string: --set reward.diversity=cosine


def _build(kind: type[Any], settings: Mapping[str, Any], *, prefix: str, source: str) -> Any:
    hints = typing.get_type_hints(kind)
    for key in settings:
        if key not in hints:
            near = _nearest(prefix, key, hints)
            advice = f"did you mean '{near}'?" if near else f"known: {', '.join(sorted(hints))}"
            raise BadConfig(f"{source}: unknown setting '{prefix}{key}'; {advice}")
    values = {}
    for key, value in settings.items():
        hint = hints[key]
        if dataclasses.is_dataclass(hint):
            if not isinstance(value, Mapping):
                raise BadConfig(f"{source}: '{prefix}{key}' is a group of settings, got {value!r}")
            values[key] = _build(typing.cast(type[Any], hint), value, prefix=f"{prefix}{key}.", source=source)
        else:
            values[key] = _checked(value, hint, name=prefix + key, source=source)
    return kind(**values)


def _nearest(prefix: str, key: str, hints: Iterable[str]) -> str | None:
    """The known setting that was most likely meant: in this group, or of this name in another one."""
    if near := difflib.get_close_matches(key, list(hints), n=1):
        return prefix + near[0]
    return next((name for name in _all_names() if name.rpartition(".")[2] == key), None)


def _checked(value: Any, hint: Any, *, name: str, source: str) -> Any:
    """`value` as the type `hint` asks for, or an error that says what was expected."""
    origin = typing.get_origin(hint)
    if origin is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise BadConfig(f"{source}: {name} is {value!r}; possible: {', '.join(map(str, choices))}")
        return value
    if origin is tuple:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise BadConfig(f"{source}: {name} is {value!r}; expected a list of strings")
        return tuple(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if (isinstance(value, bool) and hint is not bool) or not isinstance(value, hint):
        raise BadConfig(f"{source}: {name} is {value!r}; expected {hint.__name__}")
    return value


def _all_names() -> Iterable[str]:
    for name, hint in typing.get_type_hints(Config).items():
        if dataclasses.is_dataclass(hint):
            yield from (f"{name}.{f.name}" for f in dataclasses.fields(hint))
        else:
            yield name


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise BadConfig(f"{name} is {value}; possible: {low} to {high}")
