"""The story that the demo tells: three twins grow up in front of the tracker, and what that says of the claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from anisoscope.records import Record, Site
from anisoscope.schedule import any_of, at, log_spaced
from anisoscope.store.run import Run
from anisoscope.studies.lab.experiment import Experiment, cells, changed
from anisoscope.studies.lab.observing import tracked
from anisoscope.studies.lab.train import Told, Trained
from anisoscope.studies.lab.twins import train_cell

# What two cores train three times in a few minutes. So narrow a network learns faster from larger first weights, and
# masked models from more masks.
SWITCHES = {
    "layers": 6,
    "width": 64,
    "context": 64,
    "steps": 250,
    "learning_rate": 0.003,
    "init_scale": 2.0,
    "masking": 0.3,
}

Curve = list[tuple[int, float]]  # values by step


@dataclass(frozen=True)
class Grown:
    """One model's life: how its training ended, and its records by metric."""

    trained: Trained
    records: dict[str, list[Record]]

    @classmethod
    def read(cls, trained: Trained) -> Grown:
        records: dict[str, list[Record]] = {}
        for record in Run.open(trained.folder).records():
            records.setdefault(record.metric, []).append(record)
        return cls(trained, records)

    @property
    def steps(self) -> int:
        return self.trained.experiment.recipe.steps

    @property
    def layers(self) -> range:
        return range(self.trained.experiment.model.layers)

    @property
    def middle(self) -> int:
        """The block that the table looks at: the last of the first half."""
        return (len(self.layers) - 1) // 2

    def curve(
        self, metric: str, layer: int | None, *, tokens: str = "all", magnitude: bool = False, **variant: Any
    ) -> Curve:
        """Values by step: of one block (None: of all), the mean over heads where there are several."""
        by_step: dict[int, list[float]] = {}
        for record in self.records.get(metric, ()):
            site = Site.parse(record.site)
            here = site.kind in ("resid", "pattern") and layer in (None, site.layer) and record.tokens == tokens
            if here and record.value is not None and variant.items() <= {"grad": site.grad, **record.variant}.items():
                by_step.setdefault(record.step, []).append(abs(record.value) if magnitude else record.value)
        return [(step, fmean(values)) for step, values in sorted(by_step.items())]

    def profile(self, metric: str, *, tokens: str = "all", **variant: Any) -> list[float]:
        """The last values of every block."""
        return [self.curve(metric, layer, tokens=tokens, **variant)[-1][1] for layer in self.layers]


