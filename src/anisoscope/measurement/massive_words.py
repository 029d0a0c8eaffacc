"""The massive tokens of a measurement in words: each with its count, and with a few words around one of its uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from anisoscope.data.inputs import as_batch
from anisoscope.models.open import Opened
from anisoscope.records import Site
from anisoscope.stats.rows import token_key

_LISTED = 256  # massive tokens that are stored one by one
_WORDS = 32  # different ones that are stored with their counts
_LEFT, _RIGHT = 8, 5  # tokens around a massive one
_KEPT = 1 << 20  # tokens whose ids are kept: 12 bytes each
_LONGEST = 80  # characters on either side

Decode = Callable[[Sequence[int]], str]


class SeenTokens:
    """The token ids of batches as they pass by, up to about a million, to find what stands around a token.

    Iterating over it iterates over the batches, once.
    """

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = iter(batches)
        self._documents = 0
        self._count = 0
        self._tokens = 0
        self._windows: list[tuple[bool, Tensor, Tensor]] = []  # of a decoder?, keys (b, T), ids (b, T), -1 if no token

    def __iter__(self) -> Iterator[Any]:
        for inputs in self._batches:
            batch = as_batch(inputs, self._documents)
            self._documents += len(batch.document)
            self._count += 1
            for of_decoder, table in ((False, batch), (True, batch.decoder)):
                if table is not None and self._tokens < _KEPT:
                    ids = table.token.to("cpu", torch.int32).masked_fill(~table.counts.cpu(), -1)
                    self._windows.append((of_decoder, token_key(table.document.cpu(), table.position.cpu()), ids))
                    self._tokens += ids.numel()
            yield inputs

    def catch_up(self, batches: int) -> None:
        """Read on until this many batches have passed by: a pass that is resumed at its end reads none."""
        for _ in islice(self, max(0, batches - self._count)):
            pass

    def around(self, tokens: Sequence[Mapping[str, Any]]) -> dict[int, tuple[list[int], list[int]]]:
        """The ids left and right of tokens in their windows, by the index of the token; without those not kept."""
        document = torch.tensor([each["document"] for each in tokens], dtype=torch.int64)
        position = torch.tensor([each["position"] for each in tokens], dtype=torch.int64)
        wanted = token_key(document, position)
        of_decoder = [Site.parse(each["site"]).stack == "dec" for each in tokens]
        found: dict[int, tuple[list[int], list[int]]] = {}
        for decoder, keys, ids in self._windows:
            for row, column in torch.isin(keys, wanted).nonzero().tolist():
                window, id_ = ids[row], int(ids[row, column])
                sides = (window[max(0, column - _LEFT) : column], window[column + 1 : column + 1 + _RIGHT])
                for index in (wanted == keys[row, column]).nonzero()[:, 0].tolist():
                    if id_ == tokens[index]["token"] and decoder == of_decoder[index]:
                        found.setdefault(index, (_known(sides[0]), _known(sides[1])))
        return found


def _known(ids: Tensor) -> list[int]:
    return [id_ for id_ in ids.tolist() if id_ >= 0]


def removed_tokens(tokens: Sequence[Mapping[str, Any]], opened: Opened, seen: SeenTokens | None) -> dict[str, Any]:
    """What a run keeps of its massive tokens.

    Args:
        tokens: Where they are, as `policies.described` gives them, at the first site where each is massive.
        opened: The model; with a tokenizer, tokens have texts.
        seen: The token ids that the model read.

    Returns:
        `count`; `tokens`, the first 256 one by one; and `words`: the most frequent different ones with count and, with
        a tokenizer, the text before and after the one of largest norm. Without token ids, as in images, different ones
        differ in their position.
    """
    decode = getattr(opened.processor, "decode", None) if opened.modality == "text" else None
    listed = [{**each, "text": None if decode is None else decode([each["token"]])} for each in tokens[:_LISTED]]
    return {"count": len(tokens), "tokens": listed, "words": _words(tokens, decode, seen)}


def _words(tokens: Sequence[Mapping[str, Any]], decode: Decode | None, seen: SeenTokens | None) -> list[dict[str, Any]]:
    groups: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for each in tokens:
        key = ("token", each["token"]) if each["token"] >= 0 else ("position", each["position"])
        groups.setdefault(key, []).append(each)
    chosen = sorted(groups.items(), key=lambda item: -len(item[1]))[:_WORDS]
    largest = [max(group, key=lambda each: float(each["norm over median"])) for _, group in chosen]
    around = seen.around(largest) if seen is not None and decode is not None else {}
    words = []
    for index, ((name, value), group) in enumerate(chosen):
        word: dict[str, Any] = {
            name: value,
            "count": len(group),
            "site": group[0]["site"],
            "norm over median": largest[index]["norm over median"],
        }
        if decode is not None and name == "token":
            word |= _in_context(value, *around.get(index, ([], [])), decode)
        words.append(word)
    return words


def _in_context(token: int, left: Sequence[int], right: Sequence[int], decode: Decode) -> dict[str, str]:
    """The text of a token, and what stands before and after it.

    Tokenizers put spaces between tokens in different ways, so a part is what it adds to the text before it.
    """
    before, with_token, whole = decode(left), decode([*left, token]), decode([*left, token, *right])
    if not (with_token.startswith(before) and whole.startswith(with_token)):  # some change spaces before a comma
        return {"text": decode([token]), "left": before[-_LONGEST:], "right": decode(right)[:_LONGEST]}
    after = whole[len(with_token) :].rstrip("�")  # a letter may be cut in two
    return {
        "text": decode([token]),
        "left": before.lstrip("�")[-_LONGEST:],
        "shown": with_token[len(before) :],
        "right": after[:_LONGEST],
    }
