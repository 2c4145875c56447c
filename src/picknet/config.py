"""All hyper-parameters: frozen dataclasses with the paper's values as defaults, read from TOML files and `--set`."""

import dataclasses
import difflib
import json
import re
import tomllib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from picknet.errors import PicknetError

Stage = Literal["supervision", "reinforcement", "adaptation"]
STAGES: tuple[Stage, ...] = ("supervision", "reinforcement", "adaptation")
"""The paper's training stages, in order. Each is also the name of its group of settings."""

GlanceKind = Literal["grey", "colour", "motion", "packets"]
"""What the policy sees of a frame."""

SystemName = Literal[
    "picknet", "mean", "ta", "s2vt", "lstm-e", "p-rnn", "hrne", "ba", "ruc-uva", "aalto", "densecap",
    "ms-rnn",
]
"""A captioner: PickNet's own, or one of the systems it is compared with."""
ATTENDING_SYSTEMS = ("ta", "p-rnn", "hrne", "ms-rnn")
"""Systems whose decoder attends to frames; PickNet's own does with `model.attention_heads`."""
SYSTEMS_WITHOUT_GRAPHS = {
    "ruc-uva": "chooses among whole sentences",
    "aalto": "chooses among whole sentences",
    "densecap": "reads all frames backwards as well",
}
"""Systems whose models have no graphs, since these read frame by frame and write word by word; and why."""

REMOVED_GROUPS = ("refinement",)
"""Groups that older versions wrote into config.toml. They are ignored, so that old model and run folders still load."""

MAX_CONFIG_BYTES = 2**16
"""Of a config file: all settings take 2 KB, and model folders bring configs of strangers."""
MAX_KEY_PARTS = 8
"""Of a name such as reward.penalty, which has two; what tomllib takes for a name grows with the square of its parts."""
_TEXTS = re.compile(
    r'"""(?:\\.|[^\\])*?(?:"{3,5}|\Z)' r"|'''.*?(?:'{3,5}|\Z)" r'|"(?:\\.|[^"\\\n])*"?' r"|'[^'\n]*'?|#[^\n]*",
    re.DOTALL,
)
"""Strings and comments of TOML. Those without an end match, too: else many of them would take long."""


class BadConfig(PicknetError):
    """A config file or a `--set` override that cannot be used."""


@dataclass(frozen=True)
class VideoConfig:
    num_frames: int = 30
    """Frames sampled evenly from every clip."""


@dataclass(frozen=True)
class TextConfig:
    min_count: int = 3
    """Words that occur less often become <unk>."""
    vocabulary_splits: tuple[str, ...] = ("train",)
    """The splits whose captions are counted; the paper's 5,491 words need ["train", "val", "test"]."""
    max_words: int = 30
    """Maximum number of words of a caption, in training and in inference, without <eos>."""
    styles: bool = False
    """With several data sets: the first is the target and the only one validated on. Captions of each other data set
    begin with a style word, such as [msrvtt], instead of <bos>, so that their style is learned separately."""
    categories: bool = False
    """Captions of MSR-VTT begin with the category of their video, such as [music], instead of <bos> or a style word:
    the published paper's "+C"."""
    clean: bool = False
    """Mend or leave out bad captions in training, and write only English words; references stay as they are."""


