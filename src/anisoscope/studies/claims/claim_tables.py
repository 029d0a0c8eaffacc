"""Markdown tables of claims, rules and verdicts, as in docs/claims.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anisoscope.errors import InputError
from anisoscope.store.run import Run
from anisoscope.studies.claims.claim import CONTROL, PUBLISHED, Claim, Condition, Rule
from anisoscope.studies.claims.estimate import UNBOUNDED, Estimate, Range


def rules_table(claims: Sequence[Claim]) -> str:
    """Return a Markdown table with both rules of each claim and what it needs."""
    head = ("| id | claim | as published | strongest control | needs |", "|---|---|---|---|---|")
    rows = (" | ".join(map(_cell, _cells(claim))) for claim in claims)
    return "\n".join([*head, *(f"| {row} |" for row in rows)])


def _cells(claim: Claim) -> tuple[str, ...]:
    return claim.id, claim.statement, _rule(claim.published), _rule(claim.control), claim.needs


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _rule(rule: Rule) -> str:
    return " **or** ".join("; ".join(map(_condition, conditions)) for conditions in rule) or "–"


def _condition(condition: Condition) -> str:
    if condition.gate:
        return f"only if {condition.description} > {condition.threshold:g}"
    return f"{condition.description} {condition.requirement}"


# --- verdicts -----------------------------------------------------------------------------------------------------


def verdicts_summary(folder: str | Path, claims: Sequence[Claim]) -> dict[str, Any]:
    """Return the request of a run of claims, its duration, and every verdict with its effect and reason.

    Raises:
        InputError: The folder is a run of something else.
    """
    run = Run.open(folder)
    info = run.info
    if info.get("kind") != "claims":
        raise InputError(f"{folder} is a run, but not of claims.")
    verdicts = [
        {
            **{name: record.variant[name] for name in ("claim", "line", "verdict", "quantity")},
            "effect": record.value,
            "error": record.error,
            "n": record.n,
            "unit": None if record.error_kind is None else record.error_kind.split("-", 2)[2],
            "reason": record.note,
        }
        for record in run.records()
        if record.metric == "verdict"
    ]
    order = [
        (claim.id, line) for claim in claims for line in (PUBLISHED, CONTROL)
    ]  # an interrupted run has its verdicts in another order
    verdicts.sort(key=lambda each: order.index((each["claim"], each["line"])))
    return {**{name: info.get(name) for name in ("settings", "versions", "machine", "minutes")}, "verdicts": verdicts}


def verdicts_table(summary: Mapping[str, Any], claims: Sequence[Claim]) -> str:
    """Return a Markdown table of a summary: one row per claim, with the outcome of each line and what decided it.

    The duration of the run follows the table.
    """
    head = ("| id | as published | strongest control |", "|---|---|---|")
    ranges = {condition.quantity: condition.within for claim in claims for condition in claim.conditions}
    outcomes = {(each["claim"], each["line"]): _outcome(each, ranges) for each in summary["verdicts"]}
    rows = ([outcomes.get((claim.id, line), "not run") for line in (PUBLISHED, CONTROL)] for claim in claims)
    lines = [*head, *(f"| {claim.id} | {' | '.join(row)} |" for claim, row in zip(claims, rows, strict=True))]
    return "\n".join([*lines, "", _duration(summary)])


def _duration(summary: Mapping[str, Any]) -> str:
    minutes, versions = summary["minutes"], summary["versions"]
    return (
        f"It took {minutes['clock']:.0f} minutes by the clock and {minutes['processor']:.0f} of processor "
        f"({summary['machine']}; anisoscope {versions['anisoscope']}, torch {versions['torch']})."
    )


def _outcome(verdict: Mapping[str, Any], ranges: Mapping[str, Range]) -> str:
    text = f"**{verdict['verdict']}**"
    if not verdict["quantity"]:
        return text
    if verdict["effect"] is None:
        return _cell(f"{text}: {verdict['quantity']} was not measured")
    unit, within = verdict["unit"] or "units", ranges.get(verdict["quantity"], UNBOUNDED)
    effect = Estimate(verdict["effect"], verdict["error"], verdict["n"], unit, within)
    return _cell(f"{text}: {verdict['quantity']}: {effect}")
