"""The one thing to know about a report: a short sentence, and one with the numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anisoscope.report.layer_curves import LayerCurves
from anisoscope.report.questions import value_range
from anisoscope.report.reported_run import ReportedRun
from anisoscope.report.sentences import in_rows, layers_text, number, standing_out
from anisoscope.report.sink_words import quoted, sink_words
from anisoscope.report.streams import site_text
from anisoscope.report.tiles import tangent_tests

_MOST = 0.5  # a share from here on is "most"
_CONE = 0.3  # a mean cosine from here on is a cone
_CENTRED = 0.1  # a cone of which less than this share is left after centring is due to the mean
_FEW = 0.1  # a participation ratio below this share of its null is few directions
_CLOSE = 0.8  # curves whose means differ by less than this ratio are similar
_NAMED = 4  # tokens that are quoted


@dataclass(frozen=True)
class Thesis:
    """What a reader should remember: `title` in a few words, `detail` with the numbers."""

    title: str
    detail: str = ""


def thesis_of(runs: Sequence[ReportedRun], kind: str) -> Thesis:
    """The thesis of a page."""
    if kind == "claims":
        return _claims(runs)
    if kind == "tangent":
        return _tangent(runs)
    if kind == "training":
        return _training(runs)
    if kind == "similarity":
        return Thesis(
            "Which layers of the two models are alike?", "Bright cells: the two layers have similar geometry."
        )
    return _one_run(runs[0]) if len(runs) == 1 else _several(runs)


def _one_run(run: ReportedRun) -> Thesis:
    """The first that applies: few tokens cause it, one direction, a cone, few directions, nothing."""
    share, cone, ratio = (
        run.curves(metric) for metric in ("spectral_anisotropy", "mean_cosine", "participation_ratio")
    )
    subject = "this model" if run.of_tokens else "these vectors"
    detail = _answer(run, "spectral_anisotropy") or _answer(run, "mean_cosine")
    if share is not None and max(share.values) < _MOST and (text := _sinks(run, share)):
        if max(row["value"] for row in share.all.values()) < _MOST:
            return Thesis("A few tokens cause most of what looks like one direction.", text)
        return Thesis(f"A few tokens make {subject} look one-dimensional.", text)
    few = next((each for each in run.answers if each.question == "Due to few rows?" and each.reading == "yes"), None)
    if few is not None and share is not None:
        text = in_rows(f"{detail} {few.sentence[:1].upper()}{few.sentence[1:]}.", run.of_tokens)
        return Thesis(f"A few rows make {subject} look one-dimensional.", text)
    if share is not None and max(share.values) >= _MOST:
        return Thesis(f"One direction holds most of the variance{_where(share)}.", detail)
    if cone is not None and max(cone.values) >= _CONE:
        centred = run.curves("mean_cosine_centred")
        left = max(map(abs, centred.values)) if centred is not None else None
        mean = ", and only because of their mean" if left is not None and left < _CENTRED * max(cone.values) else ""
        rows = "Tokens" if run.of_tokens else "The vectors"
        return Thesis(f"{rows} point the same way: a cone{mean}.", _answer(run, "mean_cosine"))
    if ratio is not None and ratio.nulls and min(ratio.values) < _FEW * max(ratio.nulls):
        return Thesis(f"The variance of {subject} lies in few directions.", _answer(run, "participation_ratio"))
    if share is None and cone is None and ratio is None:
        return Thesis(run.model_name or run.label)
    owner = "this model's tokens" if run.of_tokens else "these vectors"
    return Thesis(f"No direction dominates {owner}.", detail)


def _answer(run: ReportedRun, metric: str) -> str:
    """The sentence that answers the question of a metric."""
    text = next((each.sentence for each in run.answers if each.metric == metric and each.curve), "")
    text = in_rows(text, run.of_tokens)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _where(curve: LayerCurves) -> str:
    """` in layers 3–5`, the layers that stand out; nothing if all do."""
    stretches, rest = standing_out({layer: row["value"] for layer, row in curve.main.items()}, "high")
    if not rest or len(stretches) > 1:
        return ""
    return f" in {layers_text(stretches[0], curve.final)}"


def _sinks(run: ReportedRun, share: LayerCurves) -> str:
    """How much of the top direction's share is due to sink tokens; "" if little is."""
    caused = share.caused_by_sinks()
    if not caused:
        return ""
    wide = _stretch(list(share.main), caused)
    before = value_range([share.all[layer]["value"] for layer in wide], True)
    after = value_range([share.main[layer]["value"] for layer in wide], True)
    nulls = [share.main[layer]["null"] for layer in wide if share.main[layer]["null"] is not None]
    noise = f" (no structure: {value_range(nulls, True)})" if nulls else ""
    where = layers_text([min(wide), max(wide)], share.final)
    left_out = share.left_out(wide)
    tokens = "first and massive tokens"
    if left_out is not None:
        tokens = f"{left_out[0]:,} of {left_out[1]:,} tokens ({_left_out(run)})"
    return (
        f"{where[:1].upper()}{where[1:]}: over all tokens one direction holds {before} of the variance. "
        f"Leave out {tokens} and it is {after}{noise}."
    )


