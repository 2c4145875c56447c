"""The graphs against PyTorch, from one thread and from many, and the errors for bad model folders."""

import json
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
from folders import unsealed
from policies import frames_of, lively_glances, random_inputs, walked

from picknet.errors import PicknetError
from picknet.model.folder import BadModel, tensor_spans
from picknet.model.graphs import MAX_IDLE_REQUESTS, Graph
from picknet.model.runtime import PRECISION, EncoderState, Runtime
from picknet.picking.learned import RatePicker


@pytest.fixture(scope="module")
def runtime(model_folder):
    return Runtime(model_folder)


@pytest.fixture(scope="module")
def attending(attending_folder):
    return Runtime(attending_folder)


@pytest.fixture(scope="module", params=["the paper's", "attending"])
def either(request):
    return request.getfixturevalue("runtime" if request.param == "the paper's" else "attending")


@pytest.fixture(scope="module")
def exact(either):
    """The same model, computed in 32 bits."""
    with patch.dict(PRECISION, dict.fromkeys(PRECISION, "f32")):
        return Runtime(either.folder)


@pytest.fixture(scope="module")
def network(either):
    """The PyTorch network of the same model folder."""
    from picknet.training.export import load_network

    return load_network(either.folder)[0].eval()


def as_torch(*arrays):
    import torch

    return tuple(torch.from_numpy(array) for array in arrays)


def random_state(rng, count):
    return rng.standard_normal((count, 24)).astype(np.float32)


def random_memory(rng, runtime, num_picks=3, count=1):
    """The encoder's state after a few frames of noise, for some videos."""
    memory = runtime.start(count)
    for _ in range(num_picks):
        memory = runtime.encode(random_features(rng, runtime, count), memory)
    return memory


def random_features(rng, runtime, count):
    return rng.random((count, runtime.config.model.grid**2, 1280), dtype=np.float32)


def test_features_are_those_of_the_pytorch_network(either, exact, network):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 64, 64, 3), dtype=np.uint8)
    expected = network.cnn(*as_torch(pixels)).detach().numpy()
    # In half precision, where the processor has it, they are near; the graph itself is exact.
    near = either.features(pixels)
    assert near.shape == (3, either.config.model.grid**2, 1280)
    assert np.linalg.norm(near - expected) < 0.05 * np.linalg.norm(expected)
    assert np.abs(exact.features(pixels) - expected).max() < 1e-4 * np.abs(expected).max()


def test_frames_in_the_cnn_at_once_have_the_features_of_each_alone(either):
    pixels = np.random.default_rng(4).integers(0, 256, (8, 64, 64, 3), dtype=np.uint8)
    before = pixels.copy()
    alone = [either.start_features(one).result() for one in pixels]
    assert len({features.tobytes() for features in alone}) == 8
    for order in (range(8), (3, 0, 1, 2, 7, 6, 5, 4), range(7, -1, -1)):
        pending = [either.start_features(one) for one in pixels]
        for place in order:
            np.testing.assert_array_equal(pending[place].result(), alone[place])
            assert pending[place].is_ready
        # Features that nobody waits for do not disturb later ones.
        abandoned = either.start_features(np.zeros_like(pixels[0]))
        del abandoned
    np.testing.assert_array_equal(either.features(pixels), np.concatenate(alone))
    np.testing.assert_array_equal(pixels, before)


def test_the_policy_is_that_of_the_pytorch_network(either, network):
    inputs = random_inputs(either.config.model, np.random.default_rng(1), 5)
    expected = network.picknet(*as_torch(*inputs.values()))
    found = either.policy(inputs)
    if either.config.model.picker == "difference":
        assert list(found) == ["logits"]
        expected = (expected,)
    else:
        assert list(found) == ["logits", "embeddings", "next_state"]
    for ours, theirs in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), atol=1e-4)
    # The graph, which for a policy with a memory is there for other runtimes.
    for row in range(5):
        one = either._run("policy", **{name: array[row : row + 1] for name, array in inputs.items()})
        for name, array in found.items():
            np.testing.assert_allclose(one[name], array[row : row + 1], atol=1e-4)


