"""The info of a run with known types, for pages and tables: the run may be untrusted, or from another version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TEXTS = ("name", "meaning", "text", "family", "paper", "notable", "isotropic", "row_effect")
_NUMBERS = ("low", "high")
_LISTS = ("ignores", "needs")


def checked_info(info: Mapping[str, Any]) -> dict[str, Any]:
    """The info of a run in which the known entries have the right type; entries of another type are left out.

    >>> checked_info({"metrics": {"a": {"low": "x", "high": 1}}, "removed": 5, "model": "m"})
    {'metrics': {'a': {'high': 1}}, 'removed': {'count': 0, 'tokens': [], 'words': []}, 'model': 'm'}
    """
    metrics, removed, model = info.get("metrics"), info.get("removed"), info.get("model")
    cards = metrics.items() if isinstance(metrics, Mapping) else ()
    return {
        **info,
        "metrics": {str(name): _card(card) for name, card in cards if isinstance(card, Mapping)},
        "removed": _removed(removed if isinstance(removed, Mapping) else {}),
        "model": _model(model) if isinstance(model, Mapping) else model,
    }


def _card(card: Mapping[str, Any]) -> dict[str, Any]:
    kinds = {**dict.fromkeys(_TEXTS, str), **dict.fromkeys(_LISTS, list)}
    return {
        name: value
        for name, value in card.items()
        if (name in _NUMBERS and _is_number(value))
        or (name not in _NUMBERS and isinstance(value, kinds.get(name, object)))
    }


def _removed(removed: Mapping[str, Any]) -> dict[str, Any]:
    count = removed.get("count")
    tokens, words = (_mappings(removed.get(name)) for name in ("tokens", "words"))
    return {"count": count if type(count) is int else len(tokens), "tokens": tokens, "words": words}


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _model(model: Mapping[str, Any]) -> dict[str, Any]:
    random = model.get("random_weights")
    return {**model, "random_weights": [str(name) for name in random] if isinstance(random, list) else []}


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300)
