"""The statistics of all sites: branches and routers, and processes that share the documents of a text.

Records of branches and routers are compared with statistics of one forward, and those of several processes with those
of one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing.spawn import spawn

import anisoscope
from anisoscope.errors import InputError, MetricError
from anisoscope.hooks import find_layout, observe_sites
from anisoscope.stats.router_sums import RouterSums
from tests import model_folders
from tests.ranks import join_group, leave_group
from tests.sweep_folders import documents
from tests.tiny_models import build, text

WORLD = 3


REQUEST: dict[str, Any] = {
    "window": 32,
    "batch": 2,
    "sites": ["embed", "resid", "pattern"],
    "metrics": ["mean_cosine", "isoscore", "two_nn", "massive_tokens", "mean_cosine_across_documents", "sink_mass"],
}


CASES: dict[str, dict[str, Any]] = {
    "uneven": {"tokens": 700, "weights": False},
    "with the weights": {"tokens": 200, "weights": True, "metrics": ["mean_cosine"]},
    "fewer documents than ranks": {"tokens": 40, "weights": False},
}


def measure(folder: Path, case: str, out: Path | None, *, distributed: bool) -> anisoscope.Run:
    number = 2 if case.startswith("fewer") else 60
    text = folder / f"text-{number}.jsonl"
    options = {**REQUEST, **CASES[case], "keep_statistics": True, "out": out, "distributed": distributed}
    return anisoscope.measure(folder / "model", text=text, **options)


def work(rank: int, folder: Path) -> None:
    join_group(folder, rank, WORLD)
    for case in CASES:
        run = measure(folder, case, folder / case, distributed=True)
        again = measure(folder, case, folder / case, distributed=True)  # it is whole: returned as it is
        assert numbers(again) == numbers(run)
        found = [[*key, *value] for key, value in numbers(run).items()]
        (folder / f"{case}-{rank}.json").write_text(json.dumps(found))
    with pytest.raises(InputError, match="measured by one process"):
        anisoscope.measure(folder / "model", text=folder / "text-60.jsonl", generate=4, distributed=True)
    leave_group()


def numbers(run: anisoscope.Run) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    return {
        (r.site, r.metric, r.tokens, r.index, json.dumps(dict(r.variant))): (r.value, r.error, r.n, r.error_kind)
        for r in run.records()
    }


def close(found: Any, wanted: Any, rel: float) -> bool:
    return bool(found == (wanted if not isinstance(wanted, float) else pytest.approx(wanted, rel=rel, abs=1e-7)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What three ranks have recorded of every case."""
    place = tmp_path_factory.mktemp("ranks")
    model_folders.gpt2(place / "model")
    for number in (2, 60):
        documents(place / f"text-{number}.jsonl", number)
    spawn(work, args=(place,), nprocs=WORLD)
    return place


@pytest.mark.parametrize("case", CASES)
def test_several_ranks_record_what_one_process_records(folder: Path, case: str) -> None:
    alone = measure(folder, case, None, distributed=False)
    wanted = numbers(alone)
    together = anisoscope.Run.open(folder / case)
    found = numbers(together)
    assert found.keys() == wanted.keys()
    for key, (value, error, n, kind) in wanted.items():
        assert close(found[key][0], value, 1e-6), key
        assert close(found[key][1], error, 1e-3), key
        assert found[key][2:] == (n, kind), key
    for name in ("data", "unit", "removed"):
        assert together.info[name] == alone.info[name]
    assert together.statistics() == alone.statistics()
    for rank in range(WORLD):  # every rank was given the records
        rows = json.loads((folder / f"{case}-{rank}.json").read_text())
        assert {tuple(row[:5]): tuple(row[5:]) for row in rows} == found


