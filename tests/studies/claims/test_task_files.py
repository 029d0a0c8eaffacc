"""Downstream tasks by local file: what is read, what is refused, and that scores tell a task from noise."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from anisoscope.errors import AnisoscopeError, InputError, StoreError
from anisoscope.studies.claims import open_questions
from anisoscope.studies.claims.downstream_tasks import built_in_tasks, mean_score, task_scores
from anisoscope.studies.claims.runner import ClaimsRequest, find_claims, find_size, kept_evidence, run_claims
from anisoscope.studies.claims.task_files import TextTask, read_task, read_tasks
from anisoscope.studies.lab.corpora import open_text
from anisoscope.studies.lab.token_data import Data, prepare
from anisoscope.studies.lab.transformer import Config, Transformer

ROWS = 64
WORDS = {"sea": ("wave", "salt", "tide", "boat"), "hill": ("rock", "goat", "pine", "snow")}


def planted(seed: int = 0) -> list[dict[str, Any]]:
    """Texts whose words give their label away."""
    draw = random.Random(seed)
    labels = [draw.choice(list(WORDS)) for _ in range(ROWS)]
    return [{"text": " ".join(draw.choices(WORDS[label], k=8)), "label": label} for label in labels]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
        table.writeheader()
        table.writerows(rows)
    return path


@pytest.mark.parametrize("name", ["task.jsonl", "task.csv", "task.tsv"])
def test_every_format_gives_the_same_task(tmp_path: Path, name: str) -> None:
    rows = planted()
    rows[3]["text"] = 'a "quoted" text, with commas,\na line and \u2028 a separator'
    task = read_task(write(tmp_path / name, rows))
    assert task.name == name
    assert task.texts == tuple(row["text"] for row in rows)
    assert task.labels == tuple(row["label"] for row in rows)
    assert task.matches == ()
    assert task.description == f"{name} (64 texts, 2 labels)"


def test_labels_may_be_numbers_and_matches_make_a_retrieval_task(tmp_path: Path) -> None:
    numbers = [{"text": f"text {i}", "label": i % 3} for i in range(ROWS)]
    assert set(read_task(write(tmp_path / "numbers.jsonl", numbers)).labels) == {"0", "1", "2"}
    pairs = [{"text": f"question {i}", "match": f"answer {i}"} for i in range(ROWS)]
    task = read_task(write(tmp_path / "pairs.csv", pairs))
    assert (task.labels, task.matches[:2]) == ((), ("answer 0", "answer 1"))


BAD = {
    "no column": ([{"text": "a", "class": "b"}] * ROWS, "holds class, text. Give it the columns text and label"),
    "both columns": ([{"text": "a", "label": "b", "match": "c"}] * ROWS, "Keep one of them"),
    "one class": ([{"text": "a", "label": "b"}] * ROWS, "only the label 'b'"),
    "few rows": (planted()[:31], "has 31 rows. A task needs 32, 8 in each fold"),
    "rare class": ([*planted(), {"text": "a", "label": "once"}], "the label 'once' 1 times"),
    "empty text": ([*planted(), {"text": " ", "label": "sea"}], "row 65 has no text"),
    "missing label": ([*planted(), {"text": "a"}], "row 65 has no label"),
    "same match": ([{"text": f"{i}", "match": f"{i % 40}"} for i in range(ROWS)], "the same match in 2 rows"),
    "nothing": ([], "holds nothing"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tasks_are_refused_in_one_line(tmp_path: Path, case: str) -> None:
    rows, message = BAD[case]
    with pytest.raises(InputError) as refused:
        read_task(write(tmp_path / "task.jsonl", rows))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("task.txt", b"text,label", "Give a .jsonl, .csv or .tsv file"),
        ("task.jsonl", b"{text", "line 1 is not JSON"),
        ("task.jsonl", b"[1]\n", "line 1 is no JSON object"),
        ("task.csv", b"text,label\n\xff\xfe,b\n", "is not UTF-8"),
        ("task.csv", b'text,label\n"never closed,b\n', "Check its quotes"),
    ],
)
def test_files_of_another_kind_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_task(tmp_path / name)


def test_a_missing_file_and_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AnisoscopeError, match="No such file"):
        read_task(tmp_path / "absent.csv")
    (tmp_path / "other").mkdir()
    twice = [write(folder / "task.csv", planted()) for folder in (tmp_path, tmp_path / "other")]
    with pytest.raises(InputError, match=r"2 task files are named task.csv"):
        read_tasks(twice)


# --- scores -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return prepare(open_text("topics"), tmp_path_factory.mktemp("topics") / "data")


@pytest.fixture(scope="module")
def model(data: Data) -> nn.Module:
    """An untrained model: the mean of its states tells which letters a text has."""
    return Transformer(Config(vocabulary=data.vocabulary, context=64, layers=2, width=32, heads=2), seed=0).eval()


def test_a_planted_task_is_solved_and_one_of_shuffled_labels_is_not(model: nn.Module, data: Data) -> None:
    rows = planted()
    texts, labels = tuple(row["text"] for row in rows), tuple(row["label"] for row in rows)
    shuffled = list(labels)
    random.Random(1).shuffle(shuffled)
    tasks = TextTask("planted", texts, labels=labels), TextTask("shuffled", texts, labels=tuple(shuffled))
    scores = task_scores(model, data, 64, tasks)
    assert scores["planted"] > 0.95
    assert scores["shuffled"] < 0.75  # guessing gives 0.5, with a standard error of 0.06
    assert mean_score(scores, tasks) == pytest.approx((scores["planted"] + scores["shuffled"]) / 2)


def test_planted_pairs_are_found_and_shuffled_ones_are_not(model: nn.Module, data: Data) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    draw = random.Random(0)
    pairs = [draw.sample(letters, 4) for _ in range(ROWS)]
    texts = tuple(" ".join(draw.choices(pair, k=20)) for pair in pairs)
    matches = tuple(" ".join(draw.choices(pair, k=20)) for pair in pairs)
    apart = matches[1:] + matches[:1]
    tasks = TextTask("planted", texts, matches=matches), TextTask("shuffled", texts, matches=apart)
    scores = task_scores(model, data, 64, tasks)
    assert scores["planted"] > 0.4
    assert scores["shuffled"] < 0.2  # guessing gives 0.07


# --- runs ---------------------------------------------------------------------------------------------------------


def test_given_tasks_are_judged_and_other_ones_are_refused_on_resuming(tmp_path: Path) -> None:
    task = write(tmp_path / "sea.jsonl", planted())
    (claim,) = find_claims(["N6"])
    request = ClaimsRequest(find_size("tiny"), tasks=(task,))
    list(run_claims([claim], tmp_path / "run", request))
    evidence = kept_evidence(tmp_path / "run", "N6")
    assert evidence is not None
    assert "judged on the given tasks sea.jsonl (64 texts, 2 labels)" in evidence.ran
    names = {f"score: {name}" for name in ("sea.jsonl", *(each.name for each in built_in_tasks()))}
    assert names <= set(evidence.estimates)
    curves = {record.variant["of"] for record in evidence.records if record.metric == "downstream_score"}
    assert curves == {"mean of the given tasks", *(name.removeprefix("score: ") for name in names)}
    mean = [r.value for r in evidence.records if r.variant["of"] == "mean of the given tasks"]
    assert mean == [r.value for r in evidence.records if r.variant["of"] == "sea.jsonl"]
    list(run_claims([claim], tmp_path / "run", request))  # resumes
    with pytest.raises(StoreError, match="tasks"):
        list(run_claims([claim], tmp_path / "run", ClaimsRequest(find_size("tiny"))))
    write(task, planted(seed=1))
    with pytest.raises(StoreError, match="tasks"):
        list(run_claims([claim], tmp_path / "run", request))


def test_a_bad_task_does_not_discard_a_run(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("text\n")
    (claim,) = find_claims(["N4"])
    list(run_claims([claim], tmp_path / "run", ClaimsRequest(find_size("tiny"))))
    request = ClaimsRequest(find_size("tiny"), tasks=(tmp_path / "bad.csv",))
    with pytest.raises(InputError, match="columns"):
        list(run_claims([claim], tmp_path / "run", request, overwrite=True))
    assert kept_evidence(tmp_path / "run", "N4") is not None


def test_the_question_about_isotropy_reports_each_given_task() -> None:
    assert "score_by_task" in next(c for c in open_questions.CLAIMS if c.id == "P1").figure
