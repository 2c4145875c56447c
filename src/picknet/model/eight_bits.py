"""Weights in 8 bits, for processors that compute in 32.

For each pick the encoder, and for each word the decoder, multiplies a few rows by all of its weights, 13 and 29 MB in
32 bits: most of the time goes into reading them. In 8 bits they are a quarter of that.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

MIN_WEIGHTS = 2**16
"""A smaller matrix stays as it is."""
HIGHEST = 127


def in_eight_bits(model: Any, operations: Any) -> Any:
    """A copy of an OpenVINO model whose large matrices are whole numbers from -127 to 127, with a scale for each row.

    operations: OpenVINO's, by which the copy is built. A matrix stays in 8 bits in memory: OpenVINO multiplies by whole
    numbers where it finds this pattern.
    """
    model = model.clone()
    for product in model.get_ordered_ops():
        if product.get_type_name() == "MatMul" and (weights := _weights(product)) is not None:
            scales = np.abs(weights).max(axis=1, keepdims=True) / HIGHEST
            scales[scales == 0] = 1.0
            whole = operations.convert(operations.constant(np.rint(weights / scales).astype(np.int8)), "f32")
            scaled = operations.multiply(whole, operations.constant(scales))
            is_transposed = product.get_attributes()["transpose_a"]
            product.output(0).replace(
                operations.matmul(product.input_value(0), scaled, is_transposed, True).output(0)
            )
    return model


def _weights(product: Any) -> Array | None:
    """The matrix that rows are multiplied by, (to, from); None where it is small, or no constant."""
    if {product.get_input_element_type(port).get_type_name() for port in range(2)} != {"f32"}:
        return None
    node, to_first = product.input_value(1).get_node(), product.get_attributes()["transpose_b"]
    while (kind := node.get_type_name()) in ("Convert", "Transpose"):
        if kind == "Transpose":
            if not _swaps(node):
                return None
            to_first = not to_first
        node = node.input_value(0).get_node()
        if node.get_output_element_type(0).get_type_name() not in ("f16", "f32"):
            return None
    if kind != "Constant" or len(node.shape) != 2 or np.prod(node.shape) < MIN_WEIGHTS:
        return None
    weights = node.data.astype(np.float32)
    return weights if to_first else np.ascontiguousarray(weights.T)


def _swaps(transposition: Any) -> bool:
    """Whether it makes columns of rows, and does nothing else."""
    order = transposition.input_value(1).get_node()
    return bool(order.get_type_name() == "Constant" and list(order.data) == [1, 0])
