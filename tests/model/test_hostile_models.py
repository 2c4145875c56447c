"""Model folders made to hurt are refused in one line, before they can."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from command import on_linux
from folders import unsealed

from picknet.errors import PicknetError
from picknet.model.folder import DEFAULT_MODEL, MAX_BYTES, MAX_PART_BYTES, PARTS, SHIPPED, BadModel, ModelFolder
from picknet.model.onnx_file import MAX_FIELDS, BadFile, Reference, read_graph
from picknet.model.onnx_sizes import MAX_NODES
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
    for value in (" = " + "[" * 50_000, " = " + "1" * 5000, " = 0x" + "f" * 9999):
        (copy / "config.toml").write_text(f"beam{value}\n")
        assert complaint(copy).startswith(f"{copy}/config.toml: ")


def test_a_config_of_one_name_of_many_parts_is_refused_at_once(copy: Path) -> None:
    for text in ("a" + ".a" * 20_000 + "=1\n", "[a" + ".a" * 20_000 + "]\n"):
        (copy / "config.toml").write_text(text)
        start = time.perf_counter()
        expected = f"{copy}/config.toml: holds a name of 20,001 parts; possible: 1 to 8; export the model again"
        assert complaint(copy) == expected
        assert time.perf_counter() - start < 0.5  # tomllib needs seconds, and 1.6 GB


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
    assert complaint(copy) == f"{copy}/words.txt: is not a file; export the model again"


def test_nothing_is_read_of_a_model_without_all_its_parts_that_a_whole_one_may_not_have(
    copy: Path, tmp_path: Path
) -> None:
    config = copy / "config.toml"
    (copy / "card.json").unlink()
    missing = f"{copy}: incomplete model: card.json missing or empty; export the model again"
    assert complaint(copy) == missing
    config.rename(tmp_path / "outside.toml")
    os.mkfifo(config)
    assert complaint(copy) == f"{config}: is not a file; export the model again"
    config.unlink()
    config.touch()
    os.truncate(config, 3 << 30)  # a sparse file
    assert complaint(copy).startswith(f"{config}: is too large (3,221,225,472 bytes, at most 65,536 are read)")
    config.unlink()
    config.symlink_to(tmp_path / "outside.toml")
    assert complaint(copy).startswith(f"{config}: is a link to {tmp_path}/outside.toml; ")
    config.unlink()
    config.symlink_to(config)
    assert complaint(copy) == f"{config}: is not a file; export the model again"


def test_a_part_that_would_fill_the_memory_is_not_read(copy: Path) -> None:
    weights = (copy / "weights.safetensors").stat().st_size
    os.truncate(copy / "weights.safetensors", 10**11)
    assert "weights.safetensors: is too large (100,000,000,000 bytes, at most 4,294,967,296 are " in complaint(copy)
    os.truncate(copy / "weights.safetensors", weights)
    os.truncate(copy / "card.json", 10**10)  # a sparse file: it takes no space on the disk
    assert complaint(copy) == (
        f"{copy}/card.json: is too large (10,000,000,000 bytes, at most 1,048,576 are read); export the model again"
    )


@pytest.mark.parametrize(
    ("part", "limit"),
    [("config.toml", 2**16), ("words.txt", 2**22), ("card.json", 2**20), ("manifest.json", 2**20), ("cnn.onnx", 2**26)],
)
def test_a_text_that_would_take_long_to_read_is_not_read(copy: Path, part: str, limit: int) -> None:
    """60 MB of empty lists took 22 seconds and 1.8 GB."""
    content = b"[" + b"[]," * ((limit + 1) // 3)
    (copy / part).write_bytes(content[: limit + 1].ljust(limit + 1))
    assert complaint(copy) == (
        f"{copy / part}: is too large ({limit + 1:,} bytes, at most {limit:,} are read); export the model again"
    )


def test_the_limits_are_far_above_what_models_have() -> None:
    shipped = SHIPPED / DEFAULT_MODEL
    for part in (*PARTS, "manifest.json", "tags.safetensors"):
        assert (shipped / part).stat().st_size * 8 <= MAX_BYTES.get(part, MAX_PART_BYTES)


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
    expected = rf"{copy}/policy.onnx: computes 1,073,\d+,\d+ numbers for a single frame or sentence: at most 67,108,"
    assert re.match(expected, message)
    assert is_small == "True"


def of_the_words(copy: Path, *nodes, **constants) -> str:
    """The complaint when "zero", which the nodes make of the words, is added to what the decoder answers."""
    from onnx import helper, numpy_helper

    def change(graph) -> None:
        result = "log_probabilities"
        for node in graph.node:
            node.output[:] = ["before" if name == result else name for name in node.output]
        graph.initializer.extend(numpy_helper.from_array(np.array(value), name) for name, value in constants.items())
        graph.node.extend([*nodes, helper.make_node("Add", ["before", "zero"], [result])])

    changed(copy, "decoder", change)
    with pytest.raises(BadModel) as caught:
        Runtime(copy).graphs["decoder"].compiled("f32")
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{copy}/decoder.onnx: ").removesuffix("; export the model again")


def test_a_size_that_is_computed_from_the_words_is_refused(copy: Path) -> None:
    from onnx import helper

    make = helper.make_node
    nodes = [make("ReduceMax", ["words"], ["most"], keepdims=1), make("Min", ["most", "one"], ["least"])]
    nodes += [make("Mul", ["least", "factor"], ["size"]), make("ConstantOfShape", ["size"], ["huge"])]
    nodes += [make("ReduceMean", ["huge"], ["zero"], keepdims=0)]
    expected = "the size of Broadcast's output has no bound for a single frame or sentence"
    assert of_the_words(copy, *nodes, one=[1], factor=[2**29]) == expected


def test_a_size_that_grows_faster_than_the_number_of_sentences_is_refused(copy: Path) -> None:
    from onnx import helper

    make = helper.make_node
    axes = {f"axis{place}": [-1 if one == place else 1 for one in range(11)] for place in range(11)}
    nodes = [make("Cast", ["words"], ["numbers"], to=1)]
    nodes += [make("Reshape", ["numbers", axis], [f"on {axis}"]) for axis in axes]
    nodes += [make("Sum", [f"on {axis}" for axis in axes], ["huge"]), make("ReduceMin", ["huge"], ["zero"], keepdims=0)]
    complaint = of_the_words(copy, *nodes, **axes)
    assert re.match(r"computes [\d,]+ numbers for 100 frames or sentences: at most 536,870,", complaint)


def test_a_size_that_one_number_of_sentences_makes_huge_is_refused(copy: Path) -> None:
    from onnx import helper

    make = helper.make_node
    nodes = [make("Shape", ["words"], ["n"]), make("Equal", ["n", "three"], ["is three"])]
    nodes += [make("Cast", ["is three"], ["once"], to=7), make("Mul", ["once", "factor"], ["size"])]
    nodes += [make("ConstantOfShape", ["size"], ["huge"]), make("ReduceSum", ["huge"], ["zero"], keepdims=0)]
    complaint = of_the_words(copy, *nodes, three=[3], factor=[2**31])
    assert re.match(r"computes 2,147,\d+,\d+ numbers for 100 frames or sentences: at most ", complaint)


DOUBLED = "".join(f"d{place + 1} = Concat <axis = 0> (d{place}, d{place}) " for place in range(28))
MANY = {
    "ConstantOfShape": "many = ConstantOfShape <value = int64[1] {1}> (large)",
    "Expand": "many = Expand (one, large)",
    "Tile": "many = Tile (one, large)",
    "Pad": "many = Pad (one, padding)",
    "Range": "end = Squeeze (large) many = Range (from, end, step)",
    "Mul": "row = Expand (one, wide) column = Expand (one, high) many = Mul (row, column)",
    "Concat": f"d0 = Shape (words) {DOUBLED} many = Identity (d28)",
    "a part": "more = Expand (one, large) many = Gather (more, one)",
}
"""Ways to 2²⁸ numbers. Where the size of a tensor was made of them, OpenVINO took 4 GB and half a minute to read it."""


def parsed(operations: str) -> list:
    import onnx.parser

    return list(onnx.parser.parse_graph(f"some () => () {{ {operations} }}").node)


@pytest.mark.parametrize("kind", MANY)
def test_sizes_made_of_many_constants_are_refused_before_openvino_computes_them(copy: Path, kind: str) -> None:
    rest = "size = ReduceMax <keepdims = 1> (many) x = Expand (half, size) zero = ReduceMin <keepdims = 0> (x)"
    constants = {"one": [1], "large": [2**28], "padding": [0, 2**28], "from": 0, "step": 1}
    constants |= {"wide": [1, 2**14], "high": [2**14, 1], "half": np.float32([0.5])}
    start = time.perf_counter()
    expected = "computes the size of the output of Expand of many constants: at most 256 in a tensor are possible"
    assert of_the_words(copy, *parsed(f"{MANY[kind]} {rest}"), **constants) == expected
    assert time.perf_counter() - start < 2


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ("zero = Split <num_outputs = 67108864> (half)", "makes Split return more tensors than it names"),  # 12 GB
        ("zero = EyeLike (half)", "is not a graph that OpenVINO can read (picknet knows no operation 'EyeLike')"),
        ("zero = another.Neg (half)", "holds an operation that is not one of ONNX"),
        ("zero = Reshape (half, ones)", "makes Reshape return more dimensions than 32, the most that are possible"),
        ("zero = Tile (half, ones)", "makes Tile return more dimensions than 32, the most that are possible"),
        ("zero = LRN <size = 9999> (half)", "is not a graph that OpenVINO can read (picknet knows no operation 'LRN')"),
        (f"zero = Concat <axis = 0> ({'half, ' * 256}half)", "gives Concat 257 inputs: at most 256 are possible"),
        (
            "".join(f"x{n + 1} = Neg (x{n}) " for n in range(257)),
            "has more operations on constants and sizes than 256, the most that are possible",
        ),
        ("x = Neg (y) y = Neg (half) zero = Neg (x)", "is damaged: Neg reads what nothing before it computes"),
        ("half = Neg (words) zero = Neg (half)", "is damaged: the output of Neg has the name of another tensor"),
    ],
)
def test_little_that_becomes_much_is_refused_before_openvino_reads_it(
    copy: Path, operations: str, expected: str
) -> None:
    constants = {"half": np.float32([0.5]), "x0": np.float32([0.5]), "ones": [1] * 33}
    assert of_the_words(copy, *parsed(operations), **constants) == expected


def test_a_graph_of_too_many_operations_is_refused(copy: Path) -> None:
    from onnx import helper

    nodes = [helper.make_node("Neg", ["words"], [f"x{number}"]) for number in range(MAX_NODES)]
    expected = rf"holds 4,\d\d\d operations: at most {MAX_NODES:,} are possible"
    assert re.fullmatch(expected, of_the_words(copy, *nodes))


def test_dimensions_are_counted_however_they_are_added(copy: Path) -> None:
    added = "".join(f"x{place + 1} = Unsqueeze (x{place}, axes) " for place in range(5))
    operations = parsed(f"{added} zero = ReduceMin (x5)")
    assert of_the_words(copy, *operations, x0=np.float32(0.5), axes=[*range(8)]) == (
        "makes Unsqueeze return more dimensions than 32, the most that are possible"
    )


def test_constants_without_their_numbers_are_refused(copy: Path) -> None:
    from onnx import TensorProto, helper

    few = helper.make_tensor("", TensorProto.FLOAT, [1], [0.5]), helper.make_tensor("", TensorProto.INT64, [1], [5])
    sparse = helper.make_sparse_tensor(*few, [2**28])
    operation = helper.make_node("Constant", [], ["zero"], sparse_value=sparse)
    assert of_the_words(copy, operation) == (
        "holds the operation Constant with an unusual constant, which is not allowed"
    )

    def add(graph) -> None:
        graph.initializer.add(name="empty", data_type=TensorProto.FLOAT, dims=[2**28])

    changed(copy, "cnn", add)
    expected = f"{copy}/cnn.onnx: is damaged: holds a tensor without all its numbers; export the model again"
    assert complaint(copy) == expected


def test_sizes_made_of_sizes_are_possible(copy: Path) -> None:
    """Cells are counted, and tensors get the shapes of others, of which some sides are replaced."""
    operations = """
        shape = Shape (video) n = Gather (shape, at) sides = Concat <axis = 0> (n, two) pairs = Cast <to = 7> (sides)
        count = Squeeze (n) counted = Range (from, count, step) numbers = Cast <to = 1> (counted)
        x = Expand (half, pairs) y = Reshape (x, minus) z = Slice (y, from_, n)
        most = ReduceMax <keepdims = 0> (numbers) least = ReduceMin <keepdims = 0> (z) zero = Mul (most, least)
    """

    def change(graph) -> None:
        from onnx import numpy_helper

        constants = {"at": [0], "two": [2], "from": 0, "step": 1, "minus": [-1], "from_": [0], "half": np.float32(0.5)}
        graph.initializer.extend(numpy_helper.from_array(np.array(value), name) for name, value in constants.items())
        graph.node.extend(parsed(operations))

    changed(copy, "decoder", change)
    assert Runtime(copy).graphs["decoder"].compiled("f32")


def test_a_loop_is_refused(copy: Path) -> None:
    from onnx import TensorProto, helper

    def info(name, kind, shape):
        return helper.make_tensor_value_info(name, kind, shape)

    step = helper.make_graph(
        [helper.make_node("Identity", ["goes on"], ["again"]), helper.make_node("Sin", ["x"], ["y"])],
        "step",
        [info("i", TensorProto.INT64, []), info("goes on", TensorProto.BOOL, []), info("x", TensorProto.FLOAT, [])],
        [info("again", TensorProto.BOOL, []), info("y", TensorProto.FLOAT, [])],
    )
    loop = helper.make_node("Loop", ["times", "yes", "half"], ["zero"], body=step)
    complaint = of_the_words(copy, loop, times=2**62, yes=True, half=np.float32(0.5))
    assert complaint == "holds the operation Loop, whose work has no bound"


def test_a_graph_that_multiplies_for_hours_is_refused(copy: Path) -> None:
    from onnx import helper

    make = helper.make_node
    nodes = [make("ConstantOfShape", ["square"], ["x0"])]
    nodes += [make("MatMul", [f"x{place}", "x0"], [f"x{place + 1}"]) for place in range(3)]
    nodes += [make("ReduceMean", ["x3"], ["zero"], keepdims=0)]
    complaint = of_the_words(copy, *nodes, square=[8000, 8000])
    assert re.match(r"computes 512,000,\d+,\d+ products for a single frame or sentence: at most 274,877,", complaint)


def test_multiplications_are_counted() -> None:
    """By hand: outputs, each with the numbers of the kernel and the channels it is made of."""
    from openvino import opset13 as ops

    from picknet.model.graphs import _num_products

    def of(*shape: int):
        return ops.parameter(shape, np.float32)

    pads = ([2, 2], [0, 0], [0, 0], [1, 1])  # strides, pads, dilations
    assert _num_products(ops.matmul(of(5, 3, 4), of(4, 7), False, False)) == 5 * 3 * 7 * 4
    assert _num_products(ops.matmul(of(4, 3), of(4, 7), True, False)) == 3 * 7 * 4
    assert _num_products(ops.convolution(of(1, 6, 8, 8), of(10, 6, 2, 2), *pads)) == 10 * 4 * 4 * 6 * 2 * 2
    assert _num_products(ops.group_convolution(of(1, 6, 8, 8), of(3, 5, 2, 2, 2), *pads)) == 15 * 4 * 4 * 2 * 2 * 2
    transposed = ops.convolution_backprop_data(of(1, 6, 8, 8), of(6, 10, 2, 2), [2, 2])
    assert _num_products(transposed) == 6 * 8 * 8 * 10 * 2 * 2
    pooled = ops.avg_pool(of(1, 6, 8, 8), [2, 2], [0, 0], [0, 0], [4, 4], True)
    assert _num_products(pooled) == 6 * 3 * 3 * 4 * 4
    assert _num_products(ops.relu(of(5))) == 0


def test_a_range_of_cells_has_a_bound() -> None:
    """The decoder of p-rnn counts the cells, and OpenVINO knows no bounds for the size of a range."""
    import openvino as ov
    from openvino import opset13 as ops

    from picknet.model.graphs import _bound_ranges

    keys = ops.parameter(ov.PartialShape([1, -1]), np.float32)
    size = ops.squeeze(ops.gather(ops.shape_of(keys), np.array([1]), np.array(0)), np.array([0]))
    count = ops.range(np.array(0), size, np.array(1), "i64")
    model = ov.Model([count], [keys])
    _bound_ranges(model)
    model.reshape(ov.PartialShape([1, ov.Dimension(1, 480)]))
    assert model.outputs[0].partial_shape == ov.PartialShape([ov.Dimension(1, 480)])


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


def test_a_graph_that_cannot_be_computed_for_several_sentences_is_an_error(copy: Path) -> None:
    """Its sizes fit one sentence, and are not known before there are more."""
    from onnx import helper, numpy_helper

    def for_one_sentence(graph) -> None:
        result = "log_probabilities"
        for node in graph.node:
            node.output[:] = ["before" if name == result else name for name in node.output]
        graph.initializer.append(numpy_helper.from_array(np.array([1, 1]), "one by one"))
        graph.node.append(helper.make_node("Reshape", ["words", "one by one"], ["word"]))
        graph.node.append(helper.make_node("Cast", ["word"], ["number"], to=1))
        graph.node.append(helper.make_node("Add", ["before", "number"], [result]))

    changed(copy, "decoder", for_one_sentence)
    runtime = Runtime(copy)
    side = runtime.config.model.image_size
    memory = runtime.encode(runtime.features(np.zeros((1, side, side, 3), np.uint8)), runtime.start())
    runtime.decode(np.zeros(1, np.int64), memory, runtime.start_sentence())
    with pytest.raises(BadModel) as caught:
        runtime.decode(np.zeros(2, np.int64), memory, runtime.start_sentence(2))
    assert re.match(rf"{copy}/decoder.onnx: cannot be computed \([^\n]+\); export the model again$", str(caught.value))


def test_a_graph_that_computes_more_sentences_than_were_asked_for_is_an_error(copy: Path) -> None:
    from onnx import helper

    def doubled(graph) -> None:
        result = "next_state"
        for node in graph.node:
            node.output[:] = ["before" if name == result else name for name in node.output]
            node.input[:] = ["before" if name == result else name for name in node.input]
        graph.node.append(helper.make_node("Concat", ["before", "before"], [result], axis=0))

    changed(copy, "decoder", doubled)
    runtime = Runtime(copy)
    side = runtime.config.model.image_size
    memory = runtime.encode(runtime.features(np.zeros((1, side, side, 3), np.uint8)), runtime.start())
    with pytest.raises(BadModel) as caught:
        runtime.decode(np.zeros(3, np.int64), memory, runtime.start_sentence(3))
    expected = f"{copy}/decoder.onnx: next_state has 6 rows for 3: damaged; export the model again"
    assert str(caught.value) == expected


def test_the_references_are_those_that_onnx_reads(model_folder: Path) -> None:
    import onnx

    for name in ("cnn", "policy", "encoder", "decoder"):
        path = model_folder / f"{name}.onnx"
        found = read_graph(path.read_bytes()).references
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
            read_graph(content)


OPERATION = b"\x0a\x01x\x12\x01y\x22\x04Loop"
"""y = Loop (x), the fields of a node."""


@pytest.mark.parametrize(
    "hidden",
    [
        OPERATION + b"\x25Relu",  # a kind in four bytes, not after its length
        OPERATION + b"\x21Softsign",  # in eight bytes
        b"\x0a\x01x\x12\x01y\x22\x04Relu" + b"\xa2\x80\x80\x80\x10\x04Loop",  # a number of more than 32 bits
        OPERATION + b"\x02\x04Relu",  # a field without a number
    ],
)
def test_fields_that_other_readers_skip_or_read_otherwise_are_refused(hidden: bytes) -> None:
    graph = _message(1 << 3 | 2, OPERATION)
    assert [node.kind for node in read_graph(_message(7 << 3 | 2, graph)).nodes] == ["Loop"]
    with pytest.raises(BadFile, match="is damaged or not an ONNX graph"):
        read_graph(_message(7 << 3 | 2, _message(1 << 3 | 2, hidden)))


def test_a_tensor_of_millions_of_dimensions_is_refused_before_they_are_in_memory() -> None:
    many = _message(1 << 3 | 2, b"\x01" * 10_000_000)
    start = time.perf_counter()
    with pytest.raises(BadFile, match="holds a tensor of more dimensions than 32"):
        read_graph(_message(7 << 3 | 2, _message(5 << 3 | 2, many)))
    assert time.perf_counter() - start < 2


def test_a_graph_of_too_many_fields_is_refused_before_they_are_in_memory() -> None:
    assert read_graph(b"\x3a\x00" + b"\x42\x00" * (MAX_FIELDS - 1)).references == []
    for content in (b"\x3a\x00" + b"\x42\x00" * MAX_FIELDS, b"\x3a\x80\x80\x80\x01" + b"\x0a\x00" * 2**20):
        with pytest.raises(BadFile, match=r"^holds more than 65,536 fields in one message$"):
            read_graph(content)


def test_a_reference_in_a_node_is_refused(copy: Path) -> None:
    import onnx

    def hide(graph) -> None:
        tensor = onnx.TensorProto(dims=[1], data_type=1, data_location=onnx.TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value="weights.safetensors")
        graph.node.append(onnx.helper.make_node("Constant", [], ["hidden"], value=tensor))

    changed(copy, "encoder", hide)
    assert "encoder.onnx: refers to weights in an unusual way, which is not allowed" in complaint(copy)


def test_a_whole_folder_is_checked_in_little_time(model_folder: Path) -> None:
    start = time.perf_counter()
    ModelFolder(model_folder)
    assert time.perf_counter() - start < 1
