"""The parts of a model folder, and every check of them that needs no OpenVINO.

A model folder holds `config.toml`, `words.txt`, `card.json` (facts for people), four ONNX graphs, and their weights in
two files: `policy.safetensors` for the policy, `weights.safetensors` for the captioner. Graphs refer to weights by
offset, so each is stored once. Nothing in it can run code, and no part may refer to a file outside. `manifest.json`
lists sizes and digests of the parts, which are compared as they are read.
"""

import contextlib
import hashlib
import json
import math
import os
import threading
from pathlib import Path
from typing import Any, NamedTuple

from picknet.config import MAX_CONFIG_BYTES, SYSTEMS_WITHOUT_GRAPHS, BadConfig, Config, load_config
from picknet.errors import PicknetError
from picknet.model.manifest import MANIFEST, Fingerprint, read_manifest
from picknet.model.onnx_file import BadFile, read_graph
from picknet.model.onnx_sizes import check_sizes
from picknet.text import MAX_WORDS_BYTES, Vocabulary

SHIPPED = Path(__file__).parents[1] / "models"
"""The models in the package, a folder each."""
DEFAULT_MODEL = "msvd"
WEIGHTS = "weights.safetensors"
POLICY_WEIGHTS = "policy.safetensors"
"""In a file of its own: a new policy for the same captioner costs kilobytes."""
TAGS = "tags.safetensors"
"""Optional: what `Tags` reads, for the confidence; `picknet calibrate` writes it."""
GRAPHS = ("cnn", "policy", "encoder", "decoder")
PARTS = ("config.toml", "words.txt", "card.json", WEIGHTS, POLICY_WEIGHTS, *(f"{graph}.onnx" for graph in GRAPHS))

EXPORT_AGAIN = "export the model again"
"""How to repair a model folder; most errors end with it."""
MAX_PART_BYTES = 2**26
"""Of a part that is read whole and has no limit of its own: graphs, and the tags, with 8 MB the largest in use."""
MAX_WEIGHTS_BYTES = 2**32
"""Of a part with weights, which is mapped into memory, and read once to compute its digest."""
MAX_BYTES = {
    "config.toml": MAX_CONFIG_BYTES,
    "words.txt": MAX_WORDS_BYTES,
    "card.json": 2**20,
    MANIFEST: 2**20,
    WEIGHTS: MAX_WEIGHTS_BYTES,
    POLICY_WEIGHTS: MAX_WEIGHTS_BYTES,
}
"""Of a part. In memory JSON may take thirty times its size; the shipped card has 13 KB, 100,000 words have one MB."""
MAX_CARD_DEPTH = 32
"""Of lists and objects inside each other."""
_ITEM_BYTES = {"F16": 2, "F32": 4}


class BadModel(PicknetError):
    """A model folder that cannot be used."""


def find_model(model: str | os.PathLike[str] | None) -> tuple[str, Path]:
    """The model's name, and its folder."""
    shipped = sorted(folder.name for folder in SHIPPED.iterdir() if folder.is_dir()) if SHIPPED.is_dir() else []
    if model is None:
        model = DEFAULT_MODEL
        if model not in shipped:
            raise BadModel(f"{SHIPPED / model}: the default model is not in this installation; name a model folder")
    if model in shipped:
        return str(model), SHIPPED / model
    folder = Path(model)
    if not folder.exists():
        raise BadModel(
            f"{folder}: no such model; possible are "
            f"{', '.join([*shipped, 'a model folder'])}, or a run folder with a model in it"
        )
    return str(folder), folder / "model" if (folder / "model").is_dir() else folder


class TensorSpan(NamedTuple):
    """Where a tensor is stored in a safetensors file."""

    offset: int
    """Bytes from the beginning of the file."""
    num_bytes: int
    dtype: str
    """F16 or F32."""
    shape: tuple[int, ...]


