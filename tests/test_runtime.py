"""The graphs against PyTorch, and what is said about model folders that cannot be used."""

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from picknet.errors import PicknetError
from picknet.runtime import BadModel, Runtime, State


@pytest.fixture(scope="module")
def runtime(model_folder):
    return Runtime(model_folder)


@pytest.fixture(scope="module")
def network(model_folder):
    from picknet.export import load_network

    return load_network(model_folder)[0].eval()


def as_torch(*arrays):
    import torch

    return tuple(torch.from_numpy(array) for array in arrays)


def random_state(rng, count):
    return rng.standard_normal((count, 24)).astype(np.float32)


def test_features_are_those_of_the_pytorch_network(runtime, network):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 64, 64, 3), dtype=np.uint8)
    expected = network.cnn(*as_torch(pixels)).detach().numpy()
    assert np.abs(runtime.features(pixels) - expected).max() < 1e-4 * np.abs(expected).max()


def test_the_probability_of_picking_is_the_softmax_of_the_policys_logits(runtime, network):
    glances, templates = np.random.default_rng(1).integers(0, 256, (2, 5, 56, 56), dtype=np.uint8)
    expected = network.picknet(*as_torch(glances, templates)).softmax(-1)[:, 1].detach().numpy()
    assert runtime.policy(glances, templates) == pytest.approx(expected, abs=1e-5)


def test_extreme_logits_are_certain_not_undefined(runtime, monkeypatch):
    logits = np.array([[0, 1e4], [1e4, 0], [3, 3]], dtype=np.float32)
    monkeypatch.setattr(runtime, "_run", lambda *_, **__: {"logits": logits})
    with np.errstate(all="raise"):
        assert runtime.policy(None, None).tolist() == [1.0, 0.0, 0.5]


def test_an_encoder_step_is_that_of_the_pytorch_network(runtime, network):
    rng = np.random.default_rng(2)
    features = rng.random((2, 1280)).astype(np.float32)
    state = State(random_state(rng, 2), random_state(rng, 2))
    expected = network.encoder.step(*as_torch(features), type(network.encoder.start(1))(*as_torch(*state)))
    for ours, theirs in zip(runtime.encode(features, state), expected, strict=True):
        assert ours == pytest.approx(theirs.detach().numpy(), abs=1e-4)


def test_a_decoder_step_is_that_of_the_pytorch_network(runtime, network):
    rng = np.random.default_rng(3)
    words, video, state = np.array([1, 4, 7]), random_state(rng, 3), random_state(rng, 3)
    ours = runtime.decode(words, video, state)
    for found, expected in zip(ours, network.decoder.step(*as_torch(words, video, state)), strict=True):
        assert found == pytest.approx(expected.detach().numpy(), abs=1e-4)
    assert np.exp(ours[0]).sum(axis=1) == pytest.approx(np.ones(3), abs=1e-5)


def test_results_stay_what_they_were_when_the_graph_runs_again(runtime):
    rng = np.random.default_rng(4)
    first = runtime.encode(rng.random((1, 1280), dtype=np.float32), runtime.start())
    kept = State(first.h.copy(), first.c.copy())
    runtime.encode(rng.random((1, 1280), dtype=np.float32), first)
    assert np.array_equal(first.h, kept.h)
    assert np.array_equal(first.c, kept.c)


def test_a_batch_gives_what_its_rows_give(runtime):
    rng = np.random.default_rng(5)
    words, video, state = np.array([1, 4, 7, 9]), random_state(rng, 4), random_state(rng, 4)
    together, _ = runtime.decode(words, video, state)
    for row in range(4):
        alone, _ = runtime.decode(words[[row]], video[[row]], state[[row]])
        assert alone[0] == pytest.approx(together[row], abs=1e-5)


def test_only_the_graphs_in_use_are_compiled(model_folder):
    runtime = Runtime(model_folder)
    runtime.encode(np.zeros((1, 1280), np.float32), runtime.start())
    assert list(runtime._requests) == ["encoder"]