@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_the_picks_of_a_policy_with_a_memory_are_those_of_its_walk_in_training(attending, rate):
    import torch

    from picknet.training.export import load_network

    frames = frames_of(lively_glances(np.random.default_rng(6), 40))
    seen = np.stack([frame.glance() for frame in frames])
    walk = walked(
        load_network(attending.folder)[0].picknet, torch.from_numpy(seen[None]), torch.tensor([40]), rate=rate
    )
    picks = [pick.index for _, pick in RatePicker(attending.policy, rate=rate, spread=True).pick(frames)]
    assert picks == walk.picked[0].nonzero().flatten().tolist()
    assert len(set(np.diff(picks))) > 1  # not a stride: it looks


def test_an_encoder_step_is_that_of_the_pytorch_network(either, exact, network):
    from picknet.training.network import LSTMState as TorchState

    rng = np.random.default_rng(2)
    features = random_features(rng, either, 2)
    before = either.start(2)._replace(h=random_state(rng, 2), c=random_state(rng, 2))
    state, keys, values = network.encoder.step(*as_torch(features), TorchState(*as_torch(before.h, before.c)))
    (seen,) = as_torch(features.mean(axis=1))
    both = either.encode(features, before), exact.encode(features, before)
    for ours, exactly, theirs in zip(*both, (*state, keys, values, seen), strict=True):
        expected = theirs.detach().numpy()
        assert exactly == pytest.approx(expected, abs=1e-4)
        assert ours == pytest.approx(expected, abs=0.05 * float(np.abs(expected).max(initial=0)))


@pytest.mark.parametrize("num_memories", [1, 3])
def test_a_decoder_step_is_that_of_the_pytorch_network(either, exact, network, num_memories):
    rng = np.random.default_rng(3)
    words, states = np.array([1, 4, 7]), random_state(rng, 3)
    memory = random_memory(rng, either, count=num_memories)
    theirs = network.decoder.step(*as_torch(words, memory.h, memory.keys, memory.values, states))
    for graphs, tolerance in ((either, 0.02), (exact, 1e-4)):
        ours = graphs.decode(words, memory, states)
        for found, expected in zip(ours, theirs, strict=True):
            assert found == pytest.approx(expected.detach().numpy(), abs=tolerance)
        assert np.exp(ours[0]).sum(axis=1) == pytest.approx(np.ones(3), abs=tolerance / 10)


def test_results_are_not_overwritten_by_the_next_inference(either):
    rng = np.random.default_rng(4)
    first = random_memory(rng, either, num_picks=1)
    kept = EncoderState(*(part.copy() for part in first))
    either.encode(random_features(rng, either, 1), first)
    for part, before in zip(first, kept, strict=True):
        assert np.array_equal(part, before)


def test_a_batch_has_the_results_of_its_rows(either):
    rng = np.random.default_rng(5)
    words, memory, states = np.array([1, 4, 7, 9]), random_memory(rng, either), random_state(rng, 4)
    together, _ = either.decode(words, memory, states)
    for row in range(4):
        alone, _ = either.decode(words[[row]], memory, states[[row]])
        assert alone[0] == pytest.approx(together[row], abs=1e-5)
    features = random_features(rng, either, 4)
    every = either.encode(features, either.start(4))
    for row in range(4):
        one = either.encode(features[[row]], either.start())
        for ours, theirs in zip(one, every, strict=True):
            assert ours[0] == pytest.approx(theirs[row], abs=1e-4)


def test_states_of_several_videos_are_decoded_together_as_each_alone(either):
    rng = np.random.default_rng(9)
    words, memory, states = np.array([1, 4, 7, 9]), random_memory(rng, either, count=4), random_state(rng, 4)
    together = either.decode(words, memory, states)
    for row in range(4):
        alone = either.decode(words[[row]], memory.of(np.array([row])), states[[row]])
        for ours, theirs in zip(alone, together, strict=True):
            assert ours[0] == pytest.approx(theirs[row], abs=1e-5)


