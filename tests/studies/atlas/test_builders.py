"""Every builder makes a folder that opens with the weights of its package."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.measurement.measure_model import measure
from anisoscope.models.open import open_model
from anisoscope.studies.atlas.atlas_runs import rows_at_half_depth
from anisoscope.studies.atlas.builders import convert_pickle, join_parts
from anisoscope.studies.atlas.formula_images import draw_formulas
from anisoscope.studies.atlas.onnx_bert import onnx_weights
from anisoscope.studies.atlas.own_folders import build_efficientnet, build_formula_reader, build_sceptr, build_tabpfn
from anisoscope.studies.atlas.own_modules import make_module
from anisoscope.studies.atlas.receptor_words import RESIDUES, receptor_vectors, receptor_vocabulary, receptor_words
from anisoscope.studies.atlas.tfjs_resnet import keras_weights, read_tfjs
from anisoscope.studies.atlas.untrained_twin import untrained_twin
from anisoscope.studies.atlas.whisper_weights import build_whisper

hf: Any = transformers
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "A", "C", "D"]
ROLES = {"unk_token": "[UNK]", "pad_token": "[PAD]", "mask_token": "[MASK]"}


def bert_files(folder: Path) -> tuple[list[Path], Any]:
    """The files of an old package: config.json, pickled weights with old names, vocab.txt."""
    config = hf.BertConfig(
        vocab_size=len(WORDS), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    model = hf.BertForMaskedLM(config).eval()
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): x for name, x in model.state_dict().items()}
    torch.save(old, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    return sorted(folder.iterdir()), model


def test_pickled_weights_with_old_names_become_a_folder(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "out").mkdir()
    files, model = bert_files(tmp_path / "files")
    options: dict[str, Any] = {"pattern": r"\[[A-Z]+\]|[A-Z]", "special_tokens": ROLES}
    convert_pickle(files, tmp_path / "out", architecture="BertForMaskedLM", **options)
    opened = open_model(tmp_path / "out", head=True)
    assert opened.processor is not None
    ids = opened.processor("AC[MASK]D", return_tensors="pt")["input_ids"]
    assert ids.tolist() == [[2, 5, 6, 4, 7, 3]]
    with torch.no_grad():
        assert torch.equal(opened.model(input_ids=ids).logits, model(input_ids=ids).logits)


def test_a_package_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "out").mkdir()
    files, model = bert_files(tmp_path / "files")
    torch.save(dict(list(model.state_dict().items())[:5]), tmp_path / "files" / "pytorch_model.bin")
    with pytest.raises(InputError, match="has no weights"):
        convert_pickle(files, tmp_path / "out", architecture="BertForMaskedLM", pattern="[A-Z]", special_tokens=ROLES)


def test_parts_are_joined_and_a_zip_is_unpacked(tmp_path: Path) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("model/config.json", "{}")
        archive.writestr("model/README.md", "no")
    parts = [tmp_path / "a.001", tmp_path / "a.002"]
    half = len(data.getvalue()) // 2
    parts[0].write_bytes(data.getvalue()[:half])
    parts[1].write_bytes(data.getvalue()[half:])
    (tmp_path / "out").mkdir()
    join_parts(parts, tmp_path / "out", name_of_file="a.zip", members=["*/config.json"])
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["config.json"]


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(number: int, content: bytes | int) -> bytes:
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def onnx_tensor(name: str, array: np.ndarray) -> bytes:
    shape = b"".join(field(1, size) for size in array.shape)
    return shape + field(2, 1) + field(8, name.encode()) + field(9, array.astype("<f4").tobytes())


def test_onnx_matrices_are_named_after_the_node_that_uses_them() -> None:
    bias, matrix = np.arange(3.0), np.arange(6.0).reshape(2, 3)
    node = field(1, b"x") + field(1, b"onnx::MatMul_7") + field(3, b"/encoder/layer.0/output/dense/MatMul")
    graph = field(1, node + field(4, b"MatMul"))
    graph += field(5, onnx_tensor("encoder.layer.0.output.dense.bias", bias))
    graph += field(5, onnx_tensor("onnx::MatMul_7", matrix))
    weights = onnx_weights(field(1, 8) + field(7, graph))
    assert torch.equal(weights["encoder.layer.0.output.dense.bias"], torch.arange(3.0))
    assert torch.equal(weights["encoder.layer.0.output.dense.weight"], torch.tensor(matrix.T, dtype=torch.float32))


def test_damaged_onnx_is_explained() -> None:
    with pytest.raises(InputError, match="damaged"):
        onnx_weights(varint(7 << 3 | 2) + varint(90) + b"short")


def test_whisper_gets_the_names_of_transformers(tmp_path: Path) -> None:
    config = hf.WhisperConfig(
        vocab_size=60, num_mel_bins=8, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=20,
        max_target_positions=12, pad_token_id=1, bos_token_id=1, eos_token_id=1,
    )  # fmt: skip
    model = hf.WhisperModel(config)
    back = [
        ("layers", "blocks"), ("encoder_attn_layer_norm", "cross_attn_ln"), ("self_attn_layer_norm", "attn_ln"),
        ("encoder_attn.q_proj", "cross_attn.query"), ("encoder_attn.k_proj", "cross_attn.key"),
        ("encoder_attn.v_proj", "cross_attn.value"), ("encoder_attn.out_proj", "cross_attn.out"),
        ("self_attn.q_proj", "attn.query"), ("self_attn.k_proj", "attn.key"), ("self_attn.v_proj", "attn.value"),
        ("self_attn.out_proj", "attn.out"), ("final_layer_norm", "mlp_ln"), ("fc1", "mlp.0"), ("fc2", "mlp.2"),
        ("encoder.layer_norm", "encoder.ln_post"), ("decoder.layer_norm", "decoder.ln"),
        ("embed_tokens", "token_embedding"), ("embed_positions.weight", "positional_embedding"),
    ]  # fmt: skip
    stored = {}
    for name, tensor in model.state_dict().items():
        for new, old in back:
            name = name.replace(new, old)
        stored[name] = tensor.half()
    sizes = {
        "n_vocab": 60, "n_mels": 8, "n_audio_state": 16, "n_audio_layer": 1, "n_audio_head": 2, "n_text_layer": 1,
        "n_text_head": 2, "n_text_state": 16, "n_audio_ctx": 20, "n_text_ctx": 12,
    }  # fmt: skip
    torch.save({"dims": sizes, "model_state_dict": stored}, tmp_path / "tiny.pt")
    (tmp_path / "out").mkdir()
    build_whisper([tmp_path / "tiny.pt"], tmp_path / "out", start=2, end=1)
    opened = open_model(tmp_path / "out")
    for name, tensor in opened.model.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name].half().float()), name


def test_keras_convolutions_are_turned_and_biases_move_into_the_norm(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "conv1/kernel": rng.standard_normal((7, 7, 3, 4)),
        "conv1/bias": rng.standard_normal(4),
        "bn_conv1/gamma": rng.standard_normal(4),
        "bn_conv1/beta": rng.standard_normal(4),
        "bn_conv1/moving_mean": rng.standard_normal(4),
        "bn_conv1/moving_variance": rng.random(4),
    }
    weights = [{"name": name, "shape": list(x.shape), "dtype": "float32"} for name, x in arrays.items()]
    (tmp_path / "model.json").write_text(json.dumps({"weightsManifest": [{"paths": ["s1", "s2"], "weights": weights}]}))
    data = b"".join(x.astype("<f4").tobytes() for x in arrays.values())
    (tmp_path / "s1").write_bytes(data[:100])
    (tmp_path / "s2").write_bytes(data[100:])
    found = keras_weights(read_tfjs({file.name: file for file in tmp_path.iterdir()}))
    norm = torch.nn.BatchNorm2d(4)
    prefix = "resnet.embedder.embedder"
    state = {k.removeprefix(f"{prefix}.normalization."): x for k, x in found.items() if "normalization" in k}
    norm.load_state_dict(state, strict=False)
    image = torch.randn(1, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    result = norm.eval()(torch.nn.functional.conv2d(image, found[f"{prefix}.convolution.weight"]))
    keras = {name: torch.tensor(x, dtype=torch.float32) for name, x in arrays.items()}
    blue_first = image.flip(1)
    plain = torch.nn.functional.conv2d(blue_first, keras["conv1/kernel"].permute(3, 2, 0, 1), keras["conv1/bias"])
    mean, variance, gamma, beta = (keras[f"bn_conv1/{n}"][:, None, None] for n in (
        "moving_mean", "moving_variance", "gamma", "beta",
    ))  # fmt: skip
    expected = (plain - mean) / (variance + 1e-3).sqrt() * gamma + beta
    torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-3)


def receptor_state(features: int) -> dict[str, Tensor]:
    """The state dict of a SCEPTR variant of width 16 with one layer."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 8, 64)
    stack = "_self_attention_stack._standard_stack._self_attention_stack.layers.0."
    head = {"weight": torch.randn(20, 16), "bias": torch.randn(20)}
    return {
        "_self_attention_stack._initial_projector.weight": torch.randn(16, features),
        **{f"_mlm_token_prediction_projector.projector.{name}": x for name, x in head.items()},
        **{stack + name: x for name, x in layer.state_dict().items()},
    }


