"""Known-good checks: a model that does not behave as trained is not measured."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

from anisoscope.data.batches import model_batches
from anisoscope.errors import InputError, unknown
from anisoscope.models.library_output import quiet
from anisoscope.models.open import Opened, open_model
from anisoscope.store.files import read_json
from anisoscope.studies.atlas.own_folders import LETTERS


@dataclass(frozen=True)
class CheckResult:
    """What a check measured: a value with its limit, in words, and whether it passed."""

    value: float
    limit: float
    passed: bool
    text: str


def run_check(folder: Path, check: Mapping[str, Any], source: str | None = None) -> CheckResult:
    """Run the known-good check of a model.

    Args:
        folder: The model's folder.
        check: `kind`, a name in `CHECKS`, `limit`, and the arguments of that check.
        source: The input in the model's domain, which some checks use.
    """
    options = dict(check)
    kind, limit = options.pop("kind"), float(options.pop("limit"))
    if kind not in CHECKS:
        raise unknown("check", kind, CHECKS)
    function, better, words = CHECKS[kind]
    opened = open_model(folder, head=True)
    with torch.no_grad(), quiet():
        value = function(opened, source, **options)
    passed = value <= limit if better == "low" else value >= limit
    sign = "≤" if better == "low" else "≥"
    return CheckResult(value, limit, passed, f"{value:.2f} {words} ({sign} {limit:g})")


def nats_per_token(opened: Opened, source: str | None, *, texts: list[str]) -> float:
    """Return the mean cross entropy of the next token in texts, in nats."""
    losses = []
    for text in texts:
        ids = _ids(opened, text)
        logits = _logits(opened, ids)[0]
        losses.append(cross_entropy(logits[:-1].float(), ids[0, 1:], reduction="none"))
    return float(torch.cat(losses).mean())


def masked_accuracy(opened: Opened, source: str | None, *, texts: list[str], skip: int = 1, every: int = 1) -> float:
    """Return the share of tokens that a masked model restores, one masked at a time.

    Args:
        opened: A model with an output head.
        source: Not used.
        texts: The texts.
        skip: Tokens at both ends that are not masked.
        every: Which of the others are masked in turn: all, every second, ….
    """
    right = total = 0
    tokenizer: Any = opened.processor
    for text in texts:
        ids = _ids(opened, text)  # (1, t)
        inner = torch.arange(skip, ids.shape[1] - skip, every)
        masked = ids.repeat(len(inner), 1)
        masked[torch.arange(len(inner)), inner] = tokenizer.mask_token_id
        guesses = _logits(opened, masked)[torch.arange(len(inner)), inner].argmax(-1)
        right += int((guesses == ids[0, inner]).sum())
        total += len(inner)
    return right / total


def sentence_margin(opened: Opened, source: str | None, *, groups: list[list[str]], pooling: str = "mean") -> float:
    """Return how much closer texts of one group are than texts of two: lowest cosine within minus highest between.

    Args:
        opened: An encoder.
        source: Not used.
        groups: Texts that mean the same.
        pooling: "mean" of the tokens, or "first" token.
    """
    vectors, owners = [], []
    for number, group in enumerate(groups):
        for text in group:
            hidden = _hidden(opened, _ids(opened, text))[0]  # (t, d)
            vectors.append(hidden.mean(0) if pooling == "mean" else hidden[0])
            owners.append(number)
    stacked = torch.stack(vectors)
    cosines = cosine_similarity(stacked[:, None], stacked[None], dim=-1)
    same = torch.tensor(owners)[:, None] == torch.tensor(owners)[None]
    off = ~torch.eye(len(owners), dtype=torch.bool)
    return float(cosines[same & off].min() - cosines[~same].max())


def image_accuracy(opened: Opened, source: str | None, *, classes: dict[str, list[int]]) -> float:
    """Return the share of images whose best class is one of the right ones; `classes` is by the file's beginning."""
    _, right, total = _require_source(source), 0, 0
    for beginning, numbers in classes.items():
        files = sorted(Path(str(source)).glob(f"{beginning}*.png"))
        for batch in model_batches(opened, files, batch=8):
            output = opened.model(**batch.inputs)
            best = getattr(output, "logits", output).argmax(-1).tolist()
            right += sum(number in numbers for number in best)
            total += len(best)
    if not total:
        raise InputError("The check found none of its images. Delete the input from the cache and run again.")
    return right / total


def receptor_accuracy(opened: Opened, source: str | None, *, receptors: list[str]) -> float:
    """Return the share of masked residues that an encoder of receptors restores; receptors are given as words."""
    from anisoscope.studies.atlas.receptor_words import RESIDUES

    tokenizer: Any = opened.processor
    right = total = 0
    for words in (receptor.split() for receptor in receptors):
        rows = [[*words[:i], "?" + words[i][1:], *words[i + 1 :]] for i in range(len(words))]
        ids = torch.stack([_ids(opened, " ".join(row))[0] for row in rows])
        guesses = opened.model(ids)[torch.arange(len(words)), torch.arange(len(words)) + 1].argmax(-1)
        right += sum(RESIDUES[g] == word[0] for g, word in zip(guesses.tolist(), words, strict=True))
        total += len(words)
    if tokenizer.unk_token_id in ids:
        raise InputError("The check has a receptor that the model's vocabulary lacks.")
    return right / total


