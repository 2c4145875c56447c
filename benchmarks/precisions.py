"""Time and error of the CNN and the decoder in 32, 16 and 8 bits.

    python benchmarks/precisions.py [--repeats 15]

The CNN on four frames one by one, and a decoder step for a beam of five. 16 bits: OpenVINO computes everything in them.
8 bits: the CNN is quantised by NNCF, if installed (`pip install nncf`); the decoder has 8-bit weights with a scale for
each output, and dynamic activations. Errors are the relative error of the features and the greatest error of the
log-probabilities of likely words.
"""

import contextlib
import shlex
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from timing import ROOT, alternate, parser, ratio, save, times

import picknet
from picknet.model.eight_bits import in_eight_bits
from picknet.model.runtime import EncoderState, Runtime
from picknet.video.file import Video

SAMPLE = ROOT / "samples" / "cockatoo.mp4"
NUM_LIKELY = 50
WHOLE_ROWS = str(2**64 - 1)
"""Group size of quantised activations: OpenVINO's ARM kernels support no smaller one."""
Outputs = Callable[[], list[np.ndarray]]


def compiled(graph: ov.Model, precision: str) -> Any:
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision}
    settings["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = WHOLE_ROWS
    return ov.Core().compile_model(graph, "CPU", settings).create_infer_request()


def quantised_cnn(graph: ov.Model, frames: list[np.ndarray]) -> ov.Model:
    import nncf

    return nncf.quantize(graph.clone(), nncf.Dataset(frames), preset=nncf.QuantizationPreset.MIXED)


def cnns(runtime: Runtime, pixels: list[np.ndarray], calibration: list[np.ndarray]) -> dict[str, Outputs]:
    graph = runtime.graphs["cnn"].model
    requests = {"32": compiled(graph, "f32"), "16": compiled(graph, "f16")}
    with contextlib.suppress(ImportError):
        requests["8"] = compiled(quantised_cnn(graph, calibration), "f32")

    def run(request: Any) -> list[np.ndarray]:
        return [request.infer({"pixels": one})["features"] for one in pixels]

    return {bits: partial(run, request) for bits, request in requests.items()}


def decoders(runtime: Runtime, memory: EncoderState) -> dict[str, Outputs]:
    graph = runtime.graphs["decoder"].model
    requests = {
        "32": compiled(graph, "f32"),
        "16": compiled(graph, "f16"),
        "8": compiled(in_eight_bits(graph, ops), "f32"),
    }
    given = {
        "words": np.arange(10, 15),
        "video": memory.h,
        "keys": memory.keys,
        "values": memory.values,
        "state": np.repeat(memory.h, 5, axis=0),
    }
    return {
        bits: lambda request=request: [request.infer(given)["log_probabilities"]] for bits, request in requests.items()
    }


def feature_error(found: list[np.ndarray], exact: list[np.ndarray]) -> str:
    error = np.linalg.norm(np.concatenate(found) - np.concatenate(exact)) / np.linalg.norm(np.concatenate(exact))
    return f"{error:.1%}"


def word_error(found: list[np.ndarray], exact: list[np.ndarray]) -> str:
    likely = np.argsort(-exact[0], axis=1)[:, :NUM_LIKELY]
    return f"{np.abs(np.take_along_axis(found[0] - exact[0], likely, axis=1)).max():.3f}"


def main() -> None:
    arguments = parser(__doc__, repeats=15).parse_args()
    captioner = picknet.load()
    runtime, size = captioner.runtime, captioner.config.model.image_size
    with Video(SAMPLE) as video:
        frames = [frame.pixels(size)[None] for frame in video.sample_evenly(count=60)]
    memory = runtime.start()
    for pixels in frames[4::15]:
        memory = runtime.encode(runtime.features(pixels), memory)
    found = []
    for name, things, error in (
        ("CNN, four frames", cnns(runtime, frames[4::15], frames), feature_error),
        ("decoder, a step of a beam of 5", decoders(runtime, memory), word_error),
    ):
        exact = [array.copy() for array in things["32"]()]
        rounds = alternate(things, repeats=arguments.repeats)
        for bits, measured in times(rounds).items():
            off = "–" if bits == "32" else error(things[bits](), exact)
            found.append({"graph": name, "bits": bits, **measured, "ratio": ratio(rounds, bits, "32"), "off by": off})
    save("precisions", {"graphs": found}, f"python {shlex.join(sys.argv)}")


if __name__ == "__main__":
    main()