def torchrun(model: Path, text: Path, out: Path, *more: str) -> str:
    """What `measure` prints when two processes are launched."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launch, "-m", "anisoscope", "measure", str(model), "--text", str(text), "--out", str(out)]
    command += ["--tokens", "300", "--window", "32", "--metrics", "mean_cosine,isoscore", *more]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_torchrun_writes_one_run_and_prints_one_table(folder: Path, tmp_path: Path) -> None:
    printed = torchrun(folder / "model", folder / "text-60.jsonl", tmp_path / "run")
    assert printed.count("without the first token of each window") == 1
    assert anisoscope.Run.open(tmp_path / "run").info["complete"]


@pytest.mark.slow
def test_tensor_parallel_layers_give_the_numbers_of_the_whole_model(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = {"intermediate_size": 32, "vocab_size": 320, "max_position_embeddings": 64}
    model = model_folders.hf.LlamaForCausalLM(model_folders.hf.LlamaConfig(**shape, **sizes))
    llama = model_folders.save(tmp_path / "llama", model, model_folders.byte_pairs())
    text = folder / "text-60.jsonl"
    torchrun(llama, text, tmp_path / "run", "--tensor-parallel")
    request: dict[str, Any] = {"tokens": 300, "window": 32, "metrics": ["mean_cosine", "isoscore"]}
    alone = numbers(anisoscope.measure(llama, text=text, **request))
    found = numbers(anisoscope.Run.open(tmp_path / "run"))
    assert found.keys() == alone.keys()
    assert all(close(found[key][0], value[0], 1e-5) for key, value in alone.items())


class Grid(torch.nn.Module):
    """Three convolutions that keep the image as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Conv2d(4, 4, 1, bias=False)) for _ in range(3))
        for layer in self.layers:
            torch.nn.init.dirac_(layer.get_parameter("0.weight"))

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            pixel_values = layer(pixel_values)
        return pixel_values


def test_positions_of_an_image_may_have_norms_of_any_size() -> None:
    torch.manual_seed(0)
    images = torch.randn(16, 4, 32, 32)
    images[..., :12] *= 100  # three of eight positions have 100 times the median norm: EfficientNet has such layers
    batches = [{"pixel_values": part} for part in images.split(4)]
    run = anisoscope.measure(Grid(), batches, metrics=["mean_cosine", "participation_ratio"], sites=["resid"])
    records = list(run.records())
    assert {record.tokens for record in records} == {"all"}
    assert all(record.value is not None for record in records)


# --- branches and routers ------------------------------------------------------------------------------------------

NAMES = ["write_ratio", "write_cosine", "router_load", "router_entropy", "dead_experts", "router_margin", "v_norm"]
SITES = ["resid", "attn", "mlp", "router", "pattern"]


def measured(metrics: list[str], sites: list[str], batches: int = 8) -> dict[tuple[Any, ...], Any]:
    """Records by site, metric, variant and index, from batches that are all equal."""
    model, _ = build("mixtral")
    records = list(anisoscope.measure(model, [text() for _ in range(batches)], metrics=metrics, sites=sites).records())
    assert {r.tokens for r in records} == {"all"}
    return {(r.site, r.metric, *r.variant.values(), r.index): r for r in records}


def test_records_of_branches_and_routers_equal_those_of_one_forward() -> None:
    found = measured(NAMES, SITES)
    assert {site for site, metric, *_ in found if metric == "write_ratio"} == {
        f"{kind}.{layer}" for kind in ("attn", "mlp") for layer in range(3)
    }
    model, batch = build("mixtral")
    counts = batch["attention_mask"].bool()
    seen: dict[str, Any] = {}
    with (
        torch.no_grad(),
        observe_sites(
            model,
            ["attn", "mlp", "router"],
            lambda site, x: seen.update({str(site): x}),
            layout=find_layout(model, batch),
            branches=True,
        ),
    ):
        model(**batch)
    for site in ("attn.0", "mlp.2"):
        written, stream = (x[counts].double() for x in (seen[site].written, seen[site].stream))
        ratio, cosine = found[site, "write_ratio", "all", None], found[site, "write_cosine", None]
        assert ratio.value == pytest.approx(float(written.norm() / stream.norm()), rel=1e-5)
        cosines = torch.nn.functional.cosine_similarity(written, stream)
        assert cosine.value == pytest.approx(float(cosines.mean()), abs=1e-6)
        assert (cosine.null, cosine.n) == (0.0, 8 * len(written))
    sums = RouterSums.of(seen["router.1"], counts)
    load = sums.load.numpy()
    assert found["router.1", "router_load", None].value == pytest.approx(load.std() / load.mean())
    assert found["router.1", "router_entropy", None].value == pytest.approx(float(sums.entropy / sums.tokens))
    assert found["router.1", "dead_experts", None].value == (load == 0).sum()
    assert found["router.1", "router_margin", None].n == 8 * int(sums.margin_tokens)
    assert found["pattern.1", "v_norm", "max", 0].error is None


def test_metrics_of_branches_and_routers_need_their_sites() -> None:
    for name, missing in (("write_ratio", "branch"), ("router_load", "router")):
        with pytest.raises(MetricError, match=missing):
            measured([name], ["resid"], batches=1)