@dataclass(frozen=True)
class ModelConfig:
    system: SystemName = "picknet"
    """The captioner: picknet, the paper's own, or the one of another system, see `training/systems`."""
    cnn: str = "resnet152"
    """efficientnet_lite0, efficientnet_lite2, or a timm model's name (with the timm extra)."""
    image_size: int = 224
    """Picked frames are resized to image_size × image_size pixels for the CNN."""
    embedding_size: int = 512
    """Size of feature and word embeddings."""
    state_size: int = 1024
    """Size of the LSTM and GRU states."""
    grid: int = 1
    """A frame has one feature vector for each of grid × grid cells; 1: one vector per frame, as in the paper."""
    attention_heads: int = 0
    """Attention heads of the decoder over the cells of picked frames; 0: no attention, v alone, as in the paper."""
    attention_hidden: int = 2048
    """Size of the hidden layer after attention."""
    tied_words: bool = False
    """Share the weights of the input embedding and the output layer."""
    picker: Literal["difference", "rate"] = "difference"
    """difference: the paper's policy on the difference of two glances. rate: a recurrent policy whose probabilities add
    up to the next pick, so that a constant one is a stride."""
    glance: GlanceKind = "grey"
    """What the policy sees of each frame, in 56×56 pixels. grey: the picture, as in the paper. colour: Y, Cb and Cr.
    motion: the decoder's motion vectors since the sampled frame before (H.264, MPEG-4, MPEG-2 and MPEG-1 only).
    packets: the bytes of the packets since then."""
    picker_hidden: int = 1024
    """Size of PickNet's hidden layer."""
    output_gate: Literal["sigmoid", "tanh"] = "sigmoid"
    """The encoder's output gate: tanh as printed in arXiv v1, sigmoid as in ECCV 2018 (a standard LSTM)."""
    pick_threshold: float = 0.5
    """Difference policy: inference picks a frame if its probability is above this; 0.5 is the likelier action."""
    max_gap: int = 0
    """Difference policy: maximum number of frames between two picks; 0: no maximum, as in the paper."""
    initial_pick_probability: float = 0.5
    """Pick probability before training; 0.5 is what the default initialisation of the difference policy gives."""
    dropout: float = 0.5
    """Dropout at the inputs and outputs of encoder and decoder."""
    cell_dropout: float = 0.0
    """The share of each frame's cells that the encoder does not see while it is trained, each time others."""
    drop_path: float = 0.0
    """Stochastic depth: while the CNN is trained, its last residual block is left out for this share of the frames,
    earlier blocks for less."""
    left_out: int = 0
    """Number of rare words that `picknet export --min-share` has left out; 0 while a captioner is trained."""

    @property
    def attends(self) -> bool:
        """Whether the decoder attends to the picked frames, of which the encoder then keeps keys and values."""
        return self.attention_heads > 0 if self.system == "picknet" else self.system in ATTENDING_SYSTEMS


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
    """Subtracted from the reward for each pick."""
    max_picks_floor: int = 7
    """τ: where the shrinking N_max stops."""
    shrink_share: float = 0.5
    """N_max shrinks linearly over this share of the stage's epochs, then stays at τ."""


@dataclass(frozen=True)
class CaptioningConfig:
    epochs: int = 100
    """An epoch visits every caption once."""
    learning_rate: float = 3e-4
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate over the stage: constant, or cosine decay to zero."""
    batch_size: int = 128
    """Captions per batch."""
    captions_per_video: int = 1
    """Captions of one clip that share one encoder pass."""
    teacher_forcing_floor: float = 0.6
    """Scheduled sampling: the true word is the input with probability max(floor, k / (k + exp(epoch / k)))."""
    teacher_forcing_k: float = 24.0
    label_smoothing: float = 0.0
    weight_decay: float = 0.0
    average: float = 0.0
    """Decay of the exponential moving average of the weights, which is validated and kept; 0: no average."""
    keep: Literal["best", "last"] = "best"
    """Which epoch's weights a stage ends with: the best on the validation clips, or the last."""
    others_share: float = 1.0
    """With text.styles: the share of the captions of other data sets than the first, drawn anew for each epoch."""


@dataclass(frozen=True)
class SupervisionConfig(CaptioningConfig):
    min_frames: int = 0
    """0: the encoder reads all frames, as in the paper. n: random subsets of n to max_frames frames."""
    max_frames: int = 0
    cnn_learning_rate: float = 0.0
    """Learning rate of the CNN; 0: its ImageNet weights stay fixed, as in the paper."""
    frames_per_batch: int = 512
    """Frames per batch, used instead of batch_size if the CNN is trained."""
    crop: float = 0.9375
    """If the CNN is trained: side of the random crops as a share of the frame's side; half of them are mirrored."""
    warmup_steps: int = 0
    """Number of steps of linear learning-rate warm-up."""


