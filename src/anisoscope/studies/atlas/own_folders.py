"""Folders of the plain modules: written from packages, and opened through the entry point `anisoscope.models`."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from anisoscope.errors import InputError
from anisoscope.models.weight_files import stored_tensors, weights_digest
from anisoscope.store.files import parse_errors, read_json
from anisoscope.studies.atlas.music_words import VOCABULARY, music_tokenizer
from anisoscope.studies.atlas.own_modules import MODALITIES, make_module
from anisoscope.studies.atlas.receptor_words import RESIDUES, receptor_tokenizer, receptor_vectors, receptor_vocabulary

MODEL_TYPE = "anisoscope-atlas"
LETTERS = "letters.json"  # what a reader of formulas writes, by number
_LARGEST = 1 << 24  # of a size in config.json
# Names of latex-ocr-junia, and those of torch's layers; in this order.
_FORMULA_NAMES = (
    (r"^patch_embed\.proj", "patches"),
    (r"^patch_embed\.pos_emb", "positions"),
    (r"^patch_embed\.norm", "first_norm"),
    (r"^(encoder|decoder)_blocks", r"\1.layers"),
    (r"^(encoder|decoder)_norm", r"\1.norm"),
    (r"^decoder_embed\.token_emb", "letters"),
    (r"^decoder_embed\.pos_emb", "letter_positions"),
    (r"^decoder_embed\.norm", "letter_norm"),
    (r"\.attn\.", ".self_attn."),
    (r"\.cross_attn\.", ".multihead_attn."),
    (r"\.self_norm\.", ".norm1."),
    (r"\.cross_norm\.", ".norm2."),
    (r"\.ffn_norm\.", ".norm3."),
    (r"\.(mlp|ffn)\.0\.", ".linear1."),
    (r"\.(mlp|ffn)\.3\.", ".linear2."),
    (r"^lm_head", "head"),
)
# Names of midisimx, whose attention and MLP are layers of their own, and those of the plain module.
_MUSIC_NAMES = {
    "0.0.gamma": "norm1.weight",
    "0.1.to_q.weight": "query.weight",
    "0.1.to_k.weight": "key.weight",
    "0.1.to_v.weight": "value.weight",
    "0.1.to_out.weight": "out.weight",
    "1.0.gamma": "norm2.weight",
    "1.1.ff.0.0": "mlp.0",
    "1.1.ff.2": "mlp.2",
}


def write_module(folder: Path, architecture: str, sizes: dict[str, Any], weights: dict[str, Tensor]) -> None:
    """Write a plain module's folder: config.json and model.safetensors.

    Raises:
        InputError: The weights do not fit.
    """
    model = make_module(architecture, sizes)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if missing or unexpected:
        raise InputError(f"The package has other weights than expected: {', '.join([*missing, *unexpected][:3])}.")
    save_module(folder, architecture, sizes, model)


def save_module(folder: Path, architecture: str, sizes: dict[str, Any], model: nn.Module) -> None:
    """Write a plain module with the weights that it has."""
    values = {"model_type": MODEL_TYPE, "architecture": architecture, "sizes": sizes}
    (folder / "config.json").write_text(json.dumps(values, indent=1), "utf-8")
    save_file({name: x.contiguous() for name, x in model.state_dict().items()}, folder / "model.safetensors")


def open_atlas_folder(
    folder: Path, dtype: torch.dtype | None, device: torch.device
) -> tuple[nn.Module, Any, dict[str, Any]]:
    """Open a plain module's folder: model, processor and facts about both.

    `open_model` finds this function by the entry point `anisoscope.models`.

    Raises:
        InputError: The folder is damaged.
    """
    with parse_errors(folder / "config.json", "delete the folder and build it again"):
        values = read_json(folder / "config.json")
        architecture, sizes = values["architecture"], values["sizes"]
        if architecture not in MODALITIES or any(not 0 < size <= _LARGEST for size in sizes.values()):
            raise ValueError("its architecture or sizes are not those of a model of the atlas")
    _require_stored(folder, sizes)
    model = make_module(architecture, sizes)
    with parse_errors(folder / "model.safetensors", "delete the folder and build it again"):
        model.load_state_dict(load_file(folder / "model.safetensors"))
    info = {
        "modality": MODALITIES[architecture],
        "model_type": MODEL_TYPE,
        "head": True,
        "stored_dtype": "float32",
        "digest": weights_digest(folder),
        "embedding_rows": sizes["vocabulary"] if MODALITIES[architecture] == "text" else None,
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
    }
    return model.to(device, dtype).eval(), _processor(folder, MODALITIES[architecture]), info


def _require_stored(folder: Path, sizes: dict[str, int]) -> None:
    """Refuse sizes that need more weights than are stored, before memory is allocated."""
    stored = sum(math.prod(tensor.shape) for tensor in stored_tensors(folder / "model.safetensors").values())
    width = sizes.get("width", 1)
    needed = max(sizes.get("vocabulary", 0) * sizes.get("features", 0), sizes.get("layers", 0) * width * width)
    if needed > stored:
        raise InputError(f"{folder} describes at least {needed:,} weights but stores {stored:,}. Build it again.")


def _processor(folder: Path, modality: str) -> Any:
    import transformers

    if modality == "text":
        return transformers.PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    if modality == "image" and (folder / "preprocessor_config.json").is_file():
        return transformers.ViTImageProcessor.from_pretrained(folder, local_files_only=True)
    return None


def build_sceptr(files: list[Path], folder: Path, *, embedder: str, heads: int = 8) -> None:
    """Write a SCEPTR encoder: its words have fixed vectors, which follow from residue, position and loop.

    Args:
        files: state_dict.pt.
        folder: Where to write.
        embedder: Which of its embedders the variant has; see `receptor_vectors`.
        heads: Attention heads, which the weights do not show.
    """
    state = torch.load(files[0], map_location="cpu", weights_only=True)
    words = receptor_vocabulary(embedder)
    vectors = receptor_vectors(words, embedder, state)
    weights = {"words.weight": vectors}
    for name, tensor in state.items():
        if "_initial_projector" in name:
            weights["projection.weight"] = tensor
        elif ".layers." in name:
            weights[f"encoder.layers.{name.split('.layers.')[1]}"] = tensor
        elif name.startswith("_mlm_token_prediction_projector"):
            weights[f"head.{name.rsplit('.', 1)[1]}"] = tensor
    width = weights["encoder.layers.0.norm1.weight"].shape[0]
    sizes = {
        "vocabulary": len(words),
        "features": vectors.shape[1],
        "width": width,
        "layers": 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("encoder.")),
        "heads": heads,
        "classes": len(RESIDUES),
    }
    write_module(folder, "words", sizes, weights)
    receptor_tokenizer(words).save_pretrained(folder)


def build_tabpfn(files: list[Path], folder: Path, *, heads: int) -> None:
    """Write TabPFN from its checkpoint: weights, optimizer (dropped) and settings."""
    stored = torch.load(files[0], map_location="cpu", weights_only=True)[0]
    names = {"encoder": "rows", "y_encoder": "labels", "decoder": "head", "transformer_encoder": "encoder"}
    weights = {}
    for name, tensor in stored.items():
        first, _, rest = name.removeprefix("module.").partition(".")
        if first in names:
            weights[f"{names[first]}.{rest}"] = tensor
    hidden, width = weights["encoder.layers.0.linear1.weight"].shape
    sizes = {
        "features": weights["rows.weight"].shape[1],
        "width": width,
        "layers": 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("encoder.layers")),
        "heads": heads,
        "hidden": hidden,
        "classes": weights["head.2.weight"].shape[0],
    }
    write_module(folder, "tables", sizes, weights)


def build_efficientnet(files: list[Path], folder: Path) -> None:
    """Write EfficientNet-lite0 from its checkpoint."""
    import transformers

    stored = torch.load(files[0], map_location="cpu", weights_only=True)
    parts = {
        "_expand_conv": "expand.0",
        "_bn0": "expand.1",
        "_depthwise_conv": "depth.0",
        "_bn1": "depth.1",
        "_project_conv": "project.0",
        "_bn2": "project.1",
    }
    outer = {"_conv_stem": "stem.0", "_bn0": "stem.1", "_conv_head": "last.0", "_bn1": "last.1", "_fc": "head"}
    weights = {}
    for name, tensor in stored.items():
        path = name.split(".")
        if path[0] == "_blocks":
            weights[f"blocks.{path[1]}.{parts[path[2]]}.{path[3]}"] = tensor
        else:
            weights[f"{outer[path[0]]}.{path[1]}"] = tensor
    write_module(folder, "lite-convolutions", {"classes": weights["head.weight"].shape[0]}, weights)
    transformers.ViTImageProcessor(
        size={"height": 224, "width": 224}, image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225]
    ).save_pretrained(folder)


def build_formula_reader(files: list[Path], folder: Path) -> None:
    """Write latex-ocr-junia: a vision transformer and the decoder that writes LaTeX, with its list of letters."""
    named = {file.name: file for file in files}
    values = json.loads(named["model_config.json"].read_text("utf-8"))
    stored = torch.load(named["best.pt"], map_location="cpu", weights_only=True)["model_state_dict"]
    weights = {}
    for name, tensor in stored.items():
        for pattern, replacement in _FORMULA_NAMES:
            name = re.sub(pattern, replacement, name)
        weights[name] = tensor
    sizes = {
        "height": values["image_height"],
        "breadth": values["image_width"],
        "patch": values["patch_size"],
        "width": values["d_model"],
        "layers": values["num_encoder_layers"],
        "heads": values["num_heads"],
        "vocabulary": values["vocab_size"],
        "positions": values["max_length"],
    }
    write_module(folder, "formulas", sizes, weights)
    letters = json.loads(named["tokenizer.json"].read_text("utf-8"))["token_to_id"]
    (folder / LETTERS).write_text(json.dumps(sorted(letters, key=lambda letter: letters[letter])), "utf-8")


def build_midisimx(files: list[Path], folder: Path, *, heads: int) -> None:
    """Write midisimx from its checkpoint, with the tokenizer of its words."""
    stored = torch.load(files[0], map_location="cpu", weights_only=True)
    outer = {"token_emb.emb.weight": "words.weight", "attn_layers.final_norm.gamma": "norm.weight"}
    outer |= {"to_logits.weight": "head.weight"}
    weights = {outer[name]: tensor for name, tensor in stored.items() if name in outer}
    for name, tensor in stored.items():
        if (match := re.match(r"attn_layers\.layers\.(\d+)\.(.+)", name)) is not None:
            number, rest = int(match[1]), match[2].replace("0.0.gamma", "0.gamma")
            inner = f"{number % 2}.{rest}"
            old = next(old for old in _MUSIC_NAMES if inner.startswith(old))
            weights[f"layers.{number // 2}.{_MUSIC_NAMES[old]}{inner.removeprefix(old)}"] = tensor
    for name in (name for name in weights if "norm" in name):
        weights[name] = weights[name] + 1  # stored as the difference from 1
    inner_width, width = weights["layers.0.query.weight"].shape
    sizes = {
        "vocabulary": VOCABULARY,
        "width": width,
        "layers": 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("layers.")),
        "heads": heads,
        "head": inner_width // heads,
    }
    write_module(folder, "music", sizes, weights)
    music_tokenizer().save_pretrained(folder)


def untrained_module(folder: Path, out: Path) -> None:
    """Write the untrained twin of a plain module: the same sizes, torch's initial weights, fixed vectors kept."""
    values = read_json(folder / "config.json")
    model = make_module(values["architecture"], values["sizes"])
    if values["architecture"] == "words":  # the vectors of words are input, not weights
        words: Any = model.words
        words.weight.data = load_file(folder / "model.safetensors")["words.weight"]
    save_module(out, values["architecture"], values["sizes"], model)
    for file in folder.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            shutil.copyfile(file, out / file.name)