def test_words_of_a_receptor_have_the_published_vectors() -> None:
    words = receptor_vocabulary("simple")
    vectors = dict(zip(words, receptor_vectors(words, "simple", {}), strict=True))
    residue, relative, loop = vectors["C.3.5.2"][:22], vectors["C.3.5.2"][22], vectors["C.3.5.2"][23:]
    assert residue.nonzero().tolist() == [[2 + RESIDUES.index("C")]]  # after mask and [CLS]
    assert float(relative) == 0.5  # third of five
    assert loop.tolist() == [0, 0, 0, 0, 1, 0]  # the second loop of the beta chain
    assert float(vectors["A.1.1.3"][22]) == 0.5  # alone in its loop
    assert vectors["?.2.3.1"][:22].nonzero().tolist() == [[0]]
    assert vectors["[PAD]"].abs().sum() == 0


def test_a_receptor_encoder_opens_with_its_words(tmp_path: Path) -> None:
    torch.save(receptor_state(29), tmp_path / "state_dict.pt")
    (tmp_path / "sceptr").mkdir()
    build_sceptr([tmp_path / "state_dict.pt"], tmp_path / "sceptr", embedder="simple")
    opened = open_model(tmp_path / "sceptr")
    assert opened.processor is not None
    ids = opened.processor(receptor_words({1: "SG", 3: "CAS"}), return_tensors="pt")["input_ids"]
    assert ids.shape == (1, 6)
    assert 1 not in ids  # every word is known
    assert opened.model(ids).shape == (1, 6, 20)
    twin = open_model(untrained_twin(tmp_path / "sceptr")).model.state_dict()
    trained = opened.model.state_dict()
    assert torch.equal(twin["words.weight"], trained["words.weight"])
    assert not torch.equal(twin["head.weight"], trained["head.weight"])


