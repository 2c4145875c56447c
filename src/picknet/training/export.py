"""Write a trained network as a model folder and read it back: config, words, weights, card, and four ONNX graphs.

The graphs contain no weights. Their initialisers refer to weights.safetensors, those of the policy to
policy.safetensors, so that training and inference share one copy of every weight.
"""

import contextlib
import logging
import secrets
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from picknet.config import SYSTEMS_WITHOUT_GRAPHS, Config, ModelConfig, load_config, to_toml
from picknet.files import UnwritableFile, remove_abandoned, temporary_folder, write_text, written_whole
from picknet.model.card import write_card
from picknet.model.folder import PARTS, POLICY_WEIGHTS, TAGS, WEIGHTS, BadModel, check_listed, tensor_spans, weights_of
from picknet.model.manifest import write_manifest
from picknet.picking.learned import CODE_SIZE, NUM_PICKED, NUM_RECENT, OUTLINE_SIZE, STATE_SIZE
from picknet.text import Vocabulary
from picknet.training.network import Decoder, Network
from picknet.training.policies import PickNet, RatePickNet
from picknet.training.systems.parts import LSTMState
from picknet.video.frame import glance_shape


def export(
    network: Network,
    vocabulary: Vocabulary,
    config: Config,
    folder: str | Path,
    *,
    card: dict[str, Any] | None = None,
    tags: bytes | None = None,
) -> None:
    """Write a model folder, completely or not at all. An existing model folder is replaced.

    Some systems have no graphs: their model can be trained further and judged, but captions no videos.

    card: facts for people, such as training data and scores. tags: the file of `Tags`, if it has any.
    """
    from safetensors.torch import save

    target = Path(folder)
    if target.is_symlink():
        target = target.resolve()  # the link stays; the model behind it is replaced
    if target.exists() and not (target / "words.txt").exists() and (not target.is_dir() or any(target.iterdir())):
        raise UnwritableFile(f"{target}: exists and is not a model folder; choose a new folder")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(target.parent)
        building = temporary_folder(target)
    except OSError as error:
        raise UnwritableFile(f"{target}: cannot be written ({error.strerror})") from error
    try:
        for part, tensors in _by_file(half_weights(network)).items():
            (building / part).write_bytes(save(tensors))
        vocabulary.save(building / "words.txt")
        write_text(building / "config.toml", to_toml(config))
        write_card(building, card or {}, config, vocabulary)
        if config.model.system not in SYSTEMS_WITHOUT_GRAPHS:
            _export_graphs(network, config.model, building)
        if tags is not None:
            (building / TAGS).write_bytes(tags)
        write_manifest(building, (*PARTS, TAGS))
        building.chmod(0o755)
        _replace(target, building)
    except OSError as error:
        raise UnwritableFile(f"{target}: cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _replace(target: Path, new: Path) -> None:
    """Rename the folder `new` to `target`. On failure, and on Ctrl-C, an old target is kept or restored."""
    aside = target.parent / f".{target.name}-{secrets.token_hex(8)}.old"
    try:
        if target.exists():
            target.rename(aside)
        new.rename(target)
    finally:
        if not target.exists() and aside.exists():
            aside.rename(target)
        shutil.rmtree(aside, ignore_errors=True)


def load_network(folder: str | Path) -> tuple[Network, Vocabulary, Config]:
    """Load the network of a model folder for further training."""
    folder = Path(folder)
    if not folder.is_dir():
        raise BadModel(f"{folder}: no such model folder")
    config = load_config(folder / "config.toml")
    vocabulary = Vocabulary.load(folder / "words.txt")
    network = Network(config.model, len(vocabulary), pretrained=False)
    weights: dict[str, Tensor] = {}
    for part, tensors in _by_file(_stored(network)).items():
        # The weights of a captioner may contain an older policy, which is no longer used.
        read = _by_file(_read_weights(folder / part))[part]
        expected = {name: tensor.shape for name, tensor in tensors.items()}
        found = {name: tensor.shape for name, tensor in read.items()}
        if found != expected:
            wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
            path = folder / part
            raise BadModel(f"{path}: does not fit config.toml and words.txt beside it (first difference: {wrong[0]})")
        weights |= read
    network.load_state_dict({name: tensor.float() for name, tensor in weights.items()}, strict=False)
    return network, vocabulary, config


def _read_weights(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        check_listed(path)
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise BadModel(f"{path}: cannot be read ({error})") from error


def _by_file(weights: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The weights of the captioner and those of the policy."""
    policy = {name: tensor for name, tensor in weights.items() if name.startswith("picknet.")}
    captioner = {name: tensor for name, tensor in weights.items() if name not in policy}
    return {WEIGHTS: captioner, POLICY_WEIGHTS: policy}


def half_weights(network: Network) -> dict[str, Tensor]:
    """The weights as stored in a model folder: matrices in 16 bits, vectors (biases, batch norms) in 32."""
    return {
        name: tensor.detach().to("cpu", torch.float16 if tensor.dim() > 1 else torch.float32).contiguous()
        for name, tensor in _stored(network).items()
    }


def round_to_half(module: nn.Module) -> None:
    """Round the weights of a module as `half_weights` does; they stay in 32 bits."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() > 1:
                parameter.copy_(parameter.half())


def _stored(network: Network) -> dict[str, Tensor]:
    # Without the batch norms' counters of batches, which nothing reads, and what two modules share once.
    again = _shared(network)
    return {
        name: tensor
        for name, tensor in network.state_dict().items()
        if not name.endswith("num_batches_tracked") and name not in again
    }


def _shared(network: Network) -> dict[str, str]:
    """Other names of weights that two modules share -> the name that they are stored by."""
    first: dict[int, str] = {}
    every = network.named_parameters(remove_duplicate=False)
    names = {name: first.setdefault(id(weight), name) for name, weight in every}
    return {name: stored for name, stored in names.items() if name != stored}


class _Graph(nn.Module):
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def complete(self, model: Any) -> None:
        """Edit the ONNX model where tracing falls short."""


class _CNNGraph(_Graph):
    inputs, outputs = ("pixels",), ("features",)

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.cnn = network.cnn

    def forward(self, pixels: Tensor) -> Tensor:
        features: Tensor = self.cnn(pixels)
        return features


class _DifferenceGraph(_Graph):
    inputs, outputs = ("glances", "templates"), ("logits",)

    def __init__(self, picknet: PickNet) -> None:
        super().__init__()
        self.picknet = picknet

    def forward(self, glances: Tensor, templates: Tensor) -> Tensor:
        logits: Tensor = self.picknet(glances, templates)
        return logits


class _RateGraph(_Graph):
    inputs = ("glances", "previous", "state", "recent", "picked", "clock")
    outputs = ("logits", "embeddings", "next_state")

    def __init__(self, picknet: RatePickNet) -> None:
        super().__init__()
        self.picknet = picknet

    def forward(
        self, glances: Tensor, previous: Tensor, state: Tensor, recent: Tensor, picked: Tensor, clock: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        outputs: tuple[Tensor, Tensor, Tensor] = self.picknet(glances, previous, state, recent, picked, clock)
        return outputs


class _EncoderGraph(_Graph):
    inputs = ("features", "h", "c")

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.encoder = network.encoder
        self.outputs = ("next_h", "next_c", *(("keys", "values") if self.encoder.attended else ()))

    def forward(self, features: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        state, keys, values = self.encoder.step(features, LSTMState(h, c))
        return (*state, keys, values)[: len(self.outputs)]


class _DecoderGraph(_Graph):
    outputs = ("log_probabilities", "next_state")

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.decoder = network.decoder
        attending = network.encoder.attended
        self.inputs = ("words", "video", *(("keys", "values") if attending else ()), "state")

    def forward(
        self, words: Tensor, video: Tensor, state: Tensor, keys: Tensor | None = None, values: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        if keys is None or values is None:
            keys = values = video[:, None, :0]
        return self.decoder.step(words, video, keys, values, state)

    def complete(self, model: Any) -> None:
        """Let the graph accept one memory for all words as well as one for each word.

        PyTorch traces a memory of size 1, which ONNX broadcasts at run time. The size 1 remains in two places: the
        shapes of the inputs, and the reshape of keys and values into heads.
        """
        import onnx

        for port in model.graph.input:
            if port.name in ("video", "keys", "values"):
                port.type.tensor_type.shape.dim[0].dim_param = "memories"
        if not isinstance(self.decoder, Decoder) or self.decoder.attention is None:
            return
        reshaped = {node.input[0]: node for node in model.graph.node if node.op_type == "Reshape"}
        for name in ("keys", "values"):
            reshaped[name].input[1] = "heads"
            del reshaped[name].attribute[:]
        sizes = [0, 0, self.decoder.attention.heads, -1]  # 0: unchanged
        model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["heads"], value_ints=sizes))


def _export_graphs(network: Network, config: ModelConfig, folder: Path) -> None:
    import onnx

    device = next(network.parameters()).device
    training = network.training
    network = network.cpu().eval()
    glances = torch.zeros(2, *glance_shape(config.glance), dtype=torch.uint8)
    pixels = torch.zeros(2, config.image_size, config.image_size, 3, dtype=torch.uint8)
    features = torch.zeros(2, network.cnn.num_cells, network.cnn.feature_size)
    states, words = torch.zeros(2, network.encoder.size), torch.zeros(2, dtype=torch.int64)
    cells = torch.zeros(1, 3, config.embedding_size)
    inputs = {
        "pixels": pixels,
        "glances": glances,
        "templates": glances.clone(),
        "previous": glances.clone(),
        "recent": torch.zeros(2, NUM_RECENT, OUTLINE_SIZE + CODE_SIZE),
        "picked": torch.zeros(2, NUM_PICKED, OUTLINE_SIZE + CODE_SIZE),
        "clock": torch.ones(2, 2),
        "features": features,
        "h": states,
        "c": states.clone(),
        "words": words,
        "video": states[:1].clone(),
        "keys": cells,
        "values": cells.clone(),
        "state": torch.zeros(2, network.decoder.size),
    }
    picknet = network.picknet
    policy = _RateGraph(picknet) if isinstance(picknet, RatePickNet) else _DifferenceGraph(picknet)
    graphs: dict[str, _Graph] = {
        "cnn": _CNNGraph(network),
        "policy": policy,
        "encoder": _EncoderGraph(network),
        "decoder": _DecoderGraph(network),
    }
    for name, graph in graphs.items():
        example = {key: inputs[key] for key in graph.inputs}
        if name == "policy":
            example |= {"state": torch.zeros(2, STATE_SIZE)} if "state" in example else {}
        if name == "cnn":
            model = _traced_cnn(graph.eval(), example, (config.cnn, config.image_size, config.grid))
        else:
            model = _traced(graph.eval(), example)
        _point_into(model, folder / weights_of(name), _shared(network))
        with written_whole(folder / f"{name}.onnx") as temporary:
            onnx.save(model, temporary)
    network.to(device).train(training)


_cnns: dict[tuple[str, int, int], bytes] = {}
"""Traced CNNs without their weights, by all that they depend on: model.cnn, image_size and grid."""


def _traced_cnn(graph: _Graph, example: dict[str, Tensor], key: tuple[str, int, int]) -> Any:
    """As `_traced`. Tracing a CNN takes longest, and many runs of one process have the same."""
    import onnx

    if key not in _cnns:
        model = _traced(graph, example)
        weights = graph.state_dict()
        for initializer in model.graph.initializer:
            if initializer.name in weights:
                initializer.ClearField("raw_data")
        _cnns[key] = model.SerializeToString()
    return onnx.load_from_string(_cnns[key])


def _traced(graph: _Graph, example: dict[str, Tensor]) -> Any:
    """The ONNX model of a graph, which still has its weights."""
    from onnxscript.optimizer import fold_constants, remove_unused_nodes

    batch, cells = torch.export.Dim("n", min=1), torch.export.Dim("cells", min=1)
    dynamic = {"video": {}, "keys": {1: cells}, "values": {1: cells}}
    with warnings.catch_warnings(), _quiet("torch.onnx"):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            graph,
            kwargs=example,
            dynamo=True,
            verbose=False,
            optimize=False,  # it would fold batch norms into new weights; the runtime does that on load
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamic_shapes={name: dynamic.get(name, {0: batch}) for name in graph.inputs},
        )
        # A transposed weight would be stored a second time; the runtime transposes on load.
        fold_constants(program.model, should_fold=lambda node: False if node.op_type == "Transpose" else None)  # type: ignore[union-attr]
    model = program.model_proto  # type: ignore[union-attr]
    graph.complete(model)
    remove_unused_nodes(model)
    for node in model.graph.node:
        node.ClearField("metadata_props")  # the exporter's stack traces: large and unused
        node.ClearField("doc_string")
    return model


def _point_into(model: Any, weights: Path, shared: Mapping[str, str]) -> None:
    """Replace the weights of an ONNX model by references into a safetensors file; 16-bit weights are cast to 32.

    shared: other names of weights -> the name that they are stored by.
    """
    import onnx

    spans = tensor_spans(weights)
    widenings = []
    for initializer in model.graph.initializer:
        name = initializer.name
        span = spans.get(shared.get(name, name))
        if span is None:
            continue
        half = span.dtype == "F16"
        initializer.Clear()
        initializer.name = f"{name}.half" if half else name
        initializer.dims.extend(span.shape)
        initializer.data_type = onnx.TensorProto.FLOAT16 if half else onnx.TensorProto.FLOAT
        initializer.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", weights.name), ("offset", span.offset), ("length", span.num_bytes)):
            entry = initializer.external_data.add()
            entry.key, entry.value = key, str(value)
        if half:
            widenings.append(onnx.helper.make_node("Cast", [f"{name}.half"], [name], to=onnx.TensorProto.FLOAT))
    nodes = [*widenings, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    del model.graph.value_info[:]  # it still lists the 32-bit initialisers


@contextlib.contextmanager
def _quiet(logger: str) -> Iterator[None]:
    level = logging.getLogger(logger).level
    logging.getLogger(logger).setLevel(logging.ERROR)
    try:
        yield
    finally:
        logging.getLogger(logger).setLevel(level)