def table_accuracy(opened: Opened, source: str | None, *, tables: int = 32) -> float:
    """Return the share of hidden labels that a model predicts in the first tables."""
    from safetensors.torch import load_file

    stored = load_file(_require_source(source))
    table, labels, truth = (stored[name][:tables] for name in ("table", "labels", "truth"))
    guesses = torch.cat([opened.model(t, y).argmax(-1) for t, y in zip(table.split(16), labels.split(16), strict=True)])
    hidden = labels < 0
    return float((guesses == truth)[hidden].float().mean())


def word_error(opened: Opened, source: str | None, *, pieces: str, transcripts: dict[str, str]) -> float:
    """Return the share of words of known transcripts that are missing in what a speech model writes.

    Args:
        opened: An encoder–decoder for speech.
        source: A folder of recordings.
        pieces: The file in the model's folder that lists its tokens: bytes in base64 and a rank per line.
        transcripts: What was spoken, by the name of the file.
    """
    import base64

    folder = Path(opened.info["source"])
    lines = (folder / pieces).read_text("utf-8").splitlines()
    table = {int(rank): base64.b64decode(piece) for piece, rank in (line.split() for line in lines if line)}
    missing = total = 0
    model: Any = opened.model
    for name, said in transcripts.items():
        files = sorted(Path(_require_source(source)).glob(f"*{name}*"))
        batch = next(iter(model_batches(opened, files[:1], batch=1)))
        written = model.generate(input_features=batch.inputs["input_features"], max_new_tokens=60)[0].tolist()
        text = b"".join(table.get(token, b"") for token in written).decode("utf-8", "replace")
        heard = set(_words(text))
        missing += sum(word not in heard for word in _words(said))
        total += len(_words(said))
    return missing / total


def formula_error(opened: Opened, source: str | None, *, images: int = 4, longest: int = 60) -> float:
    """Return the share of letters and digits of formulas that are missing in what a model writes about their images.

    Args:
        opened: A reader of formulas.
        source: A folder of images, with the LaTeX of each in a text file of the same name.
        images: How many images.
        longest: Longest text that it writes, in letters.
    """
    letters: list[str] = read_json(Path(opened.info["source"]) / LETTERS)
    files = sorted(Path(_require_source(source)).glob("*.png"))[:images]
    missing = total = 0
    model: Any = opened.model
    for file in files:
        seen = model.read(next(iter(model_batches(opened, [file], batch=1))).inputs["pixel_values"])
        ids = torch.tensor([[letters.index("<bos>")]])
        while ids.shape[1] < longest and ids[0, -1] != letters.index("<eos>"):
            ids = torch.cat([ids, model.write(ids, seen)[:, -1:].argmax(-1)], 1)
        wanted = _symbols(file.with_suffix(".txt").read_text("utf-8"))
        missing += (wanted - _symbols("".join(letters[i] for i in ids[0, 1:].tolist()))).total()
        total += wanted.total()
    return missing / total


def _symbols(latex: str) -> Counter[str]:
    """Count the letters and digits of a formula; commands and names of environments do not count."""
    return Counter(re.findall(r"[A-Za-z0-9]", re.sub(r"\\(begin|end)\{[^}]*\}|\\[A-Za-z]+", " ", latex)))


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def _require_source(source: str | None) -> str:
    if source is None:
        raise InputError("This check needs the input of the model's domain.")
    return source


def _ids(opened: Opened, text: str) -> Tensor:
    tokenizer: Any = opened.processor
    ids: Tensor = tokenizer(text, return_tensors="pt")["input_ids"]
    return ids


def _logits(opened: Opened, ids: Tensor) -> Tensor:
    output: Any = opened.model(input_ids=ids)
    logits: Tensor | None = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if logits is None:
        raise InputError(f"{opened.info['source']} has no output head, which its check needs.")
    return logits


def _hidden(opened: Opened, ids: Tensor) -> Tensor:
    model: Any = getattr(opened.model, "base_model", opened.model)
    hidden: Tensor = model(input_ids=ids).last_hidden_state
    return hidden


# name: (function, whether low or high values are good, what the value counts)
CHECKS: dict[str, tuple[Callable[..., float], str, str]] = {
    "nats": (nats_per_token, "low", "nats per token"),
    "masked": (masked_accuracy, "high", "of masked tokens restored"),
    "margin": (sentence_margin, "high", "cosine margin between same and different meaning"),
    "images": (image_accuracy, "high", "of images named correctly"),
    "receptors": (receptor_accuracy, "high", "of masked residues restored"),
    "tables": (table_accuracy, "high", "of hidden labels predicted"),
    "words": (word_error, "low", "of spoken words missing"),
    "formulas": (formula_error, "low", "of letters and digits in formulas missing"),
}
