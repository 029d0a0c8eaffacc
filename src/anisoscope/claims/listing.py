"""The claims and their rules as a page: what docs/claims.md shows."""

from __future__ import annotations

from collections.abc import Sequence

from anisoscope.claims.claim import Claim, Condition, Rule


def rules_table(claims: Sequence[Claim]) -> str:
    """A Markdown table: each claim, both of its rules, and what it is run on."""
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
        return f"only where {condition.says} > {condition.threshold:g}"
    return f"{condition.says} {'>' if condition.above else '<'} {condition.threshold:g}"
