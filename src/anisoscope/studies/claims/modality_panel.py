"""A panel of modalities: text, characters, images, sound and a convolutional network under the same metrics.

Without models of the user, text and characters are trained in the lab. The others have random weights and synthetic
inputs; they are shown and not judged.
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
from anisoscope.studies.claims.given_models import GivenModel
from anisoscope.studies.claims.hidden_states import mean_cosine
from anisoscope.studies.claims.measurements import SHAPE, load_or_make
from anisoscope.studies.claims.run_view import RunView, Units, by_documents
from anisoscope.studies.claims.subjects import Subjects

TEXT, CHARACTER, IMAGE, AUDIO, CONVOLUTION = "text", "character", "image", "audio", "convolution"
TRANSFORMERS = (TEXT, CHARACTER, IMAGE, AUDIO)
_WIDTH, _LAYERS, _HEADS, _PIXELS, _SAMPLES = 64, 6, 4, 64, 4000

# The models of the paper, by hub id. CharacterBERT, MANTa and VAN are not opened: docs/howto/recipes.md says why.
SOURCES = {
    TEXT: (
        *("google-bert/bert-base-uncased", "FacebookAI/roberta-base", "albert/albert-base-v2"),
        *("openai-community/gpt2", "google-t5/t5-base"),
    ),
    CHARACTER: ("google/canine-c", "google/byt5-base"),
    AUDIO: ("facebook/wav2vec2-base", "facebook/hubert-base-ls960", "openai/whisper-base"),
    IMAGE: (
        *("google/vit-base-patch16-224", "microsoft/beit-base-patch16-224", "facebook/deit-base-patch16-224"),
        "nvidia/mit-b0",
    ),
    CONVOLUTION: ("microsoft/resnet-50", "google/efficientnet-b0", "facebook/convnext-base-224", "microsoft/cvt-13"),
}


@dataclass(frozen=True)
class PanelMember:
    """One model of the panel, measured after training and, if it was trained, before."""

    name: str
    modality: str
    measured: Units
    untrained: Units | None = None
    random: bool = False  # random weights: shown, but not judged


def members(subjects: Subjects) -> list[PanelMember]:
    """Return the models of the user, or two of the lab and one with random weights for every other modality."""
    if subjects.given:
        return [_given_member(model) for model in subjects.given_models]
    lab = subjects.lab
    trained = [
        PanelMember(f"lab, {cell}", modality, lab.last(cell).measure(SHAPE), lab.at_step(cell, 0).measure(SHAPE))
        for cell, modality in (("words", TEXT), ("decoder", CHARACTER))
    ]
    return trained + [
        PanelMember(f"{name}, random weights", modality, _random_units(subjects, name, make), random=True)
        for name, modality, make in (
            ("ViT", IMAGE, _vit),
            ("wav2vec 2.0", AUDIO, _wav2vec),
            ("ResNet", CONVOLUTION, _resnet),
        )
    ]


# --- models of the user -------------------------------------------------------------------------------------------


def _given_member(model: GivenModel) -> PanelMember:
    opened = model.open()
    untrained = load_or_make(model.folder / "untrained", lambda folder: _untrained_run(model, opened, folder))
    return PanelMember(model.name, _modality(opened), model.measure(SHAPE), by_documents(untrained))


def _modality(opened: Opened) -> str:
    if opened.modality == "text":
        small = (opened.info["embedding_rows"] or 0) < 1000  # bytes or characters; CANINE hashes and has no embeddings
        return CHARACTER if small or opened.info["model_type"] == "canine" else TEXT
    attends = any("Attention" in type(module).__name__ for module in opened.model.modules())
    return opened.modality if attends else CONVOLUTION


def _untrained_run(model: GivenModel, opened: Opened, folder: Path) -> Run:
    """Measure the same network with random weights on the same data."""
    model.on_status(f"{model.name} before training")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        fresh = type(opened.model)(opened.model.config).eval()
    untrained = Opened(fresh, opened.processor, opened.modality, opened.info)
    return measure(
        untrained,
        tokens=model.size.tokens,
        metrics=SHAPE.metrics,
        sites=SHAPE.sites,
        out=folder,
        **model.data(untrained),
    )


# --- random weights -----------------------------------------------------------------------------------------------

ModelAndInputs = tuple[nn.Module, dict[str, Tensor]]
Maker = Callable[[int, int], ModelAndInputs]  # from a seed and the number of images or clips


def _random_units(subjects: Subjects, name: str, make: Maker) -> Units:
    def run(seed: int, folder: Path) -> Run:
        subjects.lab.on_status(f"{name} of random weights, seed {seed}")
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model, inputs = make(seed, items_of(subjects))
        return measure(model.eval(), [inputs], metrics=SHAPE.metrics, sites=SHAPE.sites, errors=False, out=folder)

    folder = subjects.lab.folder / "measurements" / name.replace(" ", "-")
    runs = [load_or_make(folder / f"seed-{seed}", partial(run, seed)) for seed in range(subjects.lab.seeds)]
    return Units(tuple(RunView.of(run.records()) for run in runs))


def items_of(subjects: Subjects) -> int:
    """Return the number of images or clips: a quarter of the windows of text."""
    return subjects.size.windows // 4


def _transformers() -> Any:
    """Import the library on first use, untyped: its configurations take more than their signatures list."""
    import transformers

    return transformers


def _vit(seed: int, items: int) -> ModelAndInputs:
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


def _resnet(seed: int, items: int) -> ModelAndInputs:
    hf = _transformers()
    config = hf.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 64], depths=[2, 2, 2], layer_type="basic")
    return hf.ResNetModel(config), {"pixel_values": images(seed, items)}


def _wav2vec(seed: int, items: int) -> ModelAndInputs:
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
    """Return random fields (items, 3, pixels, pixels) whose power falls with frequency as in photographs."""
    return _coloured((items, 3, _PIXELS, _PIXELS), 2, seed)


def sounds(seed: int, items: int) -> Tensor:
    """Return pink noise, (items, samples)."""
    return _coloured((items, _SAMPLES), 1, seed)


def _coloured(shape: tuple[int, ...], axes: int, seed: int) -> Tensor:
    """Gaussian noise of unit deviation with amplitudes 1/frequency along the last axes."""
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    dims = tuple(range(-axes, 0))
    grids = torch.meshgrid(*(torch.fft.fftfreq(shape[dim]) for dim in dims), indexing="ij")
    radius = torch.stack(grids).square().sum(0).sqrt()
    radius[(0,) * axes] = 1.0
    field = torch.fft.ifftn(torch.fft.fftn(noise, dim=dims) / radius, dim=dims).real
    return field / field.std()


def around_batch_norms(seed: int, items: int) -> list[tuple[float, float]]:
    """Return the mean cosine before and after every BatchNorm of the convolutional network, in order."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model, inputs = _resnet(seed, items)
    model.train()  # so that each norm uses the mean of the batch: untrained, it has no other
    cosines: list[tuple[float, float]] = []

    def hook(_norm: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        cosines.append((_cosine(inputs[0]), _cosine(output)))

    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    hooks = [norm.register_forward_hook(hook) for norm in norms]
    with torch.no_grad():
        model(**inputs)
    for each in hooks:
        each.remove()
    return cosines


def _cosine(x: Tensor) -> float:
    """Mean cosine over all positions of all images, (b, channels, h, w)."""
    return mean_cosine(x.permute(0, 2, 3, 1).flatten(0, 2))
