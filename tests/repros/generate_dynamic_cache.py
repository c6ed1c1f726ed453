"""transformers' generate() with a compiled model and the default cache, which grows with each token, gives eager's
tokens and does not end up eager."""
# needs: transformers
# limit: 300

import warnings

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import flashover

warnings.simplefilter("ignore")
torch.manual_seed(0)
torch.set_num_threads(1)
config = LlamaConfig(
    vocab_size=128,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)
m = LlamaForCausalLM(config).eval()
ids = torch.randint(0, 128, (1, 6))
with torch.no_grad():
    want = m.generate(ids, max_new_tokens=16, do_sample=False, pad_token_id=0)
    c = flashover.compile(m, options={"cache": False})
    got = c.generate(ids, max_new_tokens=16, do_sample=False, pad_token_id=0)
assert torch.equal(got, want)
eager = flashover.compile_stats().get("eager_calls", 1)
assert flashover.compile_stats()["frames"] <= 4 and eager == 0, (flashover.compile_stats()["frames"], eager)
