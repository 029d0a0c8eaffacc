"""T-cell receptors as words: one word per residue, which names residue, position, length and loop."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
_SPECIAL = ("[PAD]", "[MASK]", "[CLS]")  # 0, 1 and 2 in the packages; residues follow
_LONGEST = {1: 12, 2: 12, 3: 26}  # residues of a loop, by its number
# Loops of the beta chain: their numbers in each embedder, and how many loops it knows.
_LOOPS = {
    "simple": ({1: 4, 2: 5, 3: 6}, 6),
    "blosum": ({1: 4, 2: 5, 3: 6}, 6),
    "summed": ({1: 4, 2: 5, 3: 6}, 6),
    "beta": ({1: 1, 2: 2, 3: 3}, 3),
    "third": ({3: 2}, 2),
}


def receptor_words(loops: dict[int, str]) -> str:
    """Return the words of a receptor's loops, by number.

    >>> receptor_words({3: "CAS"})
    'C.1.3.3 A.2.3.3 S.3.3.3'
    """
    return " ".join(
        f"{residue}.{position}.{len(loop)}.{number}"
        for number, loop in sorted(loops.items())
        for position, residue in enumerate(loop, 1)
    )


def receptor_vocabulary(embedder: str) -> list[str]:
    """Return every word that an embedder knows, padding first; `?` is a masked residue."""
    words = ["[PAD]", "[UNK]", "[CLS]"]
    for loop in _LOOPS[embedder][0]:
        for length in range(1, _LONGEST[loop] + 1):
            for position in range(1, length + 1):
                words += [f"{residue}.{position}.{length}.{loop}" for residue in "?" + RESIDUES]
    return words


def receptor_vectors(words: list[str], embedder: str, state: dict[str, Tensor]) -> Tensor:
    """Return the fixed vector of each word, as the embedder of a SCEPTR variant computes it.

    Args:
        words: The vocabulary.
        embedder: "simple" (one-hot residue, relative position, one-hot loop), "beta" and "third" (the same, for models
            that know fewer loops), "blosum" (rows of BLOSUM62 instead of one-hot), "summed" (learned vectors, added).
        state: The weights of the variant.

    Returns:
        (words, features).
    """
    numbers = torch.tensor([_numbers(word, embedder) for word in words])  # (V, 4): residue, position, length, loop
    residue, position, length, loop = numbers.T
    tables = {name.removeprefix("_token_embedder."): x for name, x in state.items() if "_token_embedder" in name}
    if embedder == "summed":
        parts = [tables["token_embedding.weight"][residue], tables["compartment_embedding.weight"][loop]]
        parts.append(tables["position_embedding.position_embedding_matrix"][position])
        vectors = torch.stack(parts).sum(0)
        return vectors * math.sqrt(vectors.shape[1])
    relative = torch.where(length > 1, (position - 1) / (length - 1).clamp(min=1), 0.5) * (position > 0)
    if embedder == "blosum":
        special = tables["_blosum_embedding._special_token_embeddings.weight"][residue * (residue < 3)]
        first = special + tables["_blosum_embedding._blosum_embeddings"][residue]
    else:
        first = _one_hot(residue, len(_SPECIAL) + len(RESIDUES))
    return torch.cat([first, relative.unsqueeze(1), _one_hot(loop, 1 + _LOOPS[embedder][1])], 1).float()


def _numbers(word: str, embedder: str) -> tuple[int, int, int, int]:
    if word.startswith("["):
        return (2 if word == "[CLS]" else 0, 0, 0, 0)
    residue, position, length, loop = word.split(".")
    index = 1 if residue == "?" else 3 + RESIDUES.index(residue)
    return index, int(position), int(length), _LOOPS[embedder][0][int(loop)]


def _one_hot(index: Tensor, count: int) -> Tensor:
    """Return one-hot rows without a column for 0, which is nothing."""
    return torch.nn.functional.one_hot(index, count)[:, 1:].float()


def receptor_tokenizer(words: list[str]) -> Any:
    """Return the tokenizer of these words."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers
    from tokenizers.processors import TemplateProcessing

    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A", pair="[CLS] $A $B", special_tokens=[("[CLS]", 2)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]"
    )


def receptor_texts(files: list[Path], *, count: int, loops: list[int]) -> Iterable[str]:
    """Return receptors of the beta chain as words: one table of genes, and tables of receptors.

    Args:
        files: A .tsv of genes with their loops, and .csv files of receptors with `v_b_gene` and `cdr3_b_aa`.
        count: How many different receptors, taken at equal distances.
        loops: Which loops.
    """
    import pandas as pd

    genes = pd.concat([pd.read_csv(file, sep="\t") for file in files if file.suffix == ".tsv"])
    genes = genes[(genes["organism"] == "human") & (genes["chain"] == "B") & (genes["region"] == "V")]
    loops_of = zip(genes["id"].astype(str), genes["cdrs"].astype(str), strict=True)
    parts = {gene: text.replace(".", "").split(";") for gene, text in loops_of}
    tables = [pd.read_csv(file, usecols=["v_b_gene", "cdr3_b_aa"]) for file in files if file.suffix == ".csv"]
    pairs = pd.concat(tables).dropna().drop_duplicates()
    texts = []
    for gene, third in pairs.itertuples(index=False):
        known = dict(zip((1, 2), parts.get(gene, ())[:2], strict=False)) | {3: third}
        chosen = {number: known.get(number, "") for number in loops}
        if all(_is_known(number, loop) for number, loop in chosen.items()):
            texts.append(receptor_words(chosen))
    step = max(1, len(texts) // count)
    return texts[::step][:count]


def _is_known(number: int, loop: str) -> bool:
    return 0 < len(loop) <= _LONGEST[number] and set(loop) <= set(RESIDUES)