def test_a_frame_shared_by_several_videos_is_encoded_as_for_each_alone(either):
    rng = np.random.default_rng(10)
    frame, before = random_features(rng, either, 1), random_memory(rng, either, num_picks=2, count=3)
    together = either.encode(frame, before)
    for row in range(3):
        alone = either.encode(frame, before.of(np.array([row])))
        for ours, theirs in zip(alone, together, strict=True):
            assert ours[0] == pytest.approx(theirs[row], abs=1e-5)


def test_the_state_of_an_endless_stream_holds_the_cells_of_its_last_picks_only(attending):
    rng = np.random.default_rng(7)
    num_cells = 2 * 2
    kept = attending.config.video.num_frames  # 4
    memory, every_key = attending.start(), []
    for num_picks in range(1, 8):
        memory = attending.encode(random_features(rng, attending, 1), memory)
        every_key.append(memory.keys[:, -num_cells:].copy())
        assert memory.keys.shape == memory.values.shape == (1, min(num_picks, kept) * num_cells, 16)
        assert np.array_equal(memory.keys, np.concatenate(every_key[-kept:], axis=1))


def test_without_attention_the_state_holds_no_cells(runtime):
    memory = random_memory(np.random.default_rng(8), runtime)
    assert memory.keys.shape == memory.values.shape == (1, 0, 16)


def test_a_graph_is_compiled_when_it_is_first_used(model_folder):
    runtime = Runtime(model_folder)
    runtime.encode(np.zeros((1, 1, 1280), np.float32), runtime.start())
    assert [name for name, graph in runtime.graphs.items() if graph.is_compiled] == ["encoder"]


def test_a_graph_compiled_ahead_is_compiled_once_and_its_error_is_raised_where_it_is_used(model_folder, monkeypatch):
    compiled = []
    compile_graph = Graph._compile

    def noted(graph, precision):
        compiled.append(graph.name)
        return compile_graph(graph, precision)

    monkeypatch.setattr(Graph, "_compile", noted)
    runtime = Runtime(model_folder)
    runtime.compile_ahead()
    runtime.compile_ahead()
    memory = runtime.encode(np.zeros((1, 1, 1280), np.float32), runtime.start())
    runtime.decode(np.array([1]), memory, memory.h)
    runtime.compile_ahead()
    assert {"decoder", "encoder"} <= set(compiled)  # the others may still be compiling
    assert len(compiled) == len(set(compiled))

    def broken(graph, precision):
        raise BadModel(f"{graph.name}: broken")

    monkeypatch.setattr(Graph, "_compile", broken)
    runtime = Runtime(model_folder)
    runtime.compile_ahead()
    with pytest.raises(BadModel, match=r"^encoder: broken$"):
        runtime.encode(np.zeros((1, 1, 1280), np.float32), runtime.start())


class Walk(NamedTuple):
    """All outputs of a runtime for one made-up video."""

    features: np.ndarray
    logits: np.ndarray
    states: np.ndarray
    log_probabilities: np.ndarray


