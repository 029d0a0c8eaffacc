"""The panel of modalities: text, characters, images, sound and a convolutional network under the same measures.

Trained where weights are at hand: the lab's own for text and characters, any that are given. The others are of random
initialisation on synthetic inputs, which every verdict says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.measurement.measure_model import measure
from anisoscope.models.open import Opened
from anisoscope.store.run import Run
from anisoscope.studies.claims.bench import Bench
from anisoscope.studies.claims.given import Given
from anisoscope.studies.claims.looks import SHAPE, kept
from anisoscope.studies.claims.readings import RunView, Units, by_documents
from anisoscope.studies.claims.states import mean_cosine

TEXT, CHARACTER, IMAGE, AUDIO, CONVOLUTION = "text", "character", "image", "audio", "convolution"
TRANSFORMERS = (TEXT, CHARACTER, IMAGE, AUDIO)
_WIDTH, _LAYERS, _HEADS, _PIXELS, _SAMPLES = 64, 6, 4, 64, 4000

# What the paper measured, by hub id.
SOURCES = {
    TEXT: ("google-bert/bert-base-uncased", "FacebookAI/roberta-base", "openai-community/gpt2", "google-t5/t5-base"),
    CHARACTER: ("google/canine-c", "google/byt5-base"),
    AUDIO: ("facebook/wav2vec2-base", "facebook/hubert-base-ls960", "openai/whisper-base"),
    IMAGE: ("google/vit-base-patch16-224", "microsoft/beit-base-patch16-224", "facebook/deit-base-patch16-224"),
    CONVOLUTION: ("microsoft/resnet-50", "google/efficientnet-b0", "facebook/convnext-base-224"),
}


@dataclass(frozen=True)
class Member:
    """One model of the panel: a look at it and, where it was trained, one at the same network before training."""

    name: str
    modality: str
    look: Units
    untrained: Units | None = None
    random: bool = False  # its weights were never trained: it is shown, and decides nothing


def members(bench: Bench) -> list[Member]:
    """The models given, or the lab's two and one of random initialisation for every other modality."""
    if bench.given:
        return [_given_member(model) for model in bench.models]
    lab = bench.lab
    trained = [
        Member(f"lab, {cell}", modality, lab.last(cell, SHAPE), lab.look(cell, 0, SHAPE))
        for cell, modality in (("words", TEXT), ("decoder", CHARACTER))
    ]
    return trained + [
        Member(f"{name}, random weights", modality, _random_look(bench, name, make), random=True)
        for name, modality, make in (
            ("ViT", IMAGE, _vit),
            ("wav2vec 2.0", AUDIO, _wav2vec),
            ("ResNet", CONVOLUTION, _resnet),
        )
    ]


# --- models given -------------------------------------------------------------------------------------------------


def _given_member(model: Given) -> Member:
    opened = model.open()
    twin = by_documents(kept(model.folder / "untrained", lambda folder: _untrained_run(model, opened, folder)))
    return Member(model.name, _modality(opened), model.look(SHAPE), twin)


def _modality(opened: Opened) -> str:
    if opened.modality == "text":
        small = (opened.info["embedding_rows"] or 0) < 1000  # bytes or characters: CANINE hashes and has no table
        return CHARACTER if small or opened.info["model_type"] == "canine" else TEXT
    attends = any("Attention" in type(module).__name__ for module in opened.model.modules())
    return opened.modality if attends else CONVOLUTION


def _untrained_run(model: Given, opened: Opened, folder: Path) -> Run:
    """The same network with weights as they are before training, on the same data."""
    model.say(f"{model.name} before training")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        fresh = type(opened.model)(opened.model.config).eval()
    twin = Opened(fresh, opened.processor, opened.modality, opened.info)
    return measure(
        twin, tokens=model.size.tokens, metrics=SHAPE.metrics, sites=SHAPE.sites, out=folder, **model.data(twin)
    )


# --- random weights -----------------------------------------------------------------------------------------------

