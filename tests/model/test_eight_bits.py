"""Weights in 8 bits: what is replaced, and how far off products are."""

from typing import Any

import numpy as np
import openvino
import pytest

from picknet.model import graphs
from picknet.model.eight_bits import HIGHEST, in_eight_bits
from picknet.model.runtime import Runtime

SIZES = (300, 256)
"""To, from."""
operations = openvino.opset13


def model_of(weights: np.ndarray, *, turned: bool, half: bool) -> Any:
    """x -> x · weightsᵀ. turned: the matrix is stored the other way round, behind a transposition."""
    constant = operations.constant(weights.astype(np.float16 if half else np.float32))
    stored = operations.convert(constant, "f32") if half else constant
    rows = operations.parameter([-1, weights.shape[1]], np.float32, name="rows")
    if turned:
        return openvino.Model([operations.matmul(rows, operations.transpose(stored, [1, 0]), False, False)], [rows])
    return openvino.Model([operations.matmul(rows, stored, False, True)], [rows])


def product(model: Any, rows: np.ndarray) -> np.ndarray:
    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.array(compiled(rows)[0])


def whole_matrices(model: Any) -> list[np.ndarray]:
    constants = [operation for operation in model.get_ops() if operation.get_type_name() == "Constant"]
    return [one.data for one in constants if one.data.dtype == np.int8]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_a_large_matrix_becomes_whole_numbers_with_a_scale_for_each_row(turned: bool, half: bool):
    generator = np.random.default_rng(0)
    weights = (generator.normal(size=SIZES) * np.linspace(0.1, 10, SIZES[0])[:, None]).astype(np.float16)
    weights[7] = 0.0
    weights[:, 0][weights[:, 0] == 0] = 1.0
    rows = generator.normal(size=(5, SIZES[1])).astype(np.float32)
    model = model_of(weights, turned=turned, half=half)
    changed = in_eight_bits(model, operations)
    assert not whole_matrices(model)  # only the copy is changed
    (whole,) = whole_matrices(changed)
    assert whole.shape == SIZES
    assert (np.abs(whole).max(axis=1)[np.arange(SIZES[0]) != 7] == HIGHEST).all()
    exact, found = rows @ weights.astype(np.float32).T, product(changed, rows)
    # Of a row's largest weight, a rounding error is at most 1/254, and so is that of what it is multiplied by.
    allowed = np.abs(weights.astype(np.float32)).max(axis=1) / HIGHEST * np.sqrt(SIZES[1]) * 1.5
    assert (np.abs(found - exact) <= allowed + 1e-6).all()
    assert np.linalg.norm(found - exact) / np.linalg.norm(exact) < 0.02


def test_a_small_matrix_stays_as_it_is():
    weights = np.random.default_rng(0).normal(size=(255, 256)).astype(np.float32)
    assert not whole_matrices(in_eight_bits(model_of(weights, turned=False, half=False), operations))


@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_weights_that_are_not_multiplied_in_32_bits_stay_as_they_are(kind: type):
    rows = operations.parameter([-1, 256], kind, name="rows")
    stored = operations.constant(np.ones(SIZES, kind))
    model = openvino.Model([operations.matmul(rows, stored, False, True)], [rows])
    assert not whole_matrices(in_eight_bits(model, operations))


def test_a_transposition_that_changes_nothing_is_not_taken_for_one():
    rows = operations.parameter([-1, 256], np.float32, name="rows")
    stored = operations.transpose(operations.constant(np.ones((256, 256), np.float32)), [0, 1])
    model = openvino.Model([operations.matmul(rows, stored, False, True)], [rows])
    assert not whole_matrices(in_eight_bits(model, operations))


def test_products_of_what_is_computed_stay_as_they_are():
    left, right = (operations.parameter([300, 300], np.float32, name=name) for name in ("left", "right"))
    model = openvino.Model([operations.matmul(left, right, False, False)], [left, right])
    values = np.random.default_rng(0).normal(size=(300, 300)).astype(np.float32)
    compiled = openvino.Core().compile_model(
        in_eight_bits(model, operations), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    np.testing.assert_allclose(compiled([values, values])[0], values @ values, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("has_f16", "precision", "expected"), [
    (False, "f16", ["encoder", "decoder"]),
    (True, "f16", []),
    (False, "f32", []),
])  # fmt: skip
def test_encoder_and_decoder_of_a_processor_without_16_bits_have_weights_in_8(
    model_folder, monkeypatch: pytest.MonkeyPatch, has_f16: bool, precision: str, expected: list[str]
):
    monkeypatch.setenv("PICKNET_CACHE", "")  # a cached graph is not made again
    changed = []

    def listening(model: Any, given: Any) -> Any:
        changed.append(next(name for name in runtime.graphs if runtime.graphs[name].model is model))
        return in_eight_bits(model, given)

    monkeypatch.setattr(graphs, "in_eight_bits", listening)
    monkeypatch.setattr(graphs, "_has_f16", lambda: has_f16)
    runtime = Runtime(model_folder)
    for graph in runtime.graphs.values():
        graph.compiled(precision)
    assert changed == expected
