"""Model folders made to hurt are refused in one line, before they can."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command import on_linux
from folders import unsealed

from picknet.errors import PicknetError
from picknet.model.folder import BadModel, ModelFolder
from picknet.model.onnx_file import BadFile, Reference, references
from picknet.model.runtime import Runtime


@pytest.fixture
def copy(model_folder: Path, tmp_path: Path) -> Path:
    return unsealed(model_folder, tmp_path / "copy")


def complaint(folder: Path) -> str:
    with pytest.raises(PicknetError) as caught:
        Runtime(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- Texts -----------------------------------------------------------------------------------------------------------


def test_a_card_of_deep_nesting(copy: Path) -> None:
    for content in ('{"a": ' * 40 + "1" + "}" * 40, '{"a": ' + "[" * 100_000, '{"a":' * 100_000):
        (copy / "card.json").write_text(content)
        expected = f"{copy}/card.json: holds more than 32 objects inside each other; export the model again"
        assert complaint(copy) == expected


def test_a_config_of_deep_nesting_or_long_numbers(copy: Path) -> None:
    for value in (" = " + "[" * 100_000, ".a" * 5000 + " = 1", " = " + "1" * 5000, " = 0x" + "f" * 9999):
        (copy / "config.toml").write_text(f"beam{value}\n")
        assert complaint(copy).startswith(f"{copy}/config.toml: ")


@pytest.mark.parametrize("word", ["\x1b[2Jman", "man\x07", "\x9b31m", "\u202enam"])
def test_words_may_not_hold_what_a_terminal_obeys(copy: Path, word: str) -> None:
    words = (copy / "words.txt").read_text().replace("\nman\n", f"\n{word}\n")
    (copy / "words.txt").write_text(words)
    assert complaint(copy) == (
        f"{copy}/words.txt: line 7: {word!r} holds control characters, which would reach the terminal"
    )


@pytest.mark.parametrize("format", ["text", "markdown", "json", "csv"])
def test_a_card_cannot_talk_to_the_terminal(copy: Path, format: str, capsys: pytest.CaptureFixture[str]) -> None:
    from picknet.cli import main

    card = {"description": "\x1b[2Ja model", "licence": "\x1b]0;owned\x07", "\x1b[31m": 1}
    (copy / "card.json").write_text(json.dumps(card))
    with pytest.raises(SystemExit) as exit:
        main(["info", str(copy), "--format", format])
    out, _ = capsys.readouterr()
    assert exit.value.code == 0
    assert "a model" in out
    assert "\x1b" not in out


def test_a_confidence_of_the_wrong_kind_is_shown_as_it_is(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from picknet.cli import main

    names = ("own", "sure", "weights", "words", "auc_interval", "ece_by_chance", "reliability")
    card = {"confidence": {"msvd": {"weights": {"bias": 1.0}} | {name: {"bias": 0.0} for name in names}}}
    (copy / "card.json").write_text(json.dumps(card))
    with pytest.raises(SystemExit) as exit:
        main(["info", str(copy)])
    assert exit.value.code == 0
    assert '{"bias": 0.0}' in capsys.readouterr().out


@pytest.mark.parametrize("part", ["words.txt", "card.json", "cnn.onnx", "weights.safetensors"])
def test_a_link_out_of_the_folder_is_not_followed(copy: Path, tmp_path: Path, part: str) -> None:
    (copy / part).rename(tmp_path / "outside")
    (copy / part).symlink_to(tmp_path / "outside")
    expected = f"{copy / part}: is a link to {tmp_path}/outside; the parts of a model are files in its folder"
    assert complaint(copy) == expected


def test_a_link_to_the_folder_and_links_inside_are_followed(copy: Path, tmp_path: Path) -> None:
    (copy / "words.txt").rename(copy / "vocabulary.txt")
    (copy / "words.txt").symlink_to("vocabulary.txt")
    (tmp_path / "link").symlink_to(copy)
    assert len(Runtime(tmp_path / "link").vocabulary) == 16


def test_a_pipe_in_the_place_of_a_part_is_not_waited_for(copy: Path) -> None:
    os.mkfifo(copy / "manifest.json")
    assert complaint(copy) == f"{copy}/manifest.json: is not a file; export the model again"
    (copy / "manifest.json").unlink()
    (copy / "words.txt").unlink()
    os.mkfifo(copy / "words.txt")
    assert complaint(copy) == f"{copy}: incomplete model: words.txt missing or empty; export the model again"


def test_a_part_that_would_fill_the_memory_is_not_read(copy: Path) -> None:
    weights = (copy / "weights.safetensors").stat().st_size
    os.truncate(copy / "weights.safetensors", 10**11)
    assert "weights.safetensors: is too large (100,000,000,000 bytes, at most 4,294,967,296 are " in complaint(copy)
    os.truncate(copy / "weights.safetensors", weights)
    os.truncate(copy / "card.json", 10**10)  # a sparse file: it takes no space on the disk
    assert complaint(copy) == (
        f"{copy}/card.json: is too large (10,000,000,000 bytes, at most 67,108,864 are read); export the model again"
    )


# --- Weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "part", "message"),
    [
        ("model_folder", "weights.safetensors", "encoder.onnx: computes what is not a number: its weights are damaged"),
        ("model_folder", "policy.safetensors", "policy.onnx: computes what is not a number: its weights are damaged"),
        ("attending_folder", "policy.safetensors", "policy.safetensors: holds what is not a number, or is too large"),
    ],
)
def test_weights_that_are_not_numbers_are_an_error_and_no_caption(
    folder: str, part: str, message: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    from picknet.captioner import load

    copy = unsealed(request.getfixturevalue(folder), tmp_path / "copy")
    content = (copy / part).read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    (copy / part).write_bytes(content[:start] + b"\xff" * (len(content) - start))
    video = np.random.default_rng(0).integers(0, 256, (6, 64, 64, 3), dtype=np.uint8)
    with pytest.raises(BadModel, match=f"/{message}"):
        load(copy).caption(video)


# --- Graphs ----------------------------------------------------------------------------------------------------------


def changed(copy: Path, graph: str, change) -> None:
    import onnx

    path = copy / f"{graph}.onnx"
    model = onnx.load(path, load_external_data=False)
    change(model.graph)
    path.write_bytes(model.SerializeToString())


def with_a_huge_constant(graph) -> None:
    """Adds the mean of 2³⁰ numbers to the output: 4 GB if it is computed."""
    from onnx import helper, numpy_helper

    result = graph.output[0].name
    for node in graph.node:
        node.output[:] = ["before" if name == result else name for name in node.output]
    graph.initializer.append(numpy_helper.from_array(np.array([2**30]), "size"))
    half = numpy_helper.from_array(np.array([0.5], np.float32))
    graph.node.extend(
        [
            helper.make_node("ConstantOfShape", ["size"], ["huge"], value=half),
            helper.make_node("ReduceMean", ["huge"], ["mean"], keepdims=0),
            helper.make_node("Add", ["before", "mean"], [result]),
        ]
    )


def with_a_tensor_of_the_size_of_its_input(graph) -> None:
    """The same, but its size is only known with the input."""
    from onnx import helper

    with_a_huge_constant(graph)
    next(one for one in graph.initializer if one.name == "size").name = "factor"
    shape = helper.make_node("Shape", ["glances"], ["shape"], start=0, end=1)
    graph.node.insert(0, helper.make_node("Mul", ["shape", "factor"], ["size"]))
    graph.node.insert(0, shape)


@on_linux
@pytest.mark.parametrize("change", [with_a_huge_constant, with_a_tensor_of_the_size_of_its_input])
def test_a_small_graph_with_a_huge_tensor_takes_no_memory(copy: Path, change) -> None:
    changed(copy, "policy", change)
    code = (
        "import re, sys; import numpy as np; from picknet.model.runtime import Runtime\n"
        "runtime = Runtime(sys.argv[1])\n"
        "glance = np.zeros((1, 56, 56), np.uint8)\n"
        "try: runtime.policy({'glances': glance, 'templates': glance})\n"
        "except Exception as error: print(error)\n"
        "print(int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) < 1_000_000)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, copy], capture_output=True, text=True, timeout=60)
    message, is_small = done.stdout.splitlines()
    assert re.match(rf"{copy}/policy.onnx: computes 1,073,\d+,\d+ numbers for a single frame: at most 67,108,", message)
    assert is_small == "True"


def test_a_graph_that_cannot_be_made_for_one_frame_is_refused(copy: Path) -> None:
    from onnx import helper, numpy_helper

    def for_seven_frames(graph) -> None:
        transpose = next(node for node in graph.node if node.op_type == "Transpose" and node.input[0] == "pixels")
        shape = np.array([7, *(side.dim_value for side in graph.input[0].type.tensor_type.shape.dim[1:])])
        graph.initializer.append(numpy_helper.from_array(shape, "seven"))
        graph.node.insert(0, helper.make_node("Reshape", ["pixels", "seven"], ["fixed"]))
        transpose.input[0] = "fixed"

    changed(copy, "cnn", for_seven_frames)
    with pytest.raises(BadModel, match=rf"^{copy}/cnn.onnx: cannot be compiled \([^\n]+\); export the model again$"):
        Runtime(copy).graphs["cnn"].compiled("f32")


def test_the_references_are_those_that_onnx_reads(model_folder: Path) -> None:
    import onnx

    for name in ("cnn", "policy", "encoder", "decoder"):
        path = model_folder / f"{name}.onnx"
        found = references(path.read_bytes())
        tensors = onnx.load(path, load_external_data=False).graph.initializer
        facts = [{entry.key: entry.value for entry in one.external_data} for one in tensors if one.external_data]
        assert found == [
            Reference(one["location"].encode(), int(one["offset"]), int(one["length"])) for one in facts
        ]
        assert len(found) > 3


def test_a_reference_hidden_behind_lengths_is_found(copy: Path) -> None:
    """The last value of a key counts in protocol buffers: here weights.safetensors stands before another file."""
    import onnx

    def entry(key: bytes, *values: bytes) -> bytes:
        body = b"\x0a" + bytes([len(key)]) + key + b"".join(b"\x12" + bytes([len(one)]) + one for one in values)
        return b"\x6a" + bytes([len(body)]) + body

    def hide(graph) -> None:
        tensor = next(tensor for tensor in graph.initializer if tensor.external_data)
        facts = {one.key: one.value.encode() for one in tensor.external_data}
        del tensor.external_data[:]
        hidden = tensor.SerializeToString() + entry(b"location", b"weights.safetensors", b"../outside.safetensors")
        hidden += entry(b"offset", facts["offset"]) + entry(b"length", facts["length"])
        tensor.ParseFromString(hidden)
        assert tensor.external_data[0].value == "../outside.safetensors"
        raw.append(hidden)

    raw: list[bytes] = []
    model = onnx.load(copy / "encoder.onnx", load_external_data=False)
    hide(model.graph)
    tensor = next(one for one in model.graph.initializer if "outside" in str(one.external_data))
    before = tensor.SerializeToString()
    content = model.SerializeToString()
    # The same message with its bytes as they were written, and the lengths of the messages around it.
    graph = model.graph.SerializeToString()
    grown = graph.replace(_message(0x2A, before), _message(0x2A, raw[0]))
    assert grown != graph
    content = content.replace(_message(0x3A, graph), _message(0x3A, grown))
    (copy / "encoder.onnx").write_bytes(content)
    assert complaint(copy) == (
        f"{copy}/encoder.onnx: refers to weights in an unusual way, which is not allowed; export the model again"
    )


def _message(tag: int, body: bytes) -> bytes:
    length, rest = b"", len(body)
    while rest >= 0x80:
        length, rest = length + bytes([rest & 0x7F | 0x80]), rest >> 7
    return bytes([tag]) + length + bytes([rest]) + body


def test_malformed_protocol_buffers_are_refused_at_once() -> None:
    for content in (b"", b"\x80" * 10_000_000, b"\x3a\xff", b"\x3a\x02\x2a\x7f", b"\x0b", b"\x08"):
        with pytest.raises(BadFile, match=r"^is damaged or not an ONNX graph$"):
            references(content)


def test_a_reference_in_a_node_is_refused(copy: Path) -> None:
    import onnx

    def hide(graph) -> None:
        tensor = onnx.TensorProto(dims=[1], data_type=1, data_location=onnx.TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value="weights.safetensors")
        graph.node.append(onnx.helper.make_node("Constant", [], ["hidden"], value=tensor))

    changed(copy, "encoder", hide)
    assert "encoder.onnx: refers to weights in an unusual way, which is not allowed" in complaint(copy)


def test_a_whole_folder_is_checked_in_little_time(model_folder: Path) -> None:
    import time

    start = time.perf_counter()
    ModelFolder(model_folder)
    assert time.perf_counter() - start < 1