def grow(
    out: Path, bars: Callable[[str, int], AbstractContextManager[Told]], switches: Mapping[str, Any] = SWITCHES
) -> dict[str, Grown]:
    """Train the twins, or read them where they were trained before; `bars(name, steps)` shows how far each one is."""
    base = changed(Experiment(), switches)
    steps = base.recipe.steps
    due = any_of(log_spaced(until=steps // 2), at(steps - 1))
    probes = sum(map(due, range(steps))) + 1
    grown: dict[str, Grown] = {}
    for name, cell in cells(base, []).items():
        # error bars at the first and the last probe, which the table shows
        observe = tracked(steps, due, bars_every=probes - 1)
        with bars(name, steps) as told:
            done = train_cell(cell, out, name, resume=True, observe=observe, checkpoints=at(0), told=told)
        grown[name] = Grown.read(done)
        if done.stopped is not None:
            break
    return grown


# --- the table ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One line of the table: a curve over the training for each model, and what chance would give."""

    label: str
    curves: dict[str, Curve]
    null: float | None = None


def rows(grown: Mapping[str, Grown]) -> list[Row]:
    """Loss, anisotropy, dimension, attention and gradients of every model from its first to its last step."""
    chance = next((r.null for g in grown.values() for r in g.records.get("gradient_energy", ())), None)
    return [
        Row("loss", {name: _losses(g) for name, g in grown.items()}),
        Row("anisotropy λ1/Σλ", _middle(grown, "spectral_anisotropy", grad=False)),
        Row("  without sinks", _middle(grown, "spectral_anisotropy", tokens="no-sink", grad=False)),
        Row("mean cosine", _middle(grown, "mean_cosine")),
        Row("intrinsic dimension", _middle(grown, "two_nn", tokens="no-sink", neighbours="all")),
        Row("attention entropy", _all_heads(grown, "attention_entropy")),
        Row("query drift", _all_heads(grown, "q_drift", **{"in": "rms"})),
        Row("key drift", _all_heads(grown, "k_drift", **{"in": "rms"})),
        Row("|cos(q̄, k̄)|", _all_heads(grown, "qk_cosine", magnitude=True)),
        Row("gradient in proxy", _middle(grown, "gradient_energy"), chance),
    ]


def _middle(grown: Mapping[str, Grown], metric: str, **which: Any) -> dict[str, Curve]:
    return {name: g.curve(metric, g.middle, **which) for name, g in grown.items()}


def _all_heads(grown: Mapping[str, Grown], metric: str, **which: Any) -> dict[str, Curve]:
    return {name: g.curve(metric, None, **which) for name, g in grown.items()}


def _losses(grown: Grown) -> Curve:
    return [(row["step"], row["validation"]) for row in grown.trained.losses]


# --- what it says of the claims -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """What one run of three small models saw of a claim: whether it agrees, plainly and under the stronger control."""

    claim: str
    says: str
    seen: str
    published: bool
    controlled: bool | None  # None: nothing stronger can be looked at here


def findings(grown: Mapping[str, Grown]) -> list[Finding]:
    """The claims on which the twins have something to say; one seed is a hint and never a verdict."""
    decoder, masked, encoder = grown["decoder"], grown["causal-masked"], grown["encoder"]
    return [
        _bell(decoder, encoder),
        _rise_and_fall(decoder),
        _growth(decoder),
        _mask(decoder, masked, encoder),
        _cosine(decoder),
        _sharpening(decoder),
        _gradients(decoder),
        _early(decoder),
    ]


def bell(profile: Sequence[float]) -> float:
    """How far the middle third of the layers stands above the higher of the two end sixths.

    >>> bell([0.1, 0.2, 0.6, 0.8, 0.3, 0.2])
    0.5
    """
    n = len(profile)
    third, sixth = n // 3, max(1, n // 6)
    return round(fmean(profile[third : n - third]) - max(fmean(profile[:sixth]), fmean(profile[-sixth:])), 9)


def _bell(decoder: Grown, encoder: Grown) -> Finding:
    profiles = [g.profile("spectral_anisotropy", grad=False) for g in (decoder, encoder)]
    quiet = [g.profile("spectral_anisotropy", tokens="no-sink", grad=False) for g in (decoder, encoder)]
    held = [bell(d) > 0.1 and max(e) - min(e) < 0.1 for d, e in (profiles, quiet)]
    seen = (
        f"bell {bell(profiles[0]):+.2f} in the decoder; range {max(profiles[1]) - min(profiles[1]):.2f} in the encoder"
    )
    return Finding("S1", "decoders: anisotropy is a bell over the layers; encoders: flat", seen, held[0], held[1])


def _rise_and_fall(decoder: Grown) -> Finding:
    plain = _values(decoder.curve("two_nn", decoder.middle, tokens="no-sink", neighbours="all"))
    other = _values(decoder.curve("two_nn", decoder.middle, tokens="no-sink", neighbours="other documents"))
    seen = f"{plain[0]:.1f} at first, {max(plain):.1f} at most, {plain[-1]:.1f} at last"
    held = [max(values) > max(values[0], values[-1]) for values in (plain, other)]
    return Finding("S2", "intrinsic dimension rises early in training, then falls", seen, *held)


def _growth(decoder: Grown) -> Finding:
    plain = _values(decoder.curve("spectral_anisotropy", None, grad=False))
    quiet = _values(decoder.curve("spectral_anisotropy", None, tokens="no-sink", grad=False))
    seen = f"λ1/Σλ {plain[0]:.2f} → {plain[-1]:.2f}, mean over layers"
    held = [values[-1] > values[0] and spearman(values) > 0.5 for values in (plain, quiet)]
    return Finding("S5", "anisotropy grows with training", seen, *held)


def _mask(decoder: Grown, masked: Grown, encoder: Grown) -> Finding:
    height = [bell(g.profile("spectral_anisotropy", grad=False)) for g in (decoder, masked, encoder)]
    seen = f"bell {height[0]:+.2f} decoder, {height[1]:+.2f} causal-masked, {height[2]:+.2f} encoder"
    says = "causal masking is what separates the two shapes"
    return Finding("S6", says, seen, height[0] - height[2] > 0.05, height[1] - height[2] > 0.05)


def _cosine(decoder: Grown) -> Finding:
    plain, quiet = decoder.profile("mean_cosine"), decoder.profile("mean_cosine", tokens="no-sink")
    first = [decoder.curve("mean_cosine", layer, tokens="no-sink")[0][1] for layer in decoder.layers]
    high = sum(value > 0.2 for value in plain)
    risen = sum(last - start > 0.2 for last, start in zip(quiet, first, strict=True))
    n = len(decoder.layers)
    seen = f"above 0.2 in {high} of {n} layers, risen by as much in {risen}"
    return Finding("A1", "mean cosine is high in most layers", seen, 2 * high > n, 2 * risen > n)


def _sharpening(decoder: Grown) -> Finding:
    entropy, cosine = (_by_head(decoder.records[name]) for name in ("attention_entropy", "qk_cosine"))
    both = sum(entropy[h][-1] < entropy[h][0] and abs(cosine[h][-1]) > abs(cosine[h][0]) for h in entropy)
    seen = f"both in {both} of {len(entropy)} heads"
    says = "mean query and key grow parallel while attention sharpens"
    return Finding("A5", says, seen, 2 * both > len(entropy), None)


def _gradients(decoder: Grown) -> Finding:
    found = [r for r in decoder.records["gradient_energy"] if r.step <= decoder.steps // 3]
    above = sum((r.value or 0.0) > (r.null or 0.0) for r in found)
    seen = f"above chance in {above} of {len(found)} layers × early steps"
    says = "activation-derived directions hold unusually much gradient"
    return Finding("T1", says, seen, above >= 0.8 * len(found), None)


def _early(decoder: Grown) -> Finding:
    curve = decoder.curve("gradient_enrichment", None)
    early = fmean(value for step, value in curve if step <= decoder.steps // 3)
    seen = f"enrichment {early:.1f}× early, {curve[-1][1]:.1f}× at the end"
    return Finding("T4", "…most of all early in training", seen, early > curve[-1][1], None)


def spearman(values: Sequence[float]) -> float:
    """Rank correlation of a series with its order.

    >>> spearman([1.0, 3.0, 2.0])
    0.5
    """
    n = len(values)
    ranks = [sorted(values).index(value) for value in values]
    return 1 - 6 * sum((rank - place) ** 2 for place, rank in enumerate(ranks)) / (n * (n * n - 1))


def _values(curve: Curve) -> list[float]:
    return [value for _, value in curve]


def _by_head(records: Sequence[Record]) -> dict[tuple[str, int | None], list[float]]:
    """Values over the training, in order, for every head."""
    found: dict[tuple[str, int | None], list[float]] = {}
    for record in sorted(records, key=lambda r: r.step):
        if record.value is not None:
            found.setdefault((record.site, record.index), []).append(record.value)
    return found