@dataclass(frozen=True)
class ReinforcementConfig:
    epochs: int = 100
    """An epoch visits every clip once."""
    learning_rate: float = 3e-4
    schedule: Literal["constant", "cosine"] = "constant"
    batch_size: int = 128
    """Clips per batch."""
    samples: int = 1
    """Monte-Carlo samples of the picks of each clip."""
    weight_decay: float = 0.0
    average: float = 0.0
    keep: Literal["best", "last"] = "best"
    baseline: Literal["greedy", "others"] = "greedy"
    """Baseline of a sample's reward: that of the greedy picks, as in the paper, or the mean of the clip's other
    samples."""
    films: int = 0
    """0: clips alone, as in the paper. n: batches of n films, made of clips and quiet stretches, and of 2n clips by
    turns, rewarded event by event (rate policy)."""
    film_frames: int = 192
    """Frames of a film."""


@dataclass(frozen=True)
class AdaptationConfig(CaptioningConfig):
    learning_rate: float = 1e-4


@dataclass(frozen=True)
class Config:
    """All settings of a run. The defaults are the paper's; docs/paper.md lists what the paper leaves open."""

    seed: int = 0
    beam: int = 1
    """Beam width in inference: 1 is greedy, as in the paper."""
    length_exponent: float = 0.7
    """Beam search ranks captions by log-probability / length ** length_exponent; 0 favours short captions."""
    video: VideoConfig = field(default_factory=VideoConfig)
    text: TextConfig = field(default_factory=TextConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    supervision: SupervisionConfig = field(default_factory=SupervisionConfig)
    reinforcement: ReinforcementConfig = field(default_factory=ReinforcementConfig)
    adaptation: AdaptationConfig = field(default_factory=AdaptationConfig)

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
            ("model.picker_hidden", self.model.picker_hidden, 1, 2**16),
            ("model.pick_threshold", self.model.pick_threshold, 0, 1),
            ("model.max_gap", self.model.max_gap, 0, 10**6),
            ("length_exponent", self.length_exponent, 0, 10),
            ("model.initial_pick_probability", self.model.initial_pick_probability, 0.01, 0.99),
            ("model.dropout", self.model.dropout, 0, 0.99),
            ("model.cell_dropout", self.model.cell_dropout, 0, 0.99),
            ("model.drop_path", self.model.drop_path, 0, 0.99),
            ("model.left_out", self.model.left_out, 0, 10**9),
            ("reward.language_weight", self.reward.language_weight, 0, 10**6),
            ("reward.diversity_weight", self.reward.diversity_weight, 0, 10**6),
            ("reward.penalty", self.reward.penalty, -(10**6), 10**6),
            ("reward.price", self.reward.price, 0, 10**6),
            ("reward.min_picks", self.reward.min_picks, 1, self.video.num_frames),
            ("reward.max_picks_floor", self.reward.max_picks_floor, self.reward.min_picks, 10_000),
            ("reward.max_picks_share", self.reward.max_picks_share, 0, 1),
            ("reward.shrink_share", self.reward.shrink_share, 0, 1),
            ("supervision.min_frames", self.supervision.min_frames, 0, self.video.num_frames),
            ("supervision.max_frames", self.supervision.max_frames, self.supervision.min_frames, self.video.num_frames),
        ):
            _check_range(name, value, low, high)
        captioning = {"supervision": self.supervision, "adaptation": self.adaptation}
        for name in STAGES:
            stage = getattr(self, name)
            _check_range(f"{name}.epochs", stage.epochs, 0, 10**6)
            _check_range(f"{name}.batch_size", stage.batch_size, 1, 2**20)
            _check_range(f"{name}.learning_rate", stage.learning_rate, 0, 1)
            _check_range(f"{name}.weight_decay", stage.weight_decay, 0, 1)
            _check_range(f"{name}.average", stage.average, 0, 0.999999)
        for name, captions in captioning.items():
            _check_range(f"{name}.captions_per_video", captions.captions_per_video, 1, captions.batch_size)
            _check_range(f"{name}.teacher_forcing_floor", captions.teacher_forcing_floor, 0, 1)
            _check_range(f"{name}.teacher_forcing_k", captions.teacher_forcing_k, 1e-3, 1e6)
            _check_range(f"{name}.label_smoothing", captions.label_smoothing, 0, 0.99)
            _check_range(f"{name}.others_share", captions.others_share, 0, 1)
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
                f"possible: divisors of model.embedding_size, {self.model.embedding_size}"
            )
        if self.model.cell_dropout and self.model.system != "picknet":
            raise BadConfig(
                f'model.cell_dropout is {self.model.cell_dropout} and model.system is "{self.model.system}": cells are '
                "dropped by picknet's encoder alone; set model.cell_dropout to 0"
            )
        _check_range("reinforcement.films", self.reinforcement.films, 0, 2**16)
        _check_range("reinforcement.film_frames", self.reinforcement.film_frames, 16, 2**16)
        if self.reinforcement.films and (self.model.picker, self.reinforcement.baseline) != ("rate", "others"):
            raise BadConfig('reinforcement.films needs model.picker = "rate" and reinforcement.baseline = "others"')
        if self.reinforcement.films and self.model.glance != "grey":
            raise BadConfig(
                f'reinforcement.films is {self.reinforcement.films} and model.glance is "{self.model.glance}": films '
                "are made of grey glances; set reinforcement.films to 0, which trains on clips alone"
            )
        # The mean of the other samples needs at least one other sample.
        least_samples = 1 if self.reinforcement.baseline == "greedy" else 2
        _check_range("reinforcement.samples", self.reinforcement.samples, least_samples, 1000)


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Read a config from a TOML file and apply `name.key=value` overrides."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
        _check_bytes(content, str(path))
        text = content.decode()
    except OSError as error:
        raise BadConfig(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise BadConfig(f"{path}: not UTF-8 text (byte {error.start})") from error
    return parse_config(text, overrides, source=str(path))


def parse_config(text: str, overrides: Iterable[str] = (), *, source: str = "config") -> Config:
    """Read a config from TOML text and apply `name.key=value` overrides; errors call the text `source`."""
    _check_bytes(text.encode(errors="surrogatepass"), source)
    _check_names(text, source)
    try:
        settings = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also for a number of thousands of digits, or lists in lists
        raise BadConfig(f"{source}: not valid TOML ({error})") from error
    settings = {name: value for name, value in settings.items() if name not in REMOVED_GROUPS}
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
    try:
        config: Config = _build(Config, settings, prefix="", source=source)
    except (ValueError, RecursionError) as error:  # a value that cannot even be shown in an error
        raise BadConfig(f"{source}: holds a number or a nesting that is no setting ({error})") from error
    return config


def _check_bytes(content: bytes, source: str) -> None:
    if len(content) > MAX_CONFIG_BYTES:
        raise BadConfig(f"{source}: is too large for a config; possible: at most {MAX_CONFIG_BYTES:,} bytes")


def _check_names(text: str, source: str) -> None:
    """Refuse names of many parts, before tomllib reads them."""
    # What is left of a line between these is one name, or a number with one dot.
    names = re.split(r"[=,\n\[\]{}]", _TEXTS.sub("", text))
    if (num_parts := 1 + max(name.count(".") for name in names)) > MAX_KEY_PARTS:
        raise BadConfig(f"{source}: holds a name of {num_parts:,} parts; possible: 1 to {MAX_KEY_PARTS}")


def to_toml(config: Config) -> str:
    """Write the config as TOML; `parse_config` reads it back unchanged."""
    lines: list[str] = []
    groups: list[tuple[str, Any]] = []
    for name, value in ((f.name, getattr(config, f.name)) for f in dataclasses.fields(config)):
        if dataclasses.is_dataclass(value):
            groups.append((name, value))
        else:
            # A JSON scalar or list of scalars is also valid TOML.
            lines.append(f"{name} = {json.dumps(value)}")
    for name, group in groups:
        lines += ["", f"[{name}]"]
        lines += [f"{f.name} = {json.dumps(getattr(group, f.name))}" for f in dataclasses.fields(group)]
    return "\n".join(lines) + "\n"


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a nested table to dotted names: {"supervision.epochs": 9, …}."""
    flattened: dict[str, Any] = {}
    for key, value in table.items():
        flattened |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flattened


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
    """The most similar known setting in this group, or a setting of the same name in another group."""
    if near := difflib.get_close_matches(key, list(hints), n=1):
        return prefix + near[0]
    return next((name for name in _all_names() if name.rpartition(".")[2] == key), None)


def _checked(value: Any, hint: Any, *, name: str, source: str) -> Any:
    """Check `value` against the type `hint`; an int is accepted for a float."""
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
