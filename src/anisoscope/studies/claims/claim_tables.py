"""Markdown tables of claims, rules, verdicts, power and losses, as in docs/claims.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from anisoscope.studies.claims.claim import Claim, Verdict
from anisoscope.studies.claims.conditions import Condition, Rule
from anisoscope.studies.claims.disputes import DISPUTES, NOT_RUN, measured_on

Judged = Sequence[tuple[Claim, Sequence[Verdict]]]


def rules_table(claims: Sequence[Claim]) -> str:
    """Return a Markdown table with both rules of each claim and what it needs."""
    rows = [(claim.id, _gates(claim), _rule(claim.published), _rule(claim.control), claim.needs) for claim in claims]
    return markdown_table(("id", "testable only if", "as published", "strongest control", "needs"), rows)


def _gates(claim: Claim) -> str:
    scope = [f"it is about {claim.scope}"] if claim.scope else []
    return "; ".join([*scope, *(condition.quantity for condition in claim.gates)]) or "–"


def _rule(rule: Rule) -> str:
    return " **or** ".join("; ".join(map(_condition, conditions)) for conditions in rule) or "–"


def _condition(condition: Condition) -> str:
    return f"{'only if ' if condition.gate else ''}{condition.description} {condition.requirement}"


# --- verdicts -----------------------------------------------------------------------------------------------------


OVERVIEW = ("claim", "the paper found", "as published", "under control", "on what", "what decided")


def overview_table(claims: Sequence[Claim], judged: Judged) -> str:
    """Return the table that visitors read first: the headline claims of each dispute, in plain words."""
    known, verdicts = {claim.id: claim for claim in claims}, {claim.id: pair for claim, pair in judged}
    rows: list[Sequence[str]] = []
    for dispute in DISPUTES:
        rows.append((f"**{dispute.question}**", *[""] * (len(OVERVIEW) - 1)))
        rows += [overview_row(known[name], verdicts.get(name)) for name in dispute.headline if name in known]
    return markdown_table(OVERVIEW, rows)


def overview_row(claim: Claim, verdicts: Sequence[Verdict] | None) -> tuple[str, ...]:
    """Return a claim in plain words, what the paper found, both outcomes, what was run, and what decided."""
    plain = f"{claim.plain} ({claim.id})"
    if verdicts is None:
        return plain, claim.found, NOT_RUN, NOT_RUN, "", ""
    outcomes = (f"**{each.outcome}**" for each in verdicts)
    return plain, claim.found, *outcomes, measured_on(verdicts), what_decided(verdicts)


def what_decided(verdicts: Sequence[Verdict]) -> str:
    """Return the deciding quantity: of the controlled line if the two differ, or of both if they agree."""
    published, control = verdicts
    decided = control if control.outcome != published.outcome or not published.quantity else published
    if not decided.quantity:
        return decided.reasons.conditions[0] if decided.reasons.conditions else ""
    value = "not measured" if decided.effect is None else str(decided.effect)
    return f"{decided.quantity}: {value}"


def verdicts_table(claims: Sequence[Claim], judged: Judged) -> str:
    """Return one row per claim, with the outcome of each line and the quantity that decided it."""
    verdicts = {claim.id: pair for claim, pair in judged}
    rows = [(c.id, c.plain, *(map(_outcome, verdicts[c.id]) if c.id in verdicts else [NOT_RUN] * 2)) for c in claims]
    return markdown_table(("id", "claim", "as published", "strongest control"), rows)


def sizes_table(small: Judged, medium: Judged) -> str:
    """Return the verdicts of two sizes next to each other, for the claims with evidence of the larger one."""
    smaller = {claim.id: pair for claim, pair in small}
    rows = [
        (f"{claim.plain} ({claim.id})", _pair(smaller.get(claim.id)), _pair(verdicts), what_decided(verdicts))
        for claim, verdicts in medium
    ]
    return markdown_table(("claim", "small: as published, under control", "medium", "what decided medium"), rows)


def _pair(verdicts: Sequence[Verdict] | None) -> str:
    return NOT_RUN if verdicts is None else ", ".join(f"**{each.outcome}**" for each in verdicts)


def _outcome(verdict: Verdict) -> str:
    text = f"**{verdict.outcome}**"
    if not verdict.quantity:
        return text
    value = "was not measured" if verdict.effect is None else f"{verdict.effect}"
    return f"{text}: {verdict.quantity}: {value}"


def power_table(judged: Judged) -> str:
    """Return how each rule judges simulated worlds at the noise of its evidence."""
    rows = [
        (
            claim.id,
            verdict.line,
            f"{verdict.power.power:.0%}",
            f"{verdict.power.false_alarms:.0%}",
            f"{verdict.power.refuted:.0%}",
        )
        for claim, verdicts in judged
        for verdict in verdicts
        if verdict.power is not None
    ]
    head = ("id", "line", "reproduced if it holds (power)", "reproduced if not (false alarm)", "refuted if not")
    return markdown_table(head, rows)


def losses_table(losses: Sequence[Mapping[str, Any]]) -> str:
    """Return the loss of every lab training next to counts of neighbouring tokens, in nats per token."""
    rows = [
        (
            row["cell"],
            str(row["steps"]),
            str(len(row["losses"])),
            f"{fmean(row['losses']):.2f} ({min(row['losses']):.2f}–{max(row['losses']):.2f})",
            f"{row['counts']:.2f}",
            f"{row['frequencies']:.2f}",
            "yes" if row["counts"] - max(row["losses"]) > 0.3 else "no",
            f"{row['change_at_end']:.1%}",
        )
        for row in losses
    ]
    head = ("training", "steps", "seeds", "loss", "counts of neighbours", "token frequencies", "learnt", "last quarter")
    return markdown_table(head, rows)


def duration(summary: Mapping[str, Any]) -> str:
    """Return how long a run took, on what."""
    minutes, versions = summary["minutes"], summary["versions"]
    return (
        f"Measuring took {minutes['clock']:.0f} minutes by the clock and {minutes['processor']:.0f} of processor "
        f"({summary['machine']}; anisoscope {versions['anisoscope']}, torch {versions['torch']})."
    )


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
