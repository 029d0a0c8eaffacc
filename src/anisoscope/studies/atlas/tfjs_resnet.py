"""ResNet-50 with Keras weights in the format of TensorFlow.js, as a ResNet of transformers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

_BATCH_NORM = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
_MEANS = (123.68, 116.779, 103.939)  # of red, green and blue, which were subtracted in training
_EPSILON = 1e-3  # of the batch norm in Keras; torch has 1e-5


def build_tfjs_resnet(files: list[Path], folder: Path) -> None:
    """Write a Hugging Face folder from model.json, labels.json and the shards of a Keras ResNet-50.

    transformers' convolutions have no bias: each is moved into the mean of the batch norm that follows. The network was
    trained on blue, green, red; the first convolution is reversed, so that the folder takes red, green, blue.
    """
    import transformers

    named = {file.name: file for file in files}
    labels = json.loads(named["labels.json"].read_text("utf-8")) if "labels.json" in named else {}
    names = dict(enumerate(labels)) if isinstance(labels, list) else {int(k): str(v) for k, v in labels.items()}
    config = transformers.ResNetConfig(
        depths=[3, 4, 6, 3],
        downsample_in_bottleneck=True,
        num_labels=1000,  # type: ignore[call-arg]  # every configuration takes it
        id2label={index: str(name) for index, name in names.items()},
    )
    model = transformers.ResNetForImageClassification(config)
    model.load_state_dict(keras_weights(read_tfjs(named)), strict=False)
    model.save_pretrained(folder)
    transformers.ViTImageProcessor(
        size={"height": 224, "width": 224},
        image_mean=[mean / 255 for mean in _MEANS],
        image_std=[1 / 255] * 3,
    ).save_pretrained(folder)


def read_tfjs(named: dict[str, Path]) -> dict[str, Tensor]:
    """Return the float32 tensors of model.json and its shards by their names in Keras."""
    manifest = json.loads(named["model.json"].read_text("utf-8"))["weightsManifest"]
    tensors = {}
    for group in manifest:
        data = b"".join(named[Path(path).name].read_bytes() for path in group["paths"])
        offset = 0
        for weight in group["weights"]:
            count = int(np.prod(weight["shape"]))
            array = np.frombuffer(data, "<f4", count, offset).reshape(weight["shape"])
            tensors[weight["name"]] = torch.from_numpy(array.copy())
            offset += 4 * count
    return tensors


def keras_weights(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a Keras ResNet-50 under the names of transformers."""
    weights: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        layer, part = name.rsplit("/", 1)
        if layer == "fc1000":
            weights[f"classifier.1.{'weight' if part == 'kernel' else 'bias'}"] = tensor.T.contiguous()
            continue
        path = _path(layer)
        if part == "kernel":
            kernel = tensor.permute(3, 2, 0, 1)  # (out, in, height, width)
            weights[f"{path}.convolution.weight"] = (kernel.flip(1) if layer == "conv1" else kernel).contiguous()
        elif part in _BATCH_NORM:
            weights[f"{path}.normalization.{_BATCH_NORM[part]}"] = tensor.clone()
    for name, tensor in tensors.items():
        layer, part = name.rsplit("/", 1)
        if part == "bias" and layer != "fc1000":
            weights[f"{_path(layer)}.normalization.running_mean"] -= tensor
        elif part == "moving_variance":
            weights[f"{_path(layer)}.normalization.running_var"] += _EPSILON - 1e-5
    return weights


def _path(layer: str) -> str:
    """Return the path in transformers of `conv1`, `bn_conv1`, `res3a_branch2b` or `bn3a_branch1`."""
    if layer in ("conv1", "bn_conv1"):
        return "resnet.embedder.embedder"
    match = re.fullmatch(r"(?:res|bn)(\d)([a-z])_branch(\d)([a-c]?)", layer)
    if match is None:
        raise ValueError(f"{layer} is not a layer of ResNet-50")
    stage, block, branch, part = match.groups()
    path = f"resnet.encoder.stages.{int(stage) - 2}.layers.{ord(block) - ord('a')}"
    return f"{path}.shortcut" if branch == "1" else f"{path}.layer.{ord(part) - ord('a')}"
