"""The sections of a report: one question each, with a sentence, notes, figures and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anisoscope.report.caveats import caveats_by_topic
from anisoscope.report.concept_figures import life_figure, stability_figure
from anisoscope.report.concept_lives import ConceptLife, concept_lives, concept_tables, concepts_sentence
from anisoscope.report.figure import Figure
from anisoscope.report.heroes import curves_by_run, energy_figure, loss_figure, map_of, training_axis
from anisoscope.report.line_figures import index_figure, layer_figure, steps_figure
from anisoscope.report.map_figures import cells_of, head_map
from anisoscope.report.metric_titles import title
from anisoscope.report.questions import value_range
from anisoscope.report.reported_run import ReportedRun, measured_runs
from anisoscope.report.section_tables import (
    SectionTable,
    massive_table,
    number_table,
    tangent_tables,
    verdict_table,
)
from anisoscope.report.sentences import WITHOUT, in_rows, layers_text, number
from anisoscope.report.streams import site_text
from anisoscope.report.tables import NONE, Row
from anisoscope.report.tangent_summary import TangentSummary
from anisoscope.report.tiles import is_percent, tangent_tests
from anisoscope.report.topics import OTHER, QUESTIONS, topic_of

_MOST_MAPS = 6
_HEADS = ("attention_entropy", "sink_mass", "sink_rate", "logit_max", "qk_cosine", "q_drift", "k_drift")
_MAPS = ("spectral_anisotropy", "mean_cosine", "two_nn", "isoscore", "participation_ratio")
_LOOP = ("learning_rate", "gradient_norm", "update_ratio")


@dataclass(frozen=True)
class QuestionSection:
    """One question of a report.

    Attributes:
        id: The topic.
        title: The question.
        sentence: The answer; "" if nothing is notable.
        notes: Caveats that concern it.
        figures: Charts next to each other.
        tables: Tables below them.
    """

    id: str
    title: str
    sentence: str
    notes: Sequence[str]
    figures: Sequence[Figure]
    tables: Sequence[SectionTable] = ()


def sections_of(runs: Sequence[ReportedRun]) -> list[QuestionSection]:
    """The sections of a page in the order of the questions; one without figures and tables is left out."""
    makers: Mapping[str, Callable[[Sequence[ReportedRun]], tuple[list[Figure], list[SectionTable]]]] = {
        "cone": _cone,
        "directions": _directions,
        "causes": _causes,
        "attention": _attention,
        "gradients": _gradients,
        "development": _development,
        "concepts": _concepts,
        "claims": _claims,
    }
    notes = notes_by_topic(runs)
    measured = measured_runs(runs)
    sections = []
    for topic, question in QUESTIONS.items():
        figures, tables = makers[topic](runs if topic == "claims" else measured)
        if figures or tables:
            sentence = sentence_of(measured, topic)
            sections.append(QuestionSection(topic, question, sentence, notes.get(topic, []), figures, tables))
    return sections


def notes_by_topic(runs: Sequence[ReportedRun]) -> dict[str, list[str]]:
    """The caveats of all runs by topic, each once; of several runs with the names of those that have it."""
    owners: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        for topic, text in caveats_by_topic(run.rows, run.info):
            owners.setdefault((topic, in_rows(text, run.of_tokens)), []).append(run.label)
    topics: dict[str, list[str]] = {}
    for (topic, text), labels in owners.items():
        named = f"{', '.join(labels)}: {text}" if len(labels) < len(runs) else text
        topics.setdefault(topic, []).append(named)
    return topics


def sentence_of(runs: Sequence[ReportedRun], topic: str) -> str:
    """The answer to a question: of one run in sentences, of several with a range each."""
    if topic == "gradients":
        return _verdicts_in_words([each for run in runs for each in tangent_tests(run)])
    if topic == "concepts":
        return " ".join(_named(run, concepts_sentence(lives, lives[-1].site), runs) for run, lives in _lives(runs))
    if len(runs) == 1:
        run = runs[0]
        related = [each for each in run.answers if topic_of(each.metric) == topic or _is_cause(each.question, topic)]
        wanted = [each for each in related if topic != "directions" or each.question != "Due to few tokens?"]
        texts = [in_rows(each.sentence, run.of_tokens) for each in wanted]
        return " ".join(f"{text[:1].upper()}{text[1:]}." for text in texts if text)
    metric = {"cone": "mean_cosine", "directions": "participation_ratio", "causes": "top_coordinate"}.get(topic, "")
    curves = {run.label: curve for run in runs if (curve := run.curves(metric)) is not None}
    if not curves:
        return ""
    ranges = "; ".join(f"{name} {value_range(curve.values, is_percent(metric))}" for name, curve in curves.items())
    return f"{title(metric)}: {ranges}."


def _verdicts_in_words(tests: Sequence[TangentSummary]) -> str:
    """How many tests at the largest rank have which verdict, and how the energy compares with chance."""
    hidden = [each for each in tests if each.gradient == "hidden"] or list(tests)
    if not hidden:
        return ""
    rank = max(each.rank for each in hidden)
    shown = [each for each in hidden if each.rank == rank]
    counts = Counter(each.words for each in shown)
    words = "; ".join(f"“{name}” in {count}" for name, count in counts.most_common())
    low, high = (f"{end:.2g}" for end in (min(e.enrichment for e in shown), max(e.enrichment for e in shown)))
    energy = low if low == high else f"{low}–{high}"
    tests_of = f"{len(shown)} test{'s' if len(shown) > 1 else ''} with a basis of rank {rank}"
    return f"Of {tests_of}: {words}. The gradients have {energy} times the energy in the basis that chance gives."


def _is_cause(question: str, topic: str) -> bool:
    return topic == "causes" and question.startswith("Due to few")


def _profiles(runs: Sequence[ReportedRun], *metrics: str) -> list[Figure]:
    """One figure over layers for each of these metrics that the runs have."""
    figures = []
    for metric in metrics:
        curves = curves_by_run(runs, metric)
        if curves:
            texts = (f"{name} {value_range(c.values, is_percent(metric))}" for name, c in curves.items())
            alt = f"{title(metric)} over layers: {'; '.join(texts)}."
            order = [run.label for run in runs]
            figures.append(layer_figure(curves, title(metric), alt, percent=is_percent(metric), order=order))
    return figures


def _cone(runs: Sequence[ReportedRun]) -> tuple[list[Figure], list[SectionTable]]:
    figures = _profiles(runs, "mean_cosine", "relative_drift", "mean_cosine_centred")
    return figures, _numbers(runs, "cone", figures)


def _directions(runs: Sequence[ReportedRun]) -> tuple[list[Figure], list[SectionTable]]:
    figures = _profiles(runs, "participation_ratio")
    if not figures:
        figures = _profiles(runs, "effective_rank")
    figures += _profiles(runs, "isoscore")[: 3 - len(figures)]
    figures += _profiles(runs, "two_nn")
    figures += _by_index(runs, "gride", "neighbours")
    if any(run.kind != "vectors" for run in runs):
        figures = [*_by_index(runs, "spectrum", "direction", percent=True), *figures]
    return figures, _numbers(runs, "directions", figures)


def _numbers(runs: Sequence[ReportedRun], topic: str, figures: Sequence[Figure]) -> list[SectionTable]:
    """The numbers of rows without layers, which have no profile."""
    table = number_table([run for run in runs if run.kind == "vectors"], topic)
    return [] if table is None else [table]


def _by_index(runs: Sequence[ReportedRun], metric: str, x_title: str, *, percent: bool = False) -> list[Figure]:
    """A curve by index: of one run at the first, the most notable and the last layer; of several at the notable one."""
    series: dict[str, list[Row]] = {}
    for run in runs:
        rows = _main_rows(run, metric)
        layers = sorted({row["layer"] for row in rows if row["layer"] is not None})
        picked = _shown_layers(run, layers)
        shown: list[float | None] = [*(picked if len(runs) == 1 else picked[:1])]
        final = next((row["layer"] for row in rows if row["site"].endswith("final")), None)
        for layer in shown or [None]:
            part = sorted((row for row in rows if row["layer"] == layer), key=lambda row: row["index"])
            name = "" if layer is None else layers_text([layer], final)
            label = name if len(runs) == 1 else run.label
            if len(part) > 2:
                series[label] = part
    if not series:
        return []
    alt = f"{title(metric)} of {len(series)} curve{'s' if len(series) > 1 else ''}."
    plain = "Share of the variance by direction" if metric == "spectrum" else title(metric)
    return [index_figure(series, plain, alt, x_title=x_title, percent=percent, metric=metric)]


def _main_rows(run: ReportedRun, metric: str) -> list[Row]:
    """The rows with an index of the main stream at the last step, without sink tokens if they were measured."""
    rows = [
        row
        for row in run.rows.get(metric, ())
        if row["value"] is not None and row["index"] is not None and row["stream"] == run.stream
    ]
    last = max((row["step"] for row in rows), default=0)
    rows = [row for row in rows if row["step"] == last]
    policies = {row["tokens"] for row in rows}
    policy = WITHOUT if WITHOUT in policies else next(iter(sorted(policies)), "all")
    rows = [row for row in rows if row["tokens"] == policy]
    variants = {key: rows[0][key] for key in rows[0] if key.startswith("v_")} if rows else {}
    return [row for row in rows if all(row.get(key, NONE) == value for key, value in variants.items())]


def _shown_layers(run: ReportedRun, layers: Sequence[float]) -> list[float]:
    """The layer with the strongest finding first, then the first and the last."""
    curve = run.curves("spectral_anisotropy")
    notable = curve.extreme()[0] if curve is not None else None
    inner = [layer for layer in layers if layer >= 0] or list(layers)
    picked = [notable] if notable in layers else []
    picked += [inner[0], inner[-1]] if inner else []
    return list(dict.fromkeys(layer for layer in picked if layer is not None))


def _causes(runs: Sequence[ReportedRun]) -> tuple[list[Figure], list[SectionTable]]:
    figures = []
    removal = {}
    for run in runs:
        rows = [r for r in run.rows.get("removal_curve", ()) if r["value"] is not None and r["stream"] == run.stream]
        if rows:
            curves: dict[str, list[Row]] = {}
            for row in sorted(rows, key=lambda row: row["index"]):
                curves.setdefault(row["site"], []).append(row)
            site = max(curves, key=lambda site: curves[site][0]["value"] - curves[site][-1]["value"])
            removal[site_text(site) if len(runs) == 1 else run.label] = curves[site]
    if removal:
        rows_name = "tokens" if runs[0].of_tokens else "rows"
        first = next(iter(removal.values()))
        ends = [number(row["value"], percent=True) for row in (first[0], first[-1])]
        plain = f"Top direction's share without the largest {rows_name}"
        if len(runs) == 1 and runs[0].of_tokens:
            plain, removal = f"{plain}, {next(iter(removal))}", {"": first}
        alt = f"{plain}: {ends[0]} with all of them, {ends[1]} without {first[-1]['index']:,}."
        figures.append(
            index_figure(removal, plain, alt, x_title=f"{rows_name} removed", percent=True, metric="removal_curve")
        )
    figures += _profiles(runs, "top_coordinate", "outlier_dimensions", "feature_kurtosis")
    tables = [table for run in runs if (table := massive_table(run, named=len(runs) > 1)) is not None]
    return figures, [*tables, *_numbers(runs, "causes", figures)]


def _attention(runs: Sequence[ReportedRun]) -> tuple[list[Figure], list[SectionTable]]:
    figures = []
    for metric in _HEADS:
        for run in runs:
            rows = _head_rows(run, metric)
            if rows:
                name = f"{run.label}: {title(metric)}" if len(runs) > 1 else title(metric)
                top = max(rows, key=lambda row: abs(row["value"]))
                alt = f"{name} by layer and head; largest at layer {top['layer']:g}, head {top['head']}."
                figures.append(head_map(rows, name, alt, metric=metric, percent=is_percent(metric)))
    return figures[: _MOST_MAPS * max(1, min(len(runs), 2))], []


def _head_rows(run: ReportedRun, metric: str) -> list[Row]:
    """The rows of single heads at the last step, of one variant and token policy."""
    rows = [r for r in run.rows.get(metric, ()) if r["value"] is not None and r["head"] is not None]
    rows = [row for row in rows if row["layer"] is not None]
    if not rows:
        return []
    last = max(row["step"] for row in rows)
    headline = run.cards.get(metric, {}).get("headline", {})
    wanted = {f"v_{key}": value for key, value in headline.items()} if isinstance(headline, Mapping) else {}
    first = next((row for row in rows if all(row.get(key) == value for key, value in wanted.items())), rows[0])
    same = [*(key for key in first if key.startswith("v_")), "tokens", "stream"]
    kept = [row for row in rows if row["step"] == last and all(row[key] == first[key] for key in same)]
    return cells_of(kept, ("layer", "head"))


def _gradients(runs: Sequence[ReportedRun]) -> tuple[list[Figure], list[SectionTable]]:
    tests = [each for run in runs for each in tangent_tests(run)]
    if tests:
        alt = "Energy of the gradients in a basis fitted on activations, by layer, against its nulls."
        figure = energy_figure(tests, alt, 240) if any(run.kind != "tangent" for run in runs) else None
        ranks = _rank_figure(tests)
        return [each for each in (figure, ranks) if each is not None], tangent_tables(tests)
    figures: list[Figure] = []
    for run in runs:
        rows = [row for row in run.rows.get("gradient_energy", ()) if row["value"] is not None]
        if rows:
            last = max(row["step"] for row in rows)
            kept = [row for row in rows if row["step"] == last and row["layer"] is not None]
            rank = max((row["index"] or 0 for row in kept), default=0)
            by_layer = {row["layer"]: row for row in kept if (row["index"] or 0) == rank}
            figures += _energy_profile(run, dict(sorted(by_layer.items())), rank, named=len(runs) > 1)
    return figures, []


def _energy_profile(run: ReportedRun, rows: Mapping[float, Row], rank: int, *, named: bool) -> list[Figure]:
    from anisoscope.report.layer_curves import LayerCurves

    if len(rows) < 2:
        return []
    curve = LayerCurves("gradient_energy", rows, {}, sinks_out=False, final=None, low=False)
    plain = title("gradient_energy") + (f", rank {rank}" if rank else "") + (f" ({run.label})" if named else "")
    alt = f"{plain}: {value_range(curve.values, True)} over layers."
    return [layer_figure({run.label: curve}, plain, alt, percent=True)]


def _rank_figure(tests: Sequence[Any]) -> Figure | None:
    """The energy by rank at the site with the largest effect, against chance."""
    hidden = [each for each in tests if each.gradient == "hidden"] or list(tests)
    top = max(hidden, key=lambda each: each.enrichment)
    same = [each for each in hidden if (each.site, each.proxy, each.basis) == (top.site, top.proxy, top.basis)]
    if len({each.rank for each in same}) < 2:
        return None
    rows = [
        {
            **dict.fromkeys(("low", "high")),
            "index": each.rank,
            "value": each.energy.value or 0.0,
            "null": each.level,
            "site": each.site,
            "n": each.energy.n,
        }
        for each in sorted(same, key=lambda each: each.rank)
    ]
    name = f"{top.proxy}, {top.site.removeprefix('grad.')}"
    alt = f"Share of the gradients' energy by the rank of the basis, {name}."
    plain = "Energy by the rank of the basis"
    return index_figure({name: rows}, plain, alt, x_title="rank", percent=True, metric="gradient_energy")


def _development(runs: Sequence[ReportedRun]) -> tuple[list[Figure], list[SectionTable]]:
    trained = [run for run in runs if run.kind == "training"]
    if not trained:
        return [], []
    training, figures = training_axis(trained), []
    if any(run.losses for run in trained):
        figures.append(loss_figure(trained, training, "Training and validation loss over steps.", 150))
    for metric in _MAPS:
        for run in trained:
            name = f"{run.label}: {title(metric)}" if len(trained) > 1 else title(metric)
            figure = map_of(run, metric, name, f"{name} by layer and training step.", training)
            figures += [] if figure is None else [figure]
    for metric in _LOOP:
        lines = {run.label if len(trained) > 1 else metric: run.points(metric) for run in trained}
        lines = {name: points for name, points in lines.items() if len(points) > 1}
        if lines:
            alt = f"{title(metric)} over training steps."
            figures.append(steps_figure(lines, title(metric), alt, training, metric=metric))
    return figures[:10], []


def _concepts(runs: Sequence[ReportedRun]) -> tuple[list[Figure], list[SectionTable]]:
    """The concepts of the last layer over the steps, and a table of all."""
    figures: list[Figure] = []
    tables: list[SectionTable] = []
    for run, lives in _lives(runs):
        site, training = lives[-1].site, training_axis([run])
        name = _named(run, f"Concepts at {site} over training steps, colour: share of the rows", runs)
        figures.append(life_figure([life for life in lives if life.site == site], name, training))
        agreement = stability_figure(
            run, _named(run, "Agreement of fits with different seeds, mean cosine over layers", runs), training
        )
        figures += [] if agreement is None else [agreement]
        tables += concept_tables(lives, site)
    return figures, tables


def _lives(runs: Sequence[ReportedRun]) -> list[tuple[ReportedRun, list[ConceptLife]]]:
    return [(run, lives) for run in runs if "concepts_born" in run.groups and (lives := concept_lives(run))]


def _named(run: ReportedRun, text: str, runs: Sequence[ReportedRun]) -> str:
    """A text with the run's name if there are several runs."""
    return text if len(runs) == 1 else f"{run.label}: {text}"


def _claims(runs: Sequence[ReportedRun]) -> tuple[list[Figure], list[SectionTable]]:
    table = verdict_table([row for run in runs for row in run.rows.get("verdict", ())])
    return [], [] if table is None else [table]


def general_notes(runs: Sequence[ReportedRun], topic: str = OTHER) -> list[str]:
    """The caveats that concern the whole run; of the topic `details`, those of single metrics."""
    return notes_by_topic(runs).get(topic, [])