class ModelFolder:
    """A model folder whose parts are complete and fit together, as far as one can see without running the graphs.

    is_sealed: whether the parts must be those of the manifest, if there is one. hashes_ahead: whether the digest of the
    weights, needed before the CNN is used, is computed in the background at once.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, is_sealed: bool = True, hashes_ahead: bool = False
    ) -> None:
        self.path = Path(path)
        self.manifest: dict[str, Fingerprint] | None = None
        """What the parts were when the folder was written; None where nothing says so."""
        self._lock = threading.Lock()
        self._weights_digest: str | None = None
        self._check_complete()
        if is_sealed:
            self._check_sizes()
        if hashes_ahead:
            self._digest_ahead()
        self.card = self._read_card()
        self.config = self._read_config()
        self.vocabulary = self._read_vocabulary()
        spans = {
            part: {(span.offset, span.num_bytes) for span in tensor_spans(self.path / part).values()}
            for part in (WEIGHTS, POLICY_WEIGHTS)
        }
        for name in GRAPHS:
            weights = weights_of(name)
            self._check_graph_file(f"{name}.onnx", weights, spans[weights])

    def read(self, part: str) -> bytes:
        """The bytes of one of the PARTS, or of the TAGS."""
        try:
            content = (self.path / part).read_bytes()
        except OSError as error:
            raise BadModel(f"{self.path / part}: cannot be read ({error.strerror})") from error
        self._compare(part, Fingerprint(len(content), hashlib.sha256(content).hexdigest()))
        return content

    @property
    def weights_digest(self) -> str:
        """SHA-256 of the weights, which are compared with the manifest. The first caller computes it, others wait."""
        with self._lock:
            if self._weights_digest is None:
                self._weights_digest = self._digest_weights()
            return self._weights_digest

    def _digest_ahead(self) -> None:
        """Compute the digest in the background, while all else is read. An error is for whoever needs the digest."""

        def digest() -> None:
            with contextlib.suppress(BadModel):
                _ = self.weights_digest

        threading.Thread(target=digest, name="picknet-digest", daemon=True).start()

    def _digest_weights(self) -> str:
        digests = hashlib.sha256()
        for part in (WEIGHTS, POLICY_WEIGHTS):
            try:
                found = Fingerprint.of(self.path / part)
            except OSError as error:
                raise BadModel(f"{self.path / part}: cannot be read ({error.strerror})") from error
            self._compare(part, found)
            digests.update(bytes.fromhex(found.sha256))
        return digests.hexdigest()

    def _check_complete(self) -> None:
        if not self.path.is_dir():
            what = "is not a folder" if self.path.exists() else "no such folder"
            raise BadModel(f"{self.path}: {what}; a model is a folder")
        # All of what is there, also where something is missing: the system is read from a part.
        for part in (*PARTS, MANIFEST, TAGS):
            if os.path.lexists(self.path / part):
                self._check_kind(part)
        missing = [part for part in PARTS if not (path := self.path / part).exists() or not path.stat().st_size]
        if missing:
            self._check_has_graphs()
            if (self.path / "origin.json").is_file():
                advice = "finish it with --resume, or write its best model so far with picknet export"
                raise BadModel(f"{self.path}: a training run that has not finished; {advice}")
            raise BadModel(f"{self.path}: incomplete model: {', '.join(missing)} missing or empty; {EXPORT_AGAIN}")

    def _check_kind(self, part: str) -> None:
        """Refuse links out of the folder, what is not a file, and what is too large to be read."""
        path = self.path / part
        target = os.path.realpath(path)
        if path.is_symlink() and os.path.dirname(target) != os.path.realpath(self.path):
            raise BadModel(f"{path}: is a link to {target}; the parts of a model are files in its folder")
        if not path.is_file():
            raise BadModel(f"{path}: is not a file; {EXPORT_AGAIN}")
        limit = MAX_BYTES.get(part, MAX_PART_BYTES)
        if (size := path.stat().st_size) > limit:
            raise BadModel(f"{path}: is too large ({size:,} bytes, at most {limit:,} are read); {EXPORT_AGAIN}")

    def _check_has_graphs(self) -> None:
        """Raise `BadModel` with the reason if this is the model of a system that has no graphs."""
        with contextlib.suppress(BadConfig):
            system = load_config(self.path / "config.toml").model.system
            if system in SYSTEMS_WITHOUT_GRAPHS:
                raise BadModel(
                    f"{self.path}: its system, {system}, {SYSTEMS_WITHOUT_GRAPHS[system]}, which graphs cannot, so "
                    "that it captions no videos; picknet bench judges it on a data set"
                )

    def _check_sizes(self) -> None:
        """Read the manifest, and compare what is compared at once. Digests are compared when a part is read."""
        self.manifest = _manifest_of(self.path)
        for part, listed in (self.manifest or {}).items():
            path = self.path / part
            if part == TAGS and not path.is_file():
                raise BadModel(f"{path}: is missing, but {MANIFEST} lists it; {EXPORT_AGAIN}")
            if part in (*PARTS, TAGS):
                self._compare(part, listed._replace(num_bytes=path.stat().st_size))

    def _compare(self, part: str, found: Fingerprint) -> None:
        _compare(self.path / part, (self.manifest or {}).get(part, found), found)

    def _read_card(self) -> dict[str, Any]:
        path = self.path / "card.json"
        try:
            card = json.loads(self.read(path.name))
            depth = _depth(card)
        except ValueError as error:
            raise BadModel(f"{path}: is not JSON ({error}); {EXPORT_AGAIN}") from error
        except RecursionError:
            depth = MAX_CARD_DEPTH + 1
        if depth > MAX_CARD_DEPTH:
            raise BadModel(f"{path}: holds more than {MAX_CARD_DEPTH} objects inside each other; {EXPORT_AGAIN}")
        if not isinstance(card, dict):
            raise BadModel(f"{path}: holds {type(card).__name__} where one JSON object was expected; {EXPORT_AGAIN}")
        return card

    def _read_config(self) -> Config:
        self._check_last_line("config.toml")
        try:
            return load_config(self.path / "config.toml")
        except BadConfig as error:
            raise BadModel(f"{error}; {EXPORT_AGAIN}") from error

    def _read_vocabulary(self) -> Vocabulary:
        self._check_last_line("words.txt")  # the number of words is checked against the decoder's output
        return Vocabulary.load(self.path / "words.txt")

    def _check_last_line(self, part: str) -> None:
        """A text cut inside its last line may still be valid: another word, a number with a digit less."""
        if not self.read(part).endswith(b"\n"):
            raise BadModel(f"{self.path / part}: is cut short: its last line has no end; {EXPORT_AGAIN}")

    def _check_graph_file(self, part: str, weights: str, spans: set[tuple[int, int]]) -> None:
        """Refuse what OpenVINO accepts: bytes added at the end, weights outside the tensors of the weights file, and
        sizes that take long to compute.

        weights: the name of that file. spans: (offset, bytes) of each of its tensors.
        """
        path = self.path / part
        content = self.read(part)
        try:
            graph = read_graph(content)
            check_sizes(content, graph)
        except BadFile as error:
            raise BadModel(f"{path}: {error}; {EXPORT_AGAIN}") from error
        for file, offset, num_bytes in graph.references:
            if file != weights.encode():
                raise BadModel(f"{path}: refers to weights outside {weights}, which is not allowed; {EXPORT_AGAIN}")
            if (offset, num_bytes) not in spans:
                raise BadModel(
                    f"{path}: there is no tensor of {num_bytes} bytes at byte {offset} of {weights}: "
                    f"they are parts of different models; {EXPORT_AGAIN}"
                )


def check_listed(path: Path) -> None:
    """Raise `BadModel` if a part is not the one that the manifest beside it lists."""
    found = Fingerprint.of(path)
    _compare(path, (_manifest_of(path.parent) or {}).get(path.name, found), found)


def _manifest_of(folder: Path) -> dict[str, Fingerprint] | None:
    try:
        return read_manifest(folder)
    except OSError as error:
        raise BadModel(f"{folder / MANIFEST}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise BadModel(f"{folder / MANIFEST}: is not a manifest ({error}); {EXPORT_AGAIN}") from error


def _compare(path: Path, listed: Fingerprint, found: Fingerprint) -> None:
    if listed != found:
        what = "has another content than"
        if listed.num_bytes != found.num_bytes:
            what = f"has {found.num_bytes:,} bytes where {listed.num_bytes:,} are in"
        raise BadModel(
            f"{path}: {what} {MANIFEST}: it is damaged or of another model; {EXPORT_AGAIN}, or where you changed it "
            f"yourself, python -m picknet.model.manifest {path.parent}"
        )


def weights_of(graph: str) -> str:
    """The file that holds a graph's weights."""
    return POLICY_WEIGHTS if graph == "policy" else WEIGHTS


