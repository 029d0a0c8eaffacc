"""Concepts during training: semi-NMF at each due step, matched from step to step, with birth, drift and death.

At each due step and layer, fits with different seeds factorise the same held-out rows. The one that agrees best with
the others counts. A concept is born when all fits find it, and lives as long as this one and another still do. So what
a single fit finds by chance gets no number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.records import Record
from anisoscope.stats.sample import Sample
from anisoscope.tangent.concept_matching import ConceptMatches, MergedConcepts, match_concepts, merge_copies
from anisoscope.tangent.concepts import typical_tokens
from anisoscope.tangent.metric_cards import tangent_cards
from anisoscope.tangent.semi_nmf import factorise

KEPT = "concepts"  # the name of the stored state, in place of a token policy
_SEEDS = 3  # fits at each due step
_ROUNDS = 40
_WORDS = 5  # tokens that describe a concept
_WIDEST = 0.5  # the most concepts, as a share of the rows and of the dimensions

Decode = Callable[[list[int]], str]


@dataclass(frozen=True)
class LivingConcept:
    """A concept that the last due step found."""

    number: int
    born: int  # step
    at_birth: Tensor  # (d,) direction
    now: Tensor  # (d,) direction
    words: str
    share: float = 0.0  # of all concepts' squared length


@dataclass(frozen=True)
class SiteConcepts:
    """The concepts of one site that live at a due step, and the number of the next one that is born."""

    step: int
    living: tuple[LivingConcept, ...] = ()
    next_number: int = 0


@dataclass
class ConceptHistory:
    """Follows the concepts of every residual site over training.

    Args:
        count: Concepts per site; 0 for none.
        seed: Of the fits.
        tokenizer: Has a method `decode` from token ids to text, or is such a function; None for token ids.

    Raises:
        InputError: The number is negative, or the tokenizer cannot decode.
    """

    count: int
    seed: int = 0
    tokenizer: Any = None
    sites: dict[str, SiteConcepts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise InputError(f"concepts={self.count} is no number of concepts. Use 8, or 0 for none.")
        decode = getattr(self.tokenizer, "decode", self.tokenizer)
        if decode is not None and not callable(decode):
            raise InputError("The tokenizer has no method `decode`. Pass a tokenizer, or a function from ids to text.")
        self._decode: Decode | None = decode

    def update(self, site: str, sample: Sample, make: Callable[..., Record], step: int) -> list[Record]:
        """Fit the concepts of a site, match them with those of the last due step, and return the records.

        Args:
            site: The site.
            sample: Its held-out rows.
            make: Makes a record of this step, from site, metric, value and more columns.
            step: The training step.
        """
        n, d = sample.x.shape
        make = partial(make, site, n=n)
        count = min(self.count, int(_WIDEST * n), int(_WIDEST * d))
        if count < 1:
            return []
        before = self.sites.get(site)
        fits = [factorise(sample.x, count, rounds=_ROUNDS, seed=self.seed + each) for each in range(_SEEDS)]
        best, merged, repeated = _agreed([merge_copies(sample.x, fit) for fit in fits])
        matches = _matches(merged, _directions(() if before is None else before.living))
        words = self._words(merged.loadings, sample.rows.tokens.token)
        living: list[LivingConcept] = []
        next_number = 0 if before is None else before.next_number
        for k, now in enumerate(merged.directions.float()):
            confirmed = sum(k in match.earlier for match in repeated)
            known = None if before is None or k not in matches.earlier else before.living[matches.earlier[k]]
            share = float(merged.shares[k])
            if known is not None and confirmed >= 1:
                living.append(replace(known, now=now, words=words[k], share=share))
            elif known is None and confirmed == len(repeated):
                living.append(LivingConcept(next_number, step, now, now, words[k], share))
                next_number += 1
        self.sites[site] = SiteConcepts(step, tuple(living), next_number)
        ended = _ended(() if before is None else before.living, living)
        return [
            make("concept_error", fits[best].error, index=self.count, variant={"proxy": "semi_nmf"}),
            _stability(make, repeated),
            _event(make, "concepts_born", [concept for concept in living if concept.born == step]),
            _event(make, "concepts_died", ended),
            *(record for concept in living for record in _life_records(make, concept, before, matches)),
        ]

    def arrays(self, site: str) -> dict[str, Any]:
        """The concepts of a site as numpy arrays, for a training that is restarted."""
        state = self.sites[site]
        directions = [row for concept in state.living for row in (concept.at_birth, concept.now)]
        stacked = torch.stack(directions) if directions else torch.zeros(0, 1)  # (2·living, d)
        numbers = torch.tensor([[c.number, c.born] for c in state.living], dtype=torch.int64).reshape(-1, 2)
        return {"directions": stacked.numpy(), "numbers": numbers.numpy()}

    def restore(self, stored: Mapping[str, tuple[int, Mapping[str, Any]]], records: Iterable[Record]) -> None:
        """Continue the concepts of a run.

        Args:
            stored: By site, the step and the arrays of `arrays`.
            records: Of the run, for the numbers that are taken and the words.
        """
        taken: dict[str, int] = {}
        words: dict[tuple[str, int], str] = {}
        for record in records:
            if record.metric == "concept_share" and record.index is not None:
                taken[record.site] = max(taken.get(record.site, 0), record.index + 1)
                words[record.site, record.index] = record.note or ""
        for site, (step, arrays) in stored.items():
            directions = torch.from_numpy(arrays["directions"])
            living = tuple(
                LivingConcept(int(number), int(born), at_birth, now, words.get((site, int(number)), ""))
                for (number, born), at_birth, now in zip(
                    arrays["numbers"], directions[::2], directions[1::2], strict=True
                )
            )
            self.sites[site] = SiteConcepts(step, living, taken.get(site, 0))
        for site, number in taken.items():
            if site not in self.sites:
                self.sites[site] = SiteConcepts(-1, (), number)

    def _words(self, loadings: Tensor, token: Tensor) -> list[str]:
        """The typical tokens of each concept, as text if there is a tokenizer; "" for rows that are no tokens."""
        if not len(token) or bool((token < 0).any()):
            return [""] * loadings.shape[1]
        return [" · ".join(map(self._word, tokens[:_WORDS])) for tokens in typical_tokens(loadings, token)]

    def _word(self, token: int) -> str:
        return str(token) if self._decode is None else repr(self._decode([token]))


def _agreed(fits: Sequence[MergedConcepts]) -> tuple[int, MergedConcepts, list[ConceptMatches]]:
    """The fit that agrees best with the others: its position, its concepts, and their matches with those of others."""
    matches = [[match_concepts(fit.directions, other.directions) for other in fits if other is not fit] for fit in fits]
    best = max(range(len(fits)), key=lambda each: sum(match.mean for match in matches[each]))
    return best, fits[best], matches[best]


def _matches(merged: MergedConcepts, earlier: Tensor | None) -> ConceptMatches:
    return ConceptMatches({}, 0.0, 0.0) if earlier is None else match_concepts(merged.directions, earlier)


def _directions(living: Sequence[LivingConcept]) -> Tensor | None:
    return torch.stack([concept.now for concept in living]) if living else None


def _stability(make: Callable[..., Record], repeated: Sequence[ConceptMatches]) -> Record:
    mean = sum(match.mean for match in repeated) / len(repeated)
    return make("concept_stability", mean, null=sum(match.level for match in repeated) / len(repeated))


def _ended(before: Sequence[LivingConcept], living: Sequence[LivingConcept]) -> list[LivingConcept]:
    numbers = {concept.number for concept in living}
    return [concept for concept in before if concept.number not in numbers]


def _event(make: Callable[..., Record], metric: str, concepts: Sequence[LivingConcept]) -> Record:
    named = "; ".join(f"{c.number}: {c.words}" if c.words else str(c.number) for c in concepts)
    return make(metric, float(len(concepts)), note=named or None)


def _life_records(
    make: Callable[..., Record],
    concept: LivingConcept,
    before: SiteConcepts | None,
    matches: ConceptMatches,
) -> list[Record]:
    """Share and words of a concept, and by how many degrees it has turned since the last due step and since birth."""
    records = [make("concept_share", concept.share, index=concept.number, note=concept.words or None)]
    known = [] if before is None else [each for each in before.living if each.number == concept.number]
    if known:
        apart = degrees(matches.level)
        since = partial(make, "concept_drift", index=concept.number)
        records.append(since(_angle(concept.now, known[0].now), variant={"since": "last probe"}, null=apart))
        records.append(since(_angle(concept.now, concept.at_birth), variant={"since": "birth"}))
    return records


def _angle(a: Tensor, b: Tensor) -> float:
    """The angle between two directions in degrees."""
    return degrees(float(torch.nn.functional.cosine_similarity(a.double(), b.double(), dim=0, eps=1e-300)))


def degrees(cosine: float) -> float:
    """The angle of a cosine in degrees.

    >>> degrees(0.0)
    90.0
    """
    return math.degrees(math.acos(max(-1.0, min(1.0, cosine))))


def concept_cards() -> dict[str, dict[str, Any]]:
    """The descriptions of these metrics for a run, in the form of `Metric.card`."""
    texts = {
        "concept_share": ("Share of a concept in the rows; index is its number, the note its tokens.", 0, 1),
        "concept_drift": ("Angle in degrees by which a concept's direction has turned; index is its number.", 0, 180),
        "concept_stability": ("Mean cosine of matched concepts of fits with different seeds: 1 if they agree.", -1, 1),
        "concepts_born": ("Number of concepts that were first found at this step.", 0, None),
        "concepts_died": ("Number of concepts that the last due step found and this one does not.", 0, None),
    }
    error = tangent_cards()["concept_error"]
    return {"concept_error": error} | {
        name: {**error, "name": name, "meaning": text, "text": text, "low": low, "high": high}
        for name, (text, low, high) in texts.items()
    }