def _stretch(layers: Sequence[float], caused: Mapping[float, float]) -> list[float]:
    """The layers with a gap around the widest one, without a layer in between that has none."""
    stretches: list[list[float]] = [[]]
    for layer in sorted(layers):
        if layer in caused:
            stretches[-1].append(layer)
        elif stretches[-1]:
            stretches.append([])
    widest = max(caused, key=lambda layer: caused[layer])
    return next(stretch for stretch in stretches if widest in stretch)


def _left_out(run: ReportedRun) -> str:
    """What is left out, in words."""
    removed = run.info["removed"]
    names = ", ".join(quoted(word) for word in sink_words(removed)[:_NAMED] if word.quoted)
    massive = f" and {removed['count']:,} massive ones" if removed["count"] else ""
    return f"each window's first{massive}{f', such as {names}' if names else ''}"


def _several(runs: Sequence[ReportedRun]) -> Thesis:
    """What distinguishes the runs most: sink tokens, or the top direction's share."""
    shares = {run.label: curve for run in runs if (curve := run.curves("spectral_anisotropy")) is not None}
    if len(shares) < 2:
        return Thesis(f"{len(runs)} runs, question by question")
    ranges = "; ".join(f"{label} {value_range(curve.values, True)}" for label, curve in shares.items())
    sinks = any(curve.sinks_out for curve in shares.values())
    means = {label: sum(curve.values) / len(curve.values) for label, curve in shares.items()}
    low, high = min(means, key=lambda label: means[label]), max(means, key=lambda label: means[label])
    close = means[low] >= _CLOSE * means[high]
    policy = "Without first and massive tokens" if sinks else "Over all tokens"
    similar = "is similar" if close else f"is largest in {high}"
    detail = f"{policy}, the top direction's share of the variance {similar}: {ranges}."
    caused = {label: c for label, c in shares.items() if c.caused_by_sinks() and max(c.values) < _MOST}
    if caused:
        names, others = _names(list(caused)), _names([label for label in shares if label not in caused])
        if min(max(row["value"] for row in curve.all.values()) for curve in caused.values()) >= _MOST:
            effect = f"make {names if others else 'all of these models'} look one-dimensional"
            return Thesis(f"A few tokens {effect}{f', but not {others}' if others else ''}.", detail)
        where = f"in {names}, but not in {others}" if others else "in all of these models"
        return Thesis(f"A few tokens cause most of what looks like one direction {where}.", detail)
    if close:
        return Thesis(f"{_names(list(shares))} are about equally anisotropic.", detail)
    return Thesis(f"{high} is more anisotropic than {low}.", detail)


def _names(labels: Sequence[str]) -> str:
    if not labels:
        return ""
    *most, last = labels
    return f"{', '.join(most)} and {last}" if most else last


def _training(runs: Sequence[ReportedRun]) -> Thesis:
    if len(runs) > 1:
        return _several_trainings(runs)
    run = runs[0]
    changes = _changes(run)
    losses = next(iter(run.losses.values()), [])
    detail = [_loss_text(name, [value for _, value in points]) for name, points in run.losses.items()]
    if run.alerts:
        step, text = run.alerts[0]
        count = len(run.alerts)
        detail.append(f"{count} alert{'s' if count > 1 else ''}, the first at step {step:,} ({text}).")
    last = max([*run.steps, *(step for step, _ in losses)])
    if not changes:
        return Thesis(f"{last:,} steps of training", " ".join(detail))
    text = max(changes, key=lambda each: changes[each])
    return Thesis(f"In {last:,} steps {text}.", " ".join(["Means over layers.", *detail]))