def tensor_spans(path: Path) -> dict[str, TensorSpan]:
    """Where each tensor of a safetensors file is stored, by name. Raises `BadModel` for a damaged file."""
    from safetensors import SafetensorError, safe_open

    try:
        size = path.stat().st_size
        with safe_open(path, "np") as file:
            slices = {name: file.get_slice(name) for name in file.offset_keys()}
            types = {name: (one.get_dtype(), tuple(one.get_shape())) for name, one in slices.items()}
    except OSError as error:
        raise BadModel(f"{path}: cannot be read ({error.strerror or error})") from error
    except SafetensorError as error:
        raise BadModel(f"{path}: is damaged or not a safetensors file ({last_line(error)}); {EXPORT_AGAIN}") from error
    if unknown := {dtype for dtype, _ in types.values()} - _ITEM_BYTES.keys():
        raise BadModel(f"{path}: holds {', '.join(sorted(unknown))} where F16 or F32 was expected; {EXPORT_AGAIN}")
    lengths = {name: math.prod(shape) * _ITEM_BYTES[dtype] for name, (dtype, shape) in types.items()}
    # safetensors refuses gaps, overlaps and bytes after the last tensor: the tensors fill the end of the file in order.
    offset = size - sum(lengths.values())
    spans = {}
    for name, (dtype, shape) in types.items():
        spans[name] = TensorSpan(offset, lengths[name], dtype, shape)
        offset += lengths[name]
    return spans


def _depth(value: Any) -> int:
    """How many lists and objects are inside each other."""
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return depth


def last_line(error: Exception) -> str:
    """The last line of an error message: OpenVINO's are many lines long, and end with the reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__
