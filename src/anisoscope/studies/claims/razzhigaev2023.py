"""S: Razzhigaev et al. 2023, The Shape of Learning: a bell over layers, a dimension that rises and falls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from anisoscope.records import Record
from anisoscope.stats.inference import spearman
from anisoscope.studies.claims.bell_evidence import (
    NO_TYLER,
    TOP_SHARE,
    TYLER_SHARE,
    Statistic,
    bell_evidence,
    bell_on_models,
    mask_evidence,
    of_profile,
)
from anisoscope.studies.claims.claim import Claim, Evidence
from anisoscope.studies.claims.conditions import Condition, above, below, every, gate
from anisoscope.studies.claims.dimension_evidence import HIGHEST, SCALE, dimension_evidence, low_dimension_evidence
from anisoscope.studies.claims.estimate import CORRELATION, NOT_NEGATIVE, SHARE, Estimate
from anisoscope.studies.claims.gates import ENDED, LEARNT, SETTLED, STATES
from anisoscope.studies.claims.measurements import LOCAL, SHAPE, TYLER
from anisoscope.studies.claims.run_view import (
    Missing,
    RunView,
    Units,
    estimate,
    estimate_record,
    estimates,
    figure_records,
)
from anisoscope.studies.claims.subjects import LabModel, SubjectSource

PAPER = "razzhigaev2023"


# --- S4, S5 -------------------------------------------------------------------------------------------------------


def _local_evidence(subjects: SubjectSource) -> Evidence:
    """IsoScore within clusters, compared with that of all rows and of Gaussian rows (S4)."""
    model = subjects.models("decoder")[0]
    units = model.measure(LOCAL)

    def over_global(view: RunView) -> float:
        return fmean(view.profile("local_isotropy")) - fmean(view.profile("isoscore"))

    def over_gaussian(view: RunView) -> float:
        return fmean(entry.value - (entry.null or 0.0) for entry in view.find("local_isotropy"))

    def level(view: RunView) -> float:
        """IsoScore within clusters over that of isotropic rows of the same number."""
        null = fmean(entry.null or 0.0 for entry in view.find("isoscore"))
        return fmean(view.profile("local_isotropy")) / max(null, 1e-9)

    quantities = estimates(
        {
            "over_global": lambda: estimate(over_global, units),
            "level": lambda: estimate(level, units),
            "over_gaussian": lambda: estimate(over_gaussian, units),
        }
    )
    return subjects.evidence([model], quantities, figure_records(units, LOCAL.metrics, of=model.name))


_WORDS = {"all": "all tokens", "no-sink": "without first and massive tokens"}


def growth_evidence(subjects: SubjectSource) -> Evidence:
    """Gather the change of anisotropy over training and its rank correlation with the step (S5)."""
    models = subjects.checkpoints("decoder", settled=True)
    steps = [model.step for model in models]
    shape = [model.measure(SHAPE) for model in models]
    versions = {"": (shape, TOP_SHARE, "all"), "_no_sink": (shape, TOP_SHARE, "no-sink")}
    lab = isinstance(models[0], LabModel)
    if not lab:
        versions["_tyler"] = ([model.measure(TYLER) for model in models], TYLER_SHARE, "no-sink")
    makers: dict[str, Callable[[], Estimate]] = {}
    records: list[Record] = []
    for version, (series, metric, tokens) in versions.items():
        mean = of_profile(fmean, metric, tokens)
        makers[f"growth{version}"] = partial(estimate, partial(_last_minus_first, mean), *series)
        makers[f"order{version}"] = partial(estimate, partial(_order, mean, steps), *series)
        records += _means(mean, dict(zip(steps, series, strict=True)), metric, _WORDS[tokens])
    left_out = {f"{name}_tyler": NO_TYLER for name in ("growth", "order")} if lab else {}
    return subjects.evidence(models, estimates(makers), records, left_out=left_out)


def _last_minus_first(value: Statistic, *views: RunView) -> float:
    return value(views[-1]) - value(views[0])


def _order(value: Statistic, steps: Sequence[int], *views: RunView) -> float:
    return spearman(steps, [value(view) for view in views])


def _means(mean: Statistic, series: Mapping[int, Units], metric: str, of: str) -> list[Record]:
    records = []
    for step, units in series.items():
        try:
            value = estimate(mean, units)
        except Missing:
            continue
        records.append(estimate_record(value, metric, of=of, step=step))
    return records


# --- the claims ---------------------------------------------------------------------------------------------------

_CHECKPOINTS = "step0,step128,step1000,step8000,step43000,step143000"
_TYLERS = "of Tyler's matrix, without them"
_BELL: dict[str, Any] = {
    "holds": 0.15,
    "fails": -0.05,
}  # GPT-2 0.15, Llama-2-7B 0.9; monotone: negative
_MIDDLE: dict[str, Any] = {"holds": 0.15, "fails": 0.5}
_FLAT: dict[str, Any] = {"holds": 0.05, "fails": 0.3}  # published: BERT 0.03
_MOVE: dict[str, Any] = {"holds": 1.0, "fails": -0.5}  # dimensions


def _bell_rule(version: str, words: str) -> tuple[Condition, ...]:
    return (
        above(f"bell{version}", 0.0, f"decoder{words}: middle third − higher one of first and last state", **_BELL),
        below(
            f"below_end{version}",
            1 / 3,
            f"decoder{words}: distance of the highest state from the middle, as a share of the depth",
            (0.0, 0.5),
            **_MIDDLE,
        ),
        below(f"range{version}", 0.1, f"encoder{words}: range over layers", SHARE, **_FLAT),
    )


def _growth_rule(version: str, words: str) -> tuple[Condition, ...]:
    return (
        above(f"growth{version}", 0.0, f"last − first, mean over layers{words}", holds=0.1, fails=-0.05),
        above(f"order{version}", 0.5, f"rank correlation with the step{words}", CORRELATION, holds=0.9, fails=-0.2),
    )


CLAIMS = (
    Claim(
        "S1",
        PAPER,
        "In decoders, anisotropy over layers is a bell, highest in the middle; in encoders it is flat.",
        {"lab": bell_evidence, "model": bell_on_models},
        published=every(*_bell_rule("", "")),
        control=every(*_bell_rule("_no_sink", " without flagged tokens"), *_bell_rule("_tyler", f" {_TYLERS}")),
        settle="a decoder and an encoder: --model gpt2 --model bert-base-uncased --text FILE",
        figure=(TOP_SHARE, TYLER_SHARE, "removal_curve"),
        cells=("decoder", "encoder"),
        seconds=8,
        sources=(
            *("openai-community/gpt2", "bigscience/bloom-560m"),
            *("google-bert/bert-base-uncased", "FacebookAI/roberta-base", "albert/albert-base-v2"),
        ),
        gates=(LEARNT, STATES),
        plain="In decoders one direction dominates in the middle layers (a bell); in encoders it does not",
        found="decoders: a bell up to 0.99; encoders: flat, 0.01–0.04",
    ),
    Claim(
        "S2",
        PAPER,
        "Intrinsic dimension rises early in training, then falls.",
        {"lab": dimension_evidence, "checkpoints": dimension_evidence},
        published=every(
            above("rise_paper", 0.0, "peak − first, published estimator", **_MOVE),
            above("fall_paper", 0.0, "peak − last, published estimator", **_MOVE),
        ),
        control=every(
            *(
                above(f"{move}_{name}", 0.0, f"{words}, {estimator}", **_MOVE)
                for name, estimator in (
                    ("two_nn", "duplicates removed"),
                    ("gride", f"GRIDE k = {SCALE}"),
                    ("other_documents", "neighbours in other documents"),
                )
                for move, words in (("rise", "peak − first"), ("fall", "peak − last"))
            )
        ),
        settle="checkpoints of a long training: --model EleutherAI/pythia-70m --revisions 'step*' --text FILE",
        figure=("intrinsic_dimension",),
        cells=("decoder",),
        seconds=30,
        sources=("EleutherAI/pythia-2.8b",),
        revisions=_CHECKPOINTS,
        gates=(LEARNT, SETTLED, ENDED),
        plain="The number of dimensions that states fill rises early in training, then falls",
        found="expansion, then compression, in several decoders",
    ),
    Claim(
        "S3",
        PAPER,
        "Intrinsic dimension is low: never above 60 in decoders.",
        {"lab": low_dimension_evidence, "model": low_dimension_evidence},
        published=every(
            below(
                "highest_paper",
                HIGHEST,
                "highest dimension of a layer, published estimator",
                NOT_NEGATIVE,
                holds=40.0,
                fails=80.0,
            )
        ),
        control=every(
            gate("gaussian", HIGHEST, "dimension read off N(0, C) at the same n", within=NOT_NEGATIVE),
            below(
                "highest",
                HIGHEST,
                "highest dimension of a layer, duplicates removed",
                NOT_NEGATIVE,
                holds=40.0,
                fails=80.0,
            ),
        ),
        settle="a model for which Gaussian rows have a dimension above 60 at this n: a wide one, on many tokens",
        figure=("two_nn_paper",),
        cells=("decoder",),
        seconds=3,
        sources=("openai-community/gpt2",),
        gates=(LEARNT,),
        plain="States of a decoder fill few dimensions: fewer than 60",
        found="never above 60",
    ),
    Claim(
        "S4",
        PAPER,
        "Clusters of states are isotropic, although all states together are not.",
        {"lab": _local_evidence, "model": _local_evidence},
        published=every(
            above("over_global", 0.0, "IsoScore within clusters − of the whole", holds=0.3, fails=0.0),
            above("level", 0.5, "IsoScore within clusters over that of isotropic rows", holds=0.8, fails=0.2),
        ),
        control=every(
            above("over_gaussian", 0.0, "IsoScore within clusters − the same of N(0, C)", holds=0.05, fails=0.0)
        ),
        settle="more seeds, or --model with --text",
        figure=("local_isotropy", "isoscore"),
        cells=("decoder",),
        seconds=3,
        sources=("openai-community/gpt2",),
        gates=(LEARNT,),
        plain="Seen up close, within clusters, states spread evenly in all directions",
        found="isotropic within clusters",
    ),
    Claim(
        "S5",
        PAPER,
        "Anisotropy grows with training.",
        {"lab": growth_evidence, "checkpoints": growth_evidence},
        published=every(*_growth_rule("", "")),
        control=every(*_growth_rule("_no_sink", " without flagged tokens"), *_growth_rule("_tyler", f" {_TYLERS}")),
        settle="checkpoints of a long training: --model FOLDER --revisions 'step*' --text FILE",
        figure=(TOP_SHARE, TYLER_SHARE),
        cells=("decoder",),
        seconds=20,
        sources=("EleutherAI/pythia-2.8b",),
        revisions=_CHECKPOINTS,
        gates=(LEARNT, SETTLED, ENDED),
        plain="One direction dominates more and more as training proceeds",
        found="grows in the middle layers",
    ),
    Claim(
        "S6",
        PAPER,
        "The causal mask causes the difference between decoders and encoders.",
        {"lab": mask_evidence},
        published=every(above("causal", 0.05, "bell of the decoder − bell of the encoder", holds=0.2, fails=0.0)),
        control=every(
            above(
                "mask_alone",
                0.05,
                "bell causal − bell bidirectional, both trained on masked tokens",
                holds=0.2,
                fails=0.0,
            )
        ),
        settle="more seeds, or a longer training of the lab (--size paper)",
        figure=(TOP_SHARE,),
        cells=("decoder", "causal-masked", "encoder"),
        seconds=4,
        gates=(LEARNT, STATES),
        plain="The difference between decoders and encoders comes from the causal mask",
        found="suggested, not tested",
    ),
)