def _loss_text(name: str, losses: Sequence[float]) -> str:
    verb = "fell" if losses[-1] < losses[0] else "rose"
    return f"The {name} {verb} from {number(losses[0])} to {number(losses[-1])}."


_CHANGING = {
    "spectral_anisotropy": ("the top direction's share of the variance", True),
    "mean_cosine": ("the mean cosine between tokens", False),
    "isoscore": ("the IsoScore", False),
    "participation_ratio": ("the number of directions that share the variance", False),
    "two_nn": ("the intrinsic dimension", False),
}


def _changes(run: ReportedRun) -> Mapping[str, float]:
    """How the headline metrics changed on average over layers, in words, with the size of the change."""
    changes: dict[str, float] = {}
    for metric, (name, percent) in _CHANGING.items():
        rows = [row for row in run.rows.get(metric, ()) if row["stream"] == run.stream]
        steps = sorted({row["step"] for row in rows if row["value"] is not None})
        if len(steps) < 2:
            continue
        first, last = (run.curves(metric, step) for step in (steps[0], steps[-1]))
        if first is None or last is None:
            continue
        before, after = (sum(curve.values) / len(curve.values) for curve in (first, last))
        scale = max(abs(before), abs(after)) or 1.0
        ends = number(before, percent), number(after, percent)
        if ends[0] != ends[1]:
            verb = "rose" if after > before else "fell"
            changes[f"{name} {verb} from {ends[0]} to {ends[1]}"] = abs(after - before) / scale
    return changes


def _several_trainings(runs: Sequence[ReportedRun]) -> Thesis:
    last = {run.label: points[-1][1] for run in runs for points in list(run.losses.values())[-1:] if points}
    shares = _several(runs)
    if len(last) < 2:
        return shares
    best = min(last, key=lambda label: last[label])
    ends = "; ".join(f"{label} {number(loss)}" for label, loss in last.items())
    return Thesis(f"{shares.title}", f"Loss at the end: {ends} ({best} is the lowest). {shares.detail}")


def _tangent(runs: Sequence[ReportedRun]) -> Thesis:
    tests = [each for run in runs for each in tangent_tests(run)]
    hidden = [each for each in tests if each.gradient == "hidden"] or tests
    if not hidden:
        return Thesis("Do the gradients follow the activations?")
    findings = [each for each in hidden if each.is_finding]
    top = max(findings or hidden, key=lambda each: each.enrichment)
    energy, chance = number(top.energy.value or 0.0, percent=True), number(top.level, percent=True)
    where = f"{site_text(top.site)}, {top.proxy} of rank {top.rank}"
    detail = f"Largest effect: {energy} of the gradients' energy lies in the basis ({where}; chance {chance})."
    if not findings:
        return Thesis("No relation between gradients and activations was found.", detail)
    weak = all(each.enrichment < 1.25 for each in findings)
    size = ", but hardly more than chance" if weak else ""
    return Thesis(f"Gradients follow the activations in {len(findings)} of {len(hidden)} tests{size}.", detail)


def _claims(runs: Sequence[ReportedRun]) -> Thesis:
    rows = [row for run in runs for row in run.rows.get("verdict", ())]
    published = [row for row in rows if row.get("v_line") == "as published"] or rows
    counts = Counter(str(row.get("v_verdict")) for row in published)
    settled = counts["reproduced"] + counts["not reproduced"]
    total = len(published)
    if not settled:
        smoke = counts["smoke test"] == total
        why = (
            "A smoke test: the models are too small for verdicts." if smoke else "Each verdict lists what was measured."
        )
        return Thesis(f"None of {total} claims is settled by these runs.", why)
    controlled = [row for row in rows if row.get("v_line") != "as published"]
    kept = sum(row.get("v_verdict") == "reproduced" for row in controlled)
    detail = f"Under the strongest control, {kept} of {len(controlled)} are reproduced." if controlled else ""
    failed, left = counts["not reproduced"], total - settled
    others = [f"{failed} {'is' if failed == 1 else 'are'} not"] if failed else []
    others += [f"{left} stay{'s' if left == 1 else ''} open"] if left else []
    held = counts["reproduced"]
    claims = f"{held} of {total} claims {'is' if held == 1 else 'are'} reproduced as published"
    return Thesis(", ".join([claims, *others]) + ".", detail)
