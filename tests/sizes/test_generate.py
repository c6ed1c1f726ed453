"""generate() of transformers with its default cache, which grows with each token: a few compiles, eager's tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import transformers as hf

import flashover

SMALL = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 128}
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = {**SMALL, **LAYERS, "num_key_value_heads": 2}
SEQUENCES = {
    "vocab_size": 128,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
}

MODELS: dict[str, Callable[[], hf.GenerationMixin]] = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED)),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**GROUPED, head_dim=16)),
    "gpt2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=128, n_embd=64, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=127)
    ),
    "neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**SMALL, **LAYERS)),
    "mixtral": lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**GROUPED, num_local_experts=4)),
    "t5": lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(vocab_size=128, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0)
    ),
    "bart": lambda: hf.BartForConditionalGeneration(hf.BartConfig(**SEQUENCES, max_position_embeddings=128)),
}


def model_of(name: str) -> hf.GenerationMixin:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    for p in model.parameters():
        p.data.mul_(3)  # the tokens differ from step to step
    return model


@pytest.mark.parametrize("name", MODELS)
def test_three_compiles_generate_any_number_of_tokens(name: str) -> None:
    model = model_of(name)
    ids = torch.randint(1, 120, (1, 6))
    settings = {
        "max_new_tokens": 24,
        "min_new_tokens": 24,
        "do_sample": False,
        "pad_token_id": 0,
        "no_repeat_ngram_size": 1,
    }
    with torch.no_grad():
        want = model.generate(ids, **settings)
        assert len(want[0].unique()) > 4
        compiled = flashover.compile(model)
        before = flashover.compile_stats()
        got = compiled.generate(ids, **settings)
    after = flashover.compile_stats()
    assert torch.equal(got, want)
    assert after["frames"] - before["frames"] <= 3  # the prompt, the first step, any other
    assert after["eager_calls"] == before["eager_calls"]


def test_prompts_of_any_length_and_number() -> None:
    model = model_of("llama")
    compiled = flashover.compile(model)
    settings = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "repetition_penalty": 1.7}
    made = []
    with torch.no_grad():
        for batch, length in [(1, 6), (1, 11), (3, 9), (2, 17), (4, 5)]:
            ids = torch.randint(1, 120, (batch, length))
            before = flashover.compile_stats()["frames"]
            assert torch.equal(compiled.generate(ids, **settings), model.generate(ids, **settings)), (batch, length)
            made.append(flashover.compile_stats()["frames"] - before)
    assert made[3:] == [0, 0], made