def walk(runtime, seed):
    """Use every graph for a video of 1 to 4 frames; a batch and a memory of other sizes from video to video."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (1 + seed % 4, 64, 64, 3), dtype=np.uint8)
    pending = [runtime.start_features(one) for one in pixels]
    logits = runtime.policy(random_inputs(runtime.config.model, rng, 1 + seed % 3))["logits"]
    memory = runtime.start()
    features = [one.result() for one in pending]
    for one in features:
        memory = runtime.encode(one, memory)
    words = rng.integers(4, 16, 1 + seed % 5)
    states, log_probabilities = np.repeat(memory.h, len(words), axis=0), []
    for _ in range(3):
        log_probability, states = runtime.decode(words, memory, states)
        log_probabilities.append(log_probability)
        words = log_probability.argmax(axis=1)
    return Walk(np.concatenate(features), logits, states, np.stack(log_probabilities))


def test_eight_threads_share_a_runtime_and_each_gets_the_results_of_one_thread(either):
    alone = [walk(either, seed) for seed in range(25)]
    assert len({one.log_probabilities.tobytes() for one in alone}) == 25
    seeds = [call % 25 for call in range(200)]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(partial(walk, either), seeds))
    for seed, found in zip(seeds, together, strict=True):
        for ours, expected in zip(found, alone[seed], strict=True):
            np.testing.assert_array_equal(ours, expected)
    # A thread has at most four frames in the CNN at a time: 32 requests, of which a part is kept.
    assert len(either.graphs["cnn"].compiled(PRECISION["cnn"])._idle) <= MAX_IDLE_REQUESTS


def test_threads_that_start_together_compile_each_graph_once(model_folder, monkeypatch):
    compiled = []
    compile_graph = Graph._compile

    def noted(graph, precision):
        compiled.append((graph.name, precision))
        return compile_graph(graph, precision)

    monkeypatch.setattr(Graph, "_compile", noted)
    runtime = Runtime(model_folder)
    with ThreadPoolExecutor(8) as threads:
        for _ in range(8):
            threads.submit(runtime.compile_ahead)
        first, *others = threads.map(partial(walk, runtime), [3] * 8)
    expected = sorted(PRECISION.items())
    assert sorted(compiled) == expected
    for other in others:
        np.testing.assert_array_equal(other.log_probabilities, first.log_probabilities)


def test_pending_features_can_be_asked_for_twice_and_by_several_threads(either):
    pixels = np.random.default_rng(11).integers(0, 256, (6, 64, 64, 3), dtype=np.uint8)
    expected = either.features(pixels)
    with ThreadPoolExecutor(8) as threads:
        pending = [either.start_features(one) for one in pixels]
        found = list(threads.map(lambda place: pending[place % 6].result(), range(48)))
    for place, features in enumerate(found):
        np.testing.assert_array_equal(features, expected[[place % 6]])
    # No request went back to the pool twice: frames that follow do not get each other's features.
    np.testing.assert_array_equal(either.features(pixels), expected)


@pytest.mark.skipif(sys.platform == "win32", reason="sends itself Ctrl-C as POSIX knows it")
def test_ctrl_c_does_not_crash_after_a_model_was_deleted(model_folder):
    code = (
        "import os, signal, sys; import numpy as np; from picknet.model.runtime import Runtime\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "glance = np.zeros((1, 56, 56), np.uint8); runtime = Runtime(sys.argv[1])\n"
        "runtime.policy({'glances': glance, 'templates': glance})\n"
        "runtime.encode(np.zeros((1, 1, 1280), np.float32), runtime.start())\n"
        "del runtime\n"
        "try: os.kill(os.getpid(), signal.SIGINT); signal.pause()\n"
        "except KeyboardInterrupt: print('interrupted')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, model_folder], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "interrupted\n")


# --- Bad model folders ------------------------------------------------------------------------------------------------


@pytest.fixture
def copy(model_folder, tmp_path):
    return unsealed(model_folder, tmp_path / "copy")


def complaint(folder, capfd):
    """The error for a bad model folder: one line, and nothing else on the terminal."""
    with pytest.raises(PicknetError) as caught:
        Runtime(folder)
    output = capfd.readouterr()
    assert output.out == ""
    assert output.err == ""
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_that_is_not_there(tmp_path, capfd):
    assert complaint(tmp_path / "none", capfd) == f"{tmp_path}/none: no such folder; a model is a folder"
    (tmp_path / "file").write_text("")
    assert complaint(tmp_path / "file", capfd) == f"{tmp_path}/file: is not a folder; a model is a folder"


def test_missing_and_empty_parts_are_named(copy, capfd):
    (copy / "policy.onnx").unlink()
    (copy / "words.txt").write_text("")
    assert complaint(copy, capfd) == (
        f"{copy}: incomplete model: words.txt, policy.onnx missing or empty; export the model again"
    )


@pytest.mark.parametrize("graph", ["cnn", "policy", "encoder", "decoder"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content[: len(content) // 2],
        lambda content: content + b"\0" * 8,
        lambda content: content + b"extra",  # to a protocol-buffer reader an unknown field, so OpenVINO would take it
        lambda content: content + content,
        lambda content: b"garbage " * 100,
        lambda content: b"\xff" * 100,
    ],
)
def test_a_damaged_graph(copy, capfd, graph, damage):
    path = copy / f"{graph}.onnx"
    path.write_bytes(damage(path.read_bytes()))
    assert complaint(copy, capfd) == f"{path}: is damaged or not an ONNX graph; export the model again"


def test_a_graph_that_is_another_graph(copy, capfd):
    shutil.copy(copy / "encoder.onnx", copy / "decoder.onnx")
    assert complaint(copy, capfd) == (
        f"{copy}/decoder.onnx: has features, h, c where words, video, state was expected; export the model again"
    )


def test_a_graph_with_a_fixed_batch_size(copy, capfd):
    import onnx

    model = onnx.load(copy / "policy.onnx", load_external_data=False)
    for port in model.graph.input:
        port.type.tensor_type.shape.dim[0].dim_value = 2
    (copy / "policy.onnx").write_bytes(model.SerializeToString())
    assert complaint(copy, capfd) == (
        f"{copy}/policy.onnx: glances is u8 2 56 56 where u8 n glance glance was expected; export the model again"
    )


def test_a_decoder_of_an_older_version_that_takes_one_video_only(attending_folder, tmp_path, capfd):
    import onnx

    copy = unsealed(attending_folder, tmp_path / "copy")
    model = onnx.load(copy / "decoder.onnx", load_external_data=False)
    for port in model.graph.input:
        if port.name in ("video", "keys", "values"):
            port.type.tensor_type.shape.dim[0].dim_value = 1
    (copy / "decoder.onnx").write_bytes(model.SerializeToString())
    assert complaint(copy, capfd) == (
        f"{copy}/decoder.onnx: video is f32 1 24 where f32 n state was expected; export the model again"
    )


def test_an_operation_that_does_not_exist(copy, capfd):
    import onnx

    model = onnx.load(copy / "policy.onnx", load_external_data=False)
    next(node for node in model.graph.node if node.op_type == "Relu").op_type = "Rely"
    (copy / "policy.onnx").write_bytes(model.SerializeToString())
    text = complaint(copy, capfd)
    assert text.startswith(f"{copy}/policy.onnx: is not a graph that OpenVINO can read (")
    assert "Rely" in text


def test_more_or_fewer_words_than_the_decoder_writes(copy, capfd):
    with (copy / "words.txt").open("a") as file:
        file.write("zebra\n")
    assert complaint(copy, capfd) == (
        f"{copy}/decoder.onnx: log_probabilities has words size 16, but it is 17 in words.txt: "
        "they are parts of different models; export the model again"
    )


def test_words_cut_inside_a_word(copy, capfd):
    words = (copy / "words.txt").read_bytes()
    (copy / "words.txt").write_bytes(words[:-3])
    assert complaint(copy, capfd) == f"{copy}/words.txt: is cut short: its last line has no end; export the model again"


@pytest.mark.parametrize(
    ("setting", "changed", "complaint_end"),
    [
        ("state_size = 24", "state_size = 32", "encoder.onnx: h has state size 24, but it is 32 in config.toml"),
        ("image_size = 64", "image_size = 96", "cnn.onnx: pixels has image size 64, but it is 96 in config.toml"),
    ],
)
def test_a_config_of_another_model(copy, capfd, setting, changed, complaint_end):
    config = (copy / "config.toml").read_text()
    assert setting in config
    (copy / "config.toml").write_text(config.replace(setting, changed))
    expected = f"{copy}/{complaint_end}: they are parts of different models; export the model again"
    assert complaint(copy, capfd) == expected


@pytest.mark.parametrize(
    ("setting", "changed", "complaint_end"),
    [
        ("grid = 2", "grid = 1", "cnn.onnx: features has cells size 4, but it is 1 in config.toml: they are parts of"),
        (
            "embedding_size = 16",
            "embedding_size = 18",
            "encoder.onnx: keys has embedding size 16, but it is 18 in config.toml: they are parts of",
        ),
        (
            "attention_heads = 2",
            "attention_heads = 0",
            "encoder.onnx: has next_h, next_c, keys, values where next_h, next_c was expected; export",
        ),
    ],
)
def test_a_model_with_attention_and_the_config_of_another(
    attending_folder, tmp_path, capfd, setting, changed, complaint_end
):
    copy = unsealed(attending_folder, tmp_path / "copy")
    config = (copy / "config.toml").read_text()
    assert setting in config
    (copy / "config.toml").write_text(config.replace(setting, changed))
    assert complaint(copy, capfd).startswith(f"{copy}/{complaint_end} ")


def test_a_config_with_attention_and_a_model_without(copy, capfd):
    config = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(config.replace("attention_heads = 0", "attention_heads = 2"))
    assert complaint(copy, capfd) == (
        f"{copy}/encoder.onnx: has next_h, next_c where next_h, next_c, keys, values was expected; "
        "export the model again"
    )


@pytest.mark.parametrize("content", ["beam = \n", "beem = 1\n"])
def test_an_invalid_config_is_a_bad_model(copy, content):
    (copy / "config.toml").write_text(content)
    with pytest.raises(BadModel, match=rf"^{re.escape(str(copy))}/config\.toml: .*; export the model again$"):
        Runtime(copy)


def test_a_config_cut_inside_a_number(copy, capfd):
    (copy / "config.toml").write_text((copy / "config.toml").read_text().rstrip("\n")[:-1])
    expected = f"{copy}/config.toml: is cut short: its last line has no end; export the model again"
    assert complaint(copy, capfd) == expected


@pytest.mark.parametrize("content", ["{", "[1]", "{} more"])
def test_an_invalid_card(copy, capfd, content):
    (copy / "card.json").write_text(content)
    assert complaint(copy, capfd).startswith(f"{copy}/card.json: ")


@pytest.mark.parametrize("part", ["weights.safetensors", "policy.safetensors"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-100],
        lambda content: content[:50],
        lambda content: content[:5],
        lambda content: content + b"12345",
        lambda content: b"not a safetensors file at all",
        lambda content: (2).to_bytes(8, "little") + b"[]",
        lambda content: (4).to_bytes(8, "little") + b"{{{{",
        lambda content: (8).to_bytes(8, "little") + b'{"a": 1}',
        lambda content: (30).to_bytes(8, "little") + b'{"a": {"data_offsets": "abc"}}',
        lambda content: (2**62).to_bytes(8, "little") + content[8:],
    ],
)
def test_damaged_weights(copy, capfd, damage, part):
    path = copy / part
    path.write_bytes(damage(path.read_bytes()))
    text = complaint(copy, capfd)
    assert text.startswith(f"{path}: is damaged or not a safetensors file (")
    assert text.endswith("); export the model again")


def safetensors_file(path, tensors, data):
    header = json.dumps(tensors).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


def tensor(first, last, shape=None, dtype="F32"):
    return {"dtype": dtype, "shape": shape or [(last - first) // 4], "data_offsets": [first, last]}


@pytest.mark.parametrize(
    "tensors",
    [
        {"a": tensor(0, 8), "b": tensor(12, 16)},  # a hole
        {"a": tensor(4, 8), "b": tensor(8, 16)},  # a hole at the beginning
        {"a": tensor(0, 8), "b": tensor(4, 16)},  # an overlap
        {"a": tensor(0, 16), "b": tensor(0, 16)},
        {"a": tensor(0, 16, [3])},  # a shape of other bytes
        {"a": tensor(0, 12)},  # bytes after the last tensor
        {"a": tensor(0, 16), "b": tensor(16, 20)},  # a tensor beyond the end
    ],
)
def test_tensors_must_cover_each_byte_of_the_weights_once(tmp_path, tensors):
    with pytest.raises(BadModel, match=r"/weights: is damaged or not a safetensors file \("):
        tensor_spans(safetensors_file(tmp_path / "weights", tensors, bytes(16)))


def test_weights_of_another_type(tmp_path):
    path = safetensors_file(tmp_path / "weights", {"a": tensor(0, 16, [2], "F64")}, bytes(16))
    with pytest.raises(BadModel) as caught:
        tensor_spans(path)
    assert str(caught.value) == f"{path}: holds F64 where F16 or F32 was expected; export the model again"


def test_tensor_spans_are_those_of_the_header(copy):
    path = copy / "weights.safetensors"
    content = path.read_bytes()
    header_size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + header_size])
    expected = {
        name: (8 + header_size + one["data_offsets"][0], one["data_offsets"][1] - one["data_offsets"][0], one["dtype"],
               tuple(one["shape"]))
        for name, one in header.items()
        if name != "__metadata__"
    }  # fmt: skip
    assert tensor_spans(path) == expected
    assert len(expected) > 100


@pytest.mark.parametrize(("graph", "part"), [("cnn", "weights.safetensors"), ("policy", "policy.safetensors")])
def test_weights_of_another_model(copy, capfd, graph, part):
    from safetensors.numpy import load_file, save_file

    path = copy / part
    tensors = load_file(path)
    save_file(tensors | {"another": np.zeros(1000, np.float32)}, path)
    text = complaint(copy, capfd)
    assert text.startswith(f"{copy}/{graph}.onnx: there is no tensor of ")
    assert text.endswith(f"of {part}: they are parts of different models; export the model again")


def test_the_policy_of_another_model(copy, attending_folder, capfd):
    shutil.copy(attending_folder / "policy.safetensors", copy)
    text = complaint(copy, capfd)
    assert text.startswith(f"{copy}/policy.onnx: there is no tensor of ")
    assert text.endswith("of policy.safetensors: they are parts of different models; export the model again")


def test_a_config_with_another_policy(copy, capfd):
    config = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(config.replace('picker = "difference"', 'picker = "rate"'))
    assert complaint(copy, capfd) == (
        f"{copy}/policy.onnx: has glances, templates where glances, previous, state, recent, picked, clock was "
        "expected; export the model again"
    )


def test_a_policy_of_another_size_than_its_config_says(attending_folder, tmp_path, capfd):
    copy = unsealed(attending_folder, tmp_path / "copy")
    config = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(re.sub(r"picker_hidden = \d+", "picker_hidden = 7", config))
    assert complaint(copy, capfd) == (
        f"{copy}/policy.safetensors: does not fit config.toml beside it (first difference: picknet.decide.weight); "
        "export the model again"
    )


def test_a_policy_may_not_read_the_weights_of_the_captioner(copy, capfd):
    import onnx

    model = onnx.load(copy / "policy.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = entry.value.replace("policy.safetensors", "weights.safetensors")
    (copy / "policy.onnx").write_bytes(model.SerializeToString())
    assert complaint(copy, capfd) == (
        f"{copy}/policy.onnx: refers to weights outside policy.safetensors, which is not allowed; "
        "export the model again"
    )


@pytest.mark.parametrize("location", ["../outside.safetensors", "{folder}/outside.safetensors", "config.toml"])
def test_a_graph_may_not_read_other_files(copy, capfd, location):
    import onnx

    shutil.copy(copy / "weights.safetensors", copy.parent / "outside.safetensors")
    model = onnx.load(copy / "encoder.onnx", load_external_data=False)
    tensor = next(tensor for tensor in model.graph.initializer if tensor.external_data)
    tensor.external_data[0].value = location.format(folder=copy.parent)
    (copy / "encoder.onnx").write_bytes(model.SerializeToString())
    assert complaint(copy, capfd) == (
        f"{copy}/encoder.onnx: refers to weights outside weights.safetensors, which is not allowed; "
        "export the model again"
    )


def test_a_reference_to_another_file_is_found_in_any_encoding(copy, capfd):
    import onnx

    model = onnx.load(copy / "encoder.onnx", load_external_data=False)
    tensor = next(tensor for tensor in model.graph.initializer if tensor.external_data)
    location, offset, length = tensor.external_data
    location.value = "../outside.safetensors"
    reordered = [offset, length, location]
    copies = [onnx.StringStringEntryProto(key=entry.key, value=entry.value) for entry in reordered]
    del tensor.external_data[:]
    tensor.external_data.extend(copies)
    (copy / "encoder.onnx").write_bytes(model.SerializeToString())
    assert "refers to weights outside weights.safetensors" in complaint(copy, capfd)


def test_the_card_is_json(runtime):
    assert runtime.card == {"trained_on": "nothing"}
    assert json.dumps(runtime.card)


def test_a_bad_model_is_an_error_for_users():
    assert issubclass(BadModel, PicknetError)
