"""A model of transformers, made, saved and loaded."""

import sys

import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

sizes = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 100, "n_positions": 32}
model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()
ids = torch.tensor([[1, 2, 3, 4]])
with torch.no_grad():
    logits = model(ids).logits
    text = model.generate(ids, max_new_tokens=3, do_sample=False)
model.save_pretrained(sys.argv[1])
again = AutoModelForCausalLM.from_pretrained(sys.argv[1])
with torch.no_grad():
    assert torch.equal(again(ids).logits, logits)
print(text.shape, next(again.parameters()).device)
