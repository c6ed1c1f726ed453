"""Hugging Face's generate() with a compiled model: the cache grows with each token, and a few versions serve all
lengths. (A small GPT-2 with random weights.)"""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import flashover

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=100, bos_token_id=1, eos_token_id=2))
model.eval()
prompt = torch.tensor([[1, 5, 7, 9]])
wanted = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
expected = model.generate(prompt, **wanted)
model.forward = flashover.compile(model.forward)  # what generate() calls for each token
got = model.generate(prompt, **wanted)
assert torch.equal(got, expected)
stats = flashover.live(model.forward).stats()
print(got.tolist(), stats)
assert stats.eager_calls == 0 and stats.versions < stats.calls