def test_a_model_of_tables_does_not_see_hidden_rows(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"features": 3, "width": 8, "layers": 2, "heads": 2, "hidden": 16, "classes": 4}
    names = {"rows": "encoder", "labels": "y_encoder", "head": "decoder", "encoder": "transformer_encoder"}
    stored = {}
    for name, tensor in make_module("tables", sizes).state_dict().items():
        first, rest = name.split(".", 1)
        stored[f"module.{names[first]}.{rest}"] = tensor
    torch.save((stored, None, {}), tmp_path / "tab.cpkt")
    (tmp_path / "out").mkdir()
    build_tabpfn([tmp_path / "tab.cpkt"], tmp_path / "out", heads=2)
    model = open_model(tmp_path / "out").model
    table, labels = torch.randn(1, 5, 3), torch.tensor([[0, 1, 2, -1, -1]])
    before = model(table, labels)
    table[0, 4] += 1  # an unlabelled row
    after = model(table, labels)
    torch.testing.assert_close(before[0, :4], after[0, :4])
    assert not torch.allclose(before[0, 4], after[0, 4])


def test_lite_convolutions_and_patches_open_through_the_door(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = make_module("lite-convolutions", {"classes": 5})
    parts = {"expand.0": "_expand_conv", "expand.1": "_bn0", "depth.0": "_depthwise_conv", "depth.1": "_bn1",
             "project.0": "_project_conv", "project.1": "_bn2"}  # fmt: skip
    outer = {"stem.0": "_conv_stem", "stem.1": "_bn0", "last.0": "_conv_head", "last.1": "_bn1", "head": "_fc"}
    stored = {}
    for name, tensor in net.state_dict().items():
        path = name.split(".")
        if path[0] == "blocks":
            stored[f"_blocks.{path[1]}.{parts['.'.join(path[2:4])]}.{path[4]}"] = tensor
        else:
            stored[f"{outer['.'.join(path[:-1])]}.{path[-1]}"] = tensor
    torch.save(stored, tmp_path / "lite.pth")
    (tmp_path / "lite").mkdir()
    build_efficientnet([tmp_path / "lite.pth"], tmp_path / "lite")
    opened = open_model(tmp_path / "lite")
    pixels = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(opened.model(pixels), net.eval()(pixels))


def formula_reader_files(folder: Path) -> tuple[list[Path], Any]:
    """The files of a tiny latex-ocr-junia, under the names of its own code."""
    sizes = {"height": 16, "breadth": 32, "patch": 8, "width": 8, "layers": 1, "heads": 2, "vocabulary": 6,
             "positions": 12}  # fmt: skip
    torch.manual_seed(0)
    model = make_module("formulas", sizes).eval()
    old = [("letter_positions", "decoder_embed.pos_emb"), ("letter_norm", "decoder_embed.norm"),
           ("letters", "decoder_embed.token_emb"), ("patches.", "patch_embed.proj."),
           ("first_norm", "patch_embed.norm"), ("encoder.norm", "encoder_norm"), ("decoder.norm", "decoder_norm"),
           ("encoder.layers", "encoder_blocks"), ("decoder.layers", "decoder_blocks")]  # fmt: skip
    reading = [("self_attn", "attn"), ("linear1", "mlp.0"), ("linear2", "mlp.3")]
    writing = [("norm1", "self_norm"), ("norm2", "cross_norm"), ("norm3", "ffn_norm"),
               ("multihead_attn", "cross_attn"), ("linear1", "ffn.0"), ("linear2", "ffn.3")]  # fmt: skip
    stored = {}
    for name, tensor in model.state_dict().items():
        for new, before in [*old, *(writing if name.startswith("decoder") else reading)]:
            name = name.replace(new, before)
        stored[{"positions": "patch_embed.pos_emb"}.get(name, re.sub("^head", "lm_head", name))] = tensor
    torch.save({"model_state_dict": stored}, folder / "best.pt")
    config = {"image_height": 16, "image_width": 32, "patch_size": 8, "d_model": 8, "num_encoder_layers": 1,
              "num_heads": 2, "vocab_size": 6, "max_length": 12}  # fmt: skip
    (folder / "model_config.json").write_text(json.dumps(config))
    letters = {"<pad>": 0, "<bos>": 1, "<eos>": 2, "a": 3, "{": 5, "b": 4}
    (folder / "tokenizer.json").write_text(json.dumps({"token_to_id": letters}))
    return sorted(folder.iterdir()), model


def test_a_reader_of_formulas_keeps_its_weights_and_letters(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "out").mkdir()
    files, model = formula_reader_files(tmp_path / "files")
    build_formula_reader(files, tmp_path / "out")
    opened = open_model(tmp_path / "out").model
    pixels, ids = torch.randn(1, 1, 16, 32), torch.tensor([[1, 3, 4]])
    with torch.no_grad():
        torch.testing.assert_close(opened(pixels), model(pixels))
        torch.testing.assert_close(opened(pixels, ids), model(pixels, ids))
        assert torch.equal(opened(pixels, ids)[:, :2], opened(pixels, ids[:, :2]))  # later letters are not seen
    assert json.loads((tmp_path / "out" / "letters.json").read_text()) == ["<pad>", "<bos>", "<eos>", "a", "b", "{"]


def test_a_reader_of_formulas_is_measured_on_its_encoder(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "images").mkdir()
    files, _ = formula_reader_files(tmp_path / "files")
    build_formula_reader(files, tmp_path / "out")
    draw_formulas([], tmp_path / "images", count=3, height=16, breadth=32)
    run = measure(tmp_path / "out", images=tmp_path / "images", metrics=["participation_ratio"], sites=["resid"])
    assert {record.site for record in run.records()} == {"resid.0"}
    assert rows_at_half_depth(run) == 3 * 8  # patches of 8 x 8 pixels


def test_a_folder_with_absurd_sizes_is_refused_before_memory_is_allocated(tmp_path: Path) -> None:
    torch.save(receptor_state(29), tmp_path / "state_dict.pt")
    (tmp_path / "sceptr").mkdir()
    build_sceptr([tmp_path / "state_dict.pt"], tmp_path / "sceptr", embedder="simple")
    config = tmp_path / "sceptr" / "config.json"
    values = json.loads(config.read_text())
    values["sizes"]["vocabulary"] = 1 << 24
    config.write_text(json.dumps(values))
    with pytest.raises(InputError, match="stores"):
        open_model(tmp_path / "sceptr")