Made = tuple[nn.Module, dict[str, Tensor]]
Maker = Callable[[int, int], Made]  # from a seed and the number of images or clips


def _random_look(bench: Bench, name: str, make: Maker) -> Units:
    def run(seed: int, folder: Path) -> Run:
        bench.lab.say(f"{name} of random weights, seed {seed}")
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model, inputs = make(seed, items_of(bench))
        return measure(model.eval(), [inputs], metrics=SHAPE.metrics, sites=SHAPE.sites, errors=False, out=folder)

    place = bench.lab.folder / "looks" / name.replace(" ", "-")
    runs = [kept(place / f"seed-{seed}", partial(run, seed)) for seed in range(bench.lab.seeds)]
    return Units(tuple(RunView.of(run.records()) for run in runs))


def items_of(bench: Bench) -> int:
    """How many images or clips a look reads: a quarter of the windows of text."""
    return bench.size.windows // 4


def _transformers() -> Any:
    """The library, imported when a model of it is wanted; its configurations take more than their signatures say."""
    import transformers

    return transformers


def _vit(seed: int, items: int) -> Made:
    hf = _transformers()
    config = hf.ViTConfig(
        hidden_size=_WIDTH,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        intermediate_size=4 * _WIDTH,
        image_size=_PIXELS,
        patch_size=8,
    )
    return hf.ViTModel(config, add_pooling_layer=False), {"pixel_values": images(seed, items)}


def _resnet(seed: int, items: int) -> Made:
    hf = _transformers()
    config = hf.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 64], depths=[2, 2, 2], layer_type="basic")
    return hf.ResNetModel(config), {"pixel_values": images(seed, items)}


def _wav2vec(seed: int, items: int) -> Made:
    hf = _transformers()
    config = hf.Wav2Vec2Config(
        hidden_size=_WIDTH,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        intermediate_size=4 * _WIDTH,
        conv_dim=(32, 32, 32),
        conv_kernel=(10, 8, 4),
        conv_stride=(5, 4, 2),
        num_feat_extract_layers=3,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
    )
    return hf.Wav2Vec2Model(config), {"input_values": sounds(seed, items)}


def images(seed: int, items: int) -> Tensor:
    """Random fields whose power falls with frequency as that of photographs does, (items, 3, pixels, pixels)."""
    return _coloured((items, 3, _PIXELS, _PIXELS), 2, seed)


def sounds(seed: int, items: int) -> Tensor:
    """Pink noise, (items, samples)."""
    return _coloured((items, _SAMPLES), 1, seed)


def _coloured(shape: tuple[int, ...], axes: int, seed: int) -> Tensor:
    """Gaussian noise with amplitudes 1/frequency along the last axes, of unit deviation."""
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    dims = tuple(range(-axes, 0))
    grids = torch.meshgrid(*(torch.fft.fftfreq(shape[dim]) for dim in dims), indexing="ij")
    radius = torch.stack(grids).square().sum(0).sqrt()
    radius[(0,) * axes] = 1.0
    field = torch.fft.ifftn(torch.fft.fftn(noise, dim=dims) / radius, dim=dims).real
    return field / field.std()


def around_batch_norms(seed: int, items: int) -> list[tuple[float, float]]:
    """Mean cosine before and after every BatchNorm of the convolutional network, in the order of a forward pass."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model, inputs = _resnet(seed, items)
    model.train()  # so that a norm uses the batch's own mean: an untrained one knows no other
    found: list[tuple[float, float]] = []

    def hook(_norm: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        found.append((_cosine(given[0]), _cosine(out)))

    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    hooks = [norm.register_forward_hook(hook) for norm in norms]
    with torch.no_grad():
        model(**inputs)
    for each in hooks:
        each.remove()
    return found


def _cosine(x: Tensor) -> float:
    """Over all places of all images, (b, channels, h, w)."""
    return mean_cosine(x.permute(0, 2, 3, 1).flatten(0, 2))
