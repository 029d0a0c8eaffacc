"""A metric over the layers of one stream: under the main token policy and over all tokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anisoscope.records import headline_variant
from anisoscope.report.sentences import WITHOUT
from anisoscope.report.tables import Row

FLAT = 0.05  # a curve that varies by less than this share of its largest value has no highest layer
_LOST, _HALF = 0.1, 0.5  # few tokens cause a share if it loses this much without them, and at least half of itself
_NO_CARD: Mapping[str, Any] = {}


@dataclass(frozen=True)
class LayerCurves:
    """A metric over the layers of one stream at its last step.

    Attributes:
        metric: The metric.
        main: Rows by layer, without sink tokens if they were measured.
        all: Rows by layer over all tokens.
        sinks_out: Whether `main` leaves out sink tokens.
        final: The position of `final`, if it was measured.
        low: Whether a low value is the finding, instead of a high one.
    """

    metric: str
    main: Mapping[float, Row]
    all: Mapping[float, Row]
    sinks_out: bool
    final: float | None
    low: bool

    @property
    def values(self) -> list[float]:
        """The values of `main`, in the order of layers."""
        return [row["value"] for row in self.main.values()]

    @property
    def nulls(self) -> list[float]:
        """The null values that exist."""
        return [row["null"] for row in self.main.values() if row["null"] is not None]

    @property
    def is_flat(self) -> bool:
        """Whether the layers hardly differ."""
        return max(self.values) - min(self.values) <= FLAT * max(map(abs, self.values))

    def extreme(self) -> tuple[float, Row]:
        """The layer with the strongest finding, and its row."""
        chooser = min if self.low else max
        return chooser(self.main.items(), key=lambda item: item[1]["value"])

    def gaps(self) -> dict[float, float]:
        """By layer, the value over all tokens minus that without sink tokens; {} if one of them is missing."""
        if not self.sinks_out:
            return {}
        return {k: self.all[k]["value"] - row["value"] for k, row in self.main.items() if k in self.all}

    def caused_by_sinks(self) -> dict[float, float]:
        """The gaps at the layers where sink tokens cause most of the value."""
        return {k: gap for k, gap in self.gaps().items() if gap >= max(_LOST, _HALF * self.all[k]["value"])}

    def left_out(self, layers: Collection[float] | None = None) -> tuple[int, int] | None:
        """The tokens that `main` leaves out, and all tokens, at that of these layers (or of all) where most are out.

        None if the records do not hold the number of tokens.
        """
        both = [k for k in self.main if k in self.all and (layers is None or k in layers)]
        counts = [(self.all[k]["n"], self.main[k]["n"]) for k in both]
        known = [(total - kept, total) for total, kept in counts if total is not None and kept is not None]
        return max(known, default=None)


def layer_curves(
    metric: str, rows: Sequence[Row], stream: str, card: Mapping[str, Any] = _NO_CARD, step: int | None = None
) -> LayerCurves | None:
    """The curves of one metric over the layers of a stream; None if it has no single value per layer.

    Args:
        metric: The metric's name.
        rows: Its rows.
        stream: The stream.
        card: The metric's card: it names the variant to show, and which end of the range is the finding. Without it
            the first variant is shown, and values mostly below their null values are low.
        step: The step; None for the last.
    """
    single = [row for row in rows if row["stream"] == stream and row["index"] is None and row["head"] is None]
    known = [row for row in single if row["value"] is not None]
    if not known:
        return None
    wanted = {f"v_{key}": value for key, value in headline_variant(card).items()}
    first = next((row for row in known if all(row.get(key) == value for key, value in wanted.items())), known[0])
    variant = {key: value for key, value in first.items() if key.startswith("v_")}
    shown = max(row["step"] for row in known) if step is None else step
    known = [r for r in known if r["step"] == shown and all(r[key] == value for key, value in variant.items())]
    if not known:
        return None
    policies = {row["tokens"] for row in known}
    main = WITHOUT if WITHOUT in policies else "all" if "all" in policies else sorted(policies)[0]
    final = next((row["layer"] for row in known if row["site"].endswith("final")), None)
    by_layer = _by_layer(known, main)
    return LayerCurves(metric, by_layer, _by_layer(known, "all"), main == WITHOUT, final, _is_low(by_layer, card))


def _by_layer(rows: Sequence[Row], policy: str) -> dict[float, Row]:
    """The rows of one policy by layer; vectors have layer 0."""
    numbered = [(row["layer"] or 0.0, row) for row in rows if row["tokens"] == policy]
    return dict(sorted(numbered, key=lambda item: item[0]))


def _is_low(rows: Mapping[float, Row], card: Mapping[str, Any]) -> bool:
    if card.get("notable") in ("low", "high"):
        return bool(card["notable"] == "low")
    compared = [row["value"] < row["null"] for row in rows.values() if row["null"] is not None]
    return sum(compared) > len(compared) / 2