@pytest.mark.skipif(sys.platform == "win32", reason="sends itself Ctrl-C as POSIX knows it")
def test_ctrl_c_is_only_that_after_a_model_was_used_and_let_go(model_folder):
    code = (
        "import os, signal, sys; import numpy as np; from picknet.runtime import Runtime\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "glance = np.zeros((1, 56, 56), np.uint8); runtime = Runtime(sys.argv[1]); runtime.policy(glance, glance)\n"
        "runtime.encode(np.zeros((1, 1280), np.float32), runtime.start())\n"
        "del runtime\n"
        "try: os.kill(os.getpid(), signal.SIGINT); signal.pause()\n"
        "except KeyboardInterrupt: print('interrupted')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, model_folder], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "interrupted\n")


# --- Bad model folders ------------------------------------------------------------------------------------------------


@pytest.fixture
def copy(model_folder, tmp_path):
    return shutil.copytree(model_folder, tmp_path / "copy")


def complaint(folder, capfd):
    """What is said about a bad model folder: one line, and nothing else on the terminal."""
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
        f"{copy}: is not a whole model: words.txt, policy.onnx missing or empty; export the model again"
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


def test_a_graph_for_one_number_of_rows_only(copy, capfd):
    import onnx

    model = onnx.load(copy / "policy.onnx", load_external_data=False)
    for port in model.graph.input:
        port.type.tensor_type.shape.dim[0].dim_value = 2
    (copy / "policy.onnx").write_bytes(model.SerializeToString())
    assert complaint(copy, capfd) == (
        f"{copy}/policy.onnx: glances is u8 2 56 56 where u8 n glance glance was expected; export the model again"
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


@pytest.mark.parametrize("content", ["beam = \n", "beem = 1\n"])
def test_a_config_that_is_no_config_is_a_bad_model(copy, content):
    (copy / "config.toml").write_text(content)
    with pytest.raises(BadModel, match=rf"^{re.escape(str(copy))}/config\.toml: .*; export the model again$"):
        Runtime(copy)


def test_a_config_cut_inside_a_number(copy, capfd):
    (copy / "config.toml").write_text((copy / "config.toml").read_text().rstrip("\n")[:-1])
    expected = f"{copy}/config.toml: is cut short: its last line has no end; export the model again"
    assert complaint(copy, capfd) == expected


@pytest.mark.parametrize("content", ["{", "[1]", "{} more"])
def test_a_card_that_is_no_card(copy, capfd, content):
    (copy / "card.json").write_text(content)
    assert complaint(copy, capfd).startswith(f"{copy}/card.json: ")


def test_weights_cut_short(copy, capfd):
    path = copy / "weights.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    assert complaint(copy, capfd) == (
        f"{path}: is cut short: {len(content) - 100} bytes of {len(content)}; export the model again"
    )
    path.write_bytes(content[:50])
    assert f"{path}: is cut short: 50 bytes, and its header alone needs" in complaint(copy, capfd)
    path.write_bytes(content[:5])
    assert complaint(copy, capfd).startswith(f"{path}: is ")


def test_weights_with_bytes_too_many(copy, capfd):
    path = copy / "weights.safetensors"
    path.write_bytes(path.read_bytes() + b"12345")
    assert complaint(copy, capfd) == f"{path}: has 5 bytes too many after its last tensor; export the model again"


@pytest.mark.parametrize(
    "content",
    [
        b"not a safetensors file at all",
        (2).to_bytes(8, "little") + b"[]",
        (4).to_bytes(8, "little") + b"{{{{",
        (8).to_bytes(8, "little") + b'{"a": 1}',
        (30).to_bytes(8, "little") + b'{"a": {"data_offsets": "abc"}}',
    ],
)
def test_weights_that_are_no_weights(copy, capfd, content):
    path = copy / "weights.safetensors"
    path.write_bytes(content)
    assert complaint(copy, capfd).startswith(f"{path}: is not a safetensors file")


def test_weights_of_another_model(copy, capfd):
    from safetensors.numpy import load_file, save_file

    path = copy / "weights.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"another": np.zeros(1000, np.float32)}, path)
    text = complaint(copy, capfd)
    assert text.startswith(f"{copy}/cnn.onnx: there is no tensor of ")
    assert text.endswith("of weights.safetensors: they are parts of different models; export the model again")


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


def test_a_reference_to_elsewhere_cannot_hide_behind_a_strange_encoding(copy, capfd):
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


def test_the_card_is_there_for_people_to_read(runtime):
    assert runtime.card == {"trained_on": "nothing"}
    assert json.dumps(runtime.card)


def test_bad_models_are_errors_a_user_can_mend():
    assert issubclass(BadModel, PicknetError)
