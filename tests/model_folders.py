"""Tiny model folders as users have them: configuration, weights, tokenizer or processor. No download."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

hf: Any = transformers  # its configurations take far more than their signatures say
tk: Any = tokenizers

WORDS = (
    "The quick brown fox jumps over the lazy dog and runs away. It was the best of times, it was the worst of times; "
    "we had everything before us, we had nothing before us.\n\nCall me Ishmael.  Some years ago - never mind how long "
    "precisely - having little or no money in my purse, I thought I would sail about a little and see the water."
)


def byte_pairs(size: int = 300, eos: str = "<|end|>") -> Any:
    """Byte-level BPE as in GPT-2: no special tokens around a text."""
    tokenizer = tk.Tokenizer(tk.models.BPE())
    tokenizer.pre_tokenizer = tk.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tk.decoders.ByteLevel()
    alphabet = sorted(tk.pre_tokenizers.ByteLevel.alphabet())
    trainer = tk.trainers.BpeTrainer(
        vocab_size=size, special_tokens=[eos], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([WORDS], trainer)
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos, pad_token=eos)


def word_pieces(size: int = 120) -> Any:
    """WordPiece as in BERT: [CLS] before and [SEP] after a text."""
    tokenizer = tk.Tokenizer(tk.models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = tk.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = tk.pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = tk.trainers.WordPieceTrainer(vocab_size=size, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator([WORDS], trainer)
    tokenizer.post_processor = tk.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def sentence_pieces(size: int = 90) -> Any:
    """Unigram as in T5 and Llama 2: a space becomes part of the next word, and the first word gets one too."""
    tokenizer = tk.Tokenizer(tk.models.Unigram())
    tokenizer.normalizer = tk.normalizers.Sequence([tk.normalizers.Prepend("▁"), tk.normalizers.Replace(" ", "▁")])
    specials = ["<pad>", "</s>", "<unk>"]
    trainer = tk.trainers.UnigramTrainer(
        vocab_size=size, special_tokens=specials, unk_token="<unk>", show_progress=False
    )
    tokenizer.pre_tokenizer = tk.pre_tokenizers.Metaspace(prepend_scheme="never", split=True)
    tokenizer.train_from_iterator([WORDS.replace(" ", "▁")], trainer)
    tokenizer.post_processor = tk.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )


_WIDE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def gpt2_config(**options: Any) -> Any:
    shape = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 320, "n_positions": 64}
    return hf.GPT2Config(**shape | {"bos_token_id": 0, "eos_token_id": 0} | options)


def bert_config() -> Any:
    return hf.BertConfig(**_WIDE, vocab_size=120, max_position_embeddings=48)


def t5_config() -> Any:
    shape = {"vocab_size": 96, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    return hf.T5Config(**shape, decoder_start_token_id=0)


def vit_config() -> Any:
    return hf.ViTConfig(**_WIDE, image_size=16, patch_size=8)


def canine_config() -> Any:
    hashes = {"num_hash_functions": 4, "num_hash_buckets": 128, "local_transformer_stride": 32}
    return hf.CanineConfig(**_WIDE, **hashes, max_position_embeddings=128)


def wav2vec2_config() -> Any:
    layers = {"conv_dim": (8, 8), "conv_stride": (5, 4), "conv_kernel": (10, 8), "num_feat_extract_layers": 2}
    return hf.Wav2Vec2Config(**_WIDE, **layers, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2)


def whisper_config() -> Any:
    shape = {
        "d_model": 16,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "num_mel_bins": 8,
        "max_source_positions": 50,
        "max_target_positions": 32,
        "vocab_size": 320,
    }
    ids = {"decoder_start_token_id": 1, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    return hf.WhisperConfig(**shape, **ids, begin_suppress_tokens=None, suppress_tokens=None)


def whisper_extractor() -> Any:
    return hf.WhisperFeatureExtractor(feature_size=8, chunk_length=1)


def save(folder: Path, model: Any, *processors: Any) -> Path:
    """A model folder with these processors in it."""
    model.save_pretrained(folder)
    for processor in processors:
        processor.save_pretrained(folder)
    return folder


def gpt2(folder: Path, **options: Any) -> Path:
    torch.manual_seed(0)
    return save(folder, hf.GPT2LMHeadModel(gpt2_config(**options)), byte_pairs())


def as_pickle(folder: Path) -> None:
    """Replace a folder's safetensors file by the pickle that older checkpoints have."""
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def change_json(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def llama_gguf(file: Path, *, begins_texts: bool = False) -> Any:
    """A tiny Llama as a GGUF file, with or without a token that begins texts; returns the model that was written."""
    import gguf

    torch.manual_seed(0)
    tokenizer = byte_pairs()
    config = hf.LlamaConfig(
        **_WIDE, num_key_value_heads=1, vocab_size=len(tokenizer), max_position_embeddings=64, tie_word_embeddings=False
    )
    model = hf.LlamaForCausalLM(config).eval()
    writer: Any = gguf.GGUFWriter(str(file), "llama")
    writer.add_name("tiny")
    writer.add_context_length(64)
    writer.add_embedding_length(16)
    writer.add_block_count(2)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(8)
    writer.add_vocab_size(len(tokenizer))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    described = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(sorted(described["vocab"], key=described["vocab"].get))
    writer.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (len(tokenizer) - 1))
    writer.add_token_merges([" ".join(pair) for pair in described["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(begins_texts)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    for name, tensor in model.state_dict().items():
        heads = {"q_proj": 2, "k_proj": 1}.get(name.split(".")[-2])
        array = tensor.numpy() if heads is None else _interleaved(tensor, heads).numpy()
        writer.add_tensor(names.get_name(name, (".weight",)), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """GGUF stores the two halves of a rotary pair next to each other; transformers stores them half a head apart."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return halves.transpose(1, 2).reshape(rows, columns).contiguous()
