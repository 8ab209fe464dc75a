"""Greedy decoding with a small GPT-2 of random weights: the tokens must be those of the CPU.

    ./dev python examples/gpt2.py [--device opaque] [--tokens 30] [--cache]

Without --cache each step runs the whole sequence, one token longer than before: sizes change,
kernels do not. With --cache, keys and values of earlier tokens are kept, as transformers does in
generate().

Exits with 1 if a token differs, or if anything is compiled after the third token.
"""

import argparse
import contextlib
import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def make() -> GPT2LMHeadModel:
    """4 layers, 4 heads, 128 wide, in eval mode on the CPU. Weights are larger than usual and the
    output layer is not tied, so that tokens vary and the best is ahead of the second by more than
    rounding."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=512,
        n_positions=128,
        n_embd=128,
        n_layer=4,
        n_head=4,
        initializer_range=0.2,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config).eval()


def kernels_compiled(device: str) -> int:
    """Kernels compiled so far by this process."""
    if device != "opaque":
        return 0
    import torch_opaque

    return torch_opaque.stats()["kernels_compiled"]


def planned(device: str):
    """Each token's graph has its plan, so that how many kernels there are does not depend on when a plan pays."""
    if device != "opaque":
        return contextlib.nullcontext()
    import torch_opaque

    return torch_opaque.planned()


@torch.no_grad()
def decode(model, prompt: list, count: int, device: str, use_cache: bool) -> tuple:
    """(tokens after the prompt, kernels compiled after each of them, seconds)."""
    model.to(device)
    tokens = torch.tensor([prompt], device=device)
    cache, step, compiled = None, tokens, []
    begin = time.perf_counter()
    for _ in range(count):
        result = model(step, past_key_values=cache, use_cache=use_cache)
        following = result.logits[:, -1].argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, following], 1)
        following.item()
        cache = result.past_key_values if use_cache else None
        step = following if use_cache else tokens
        compiled.append(kernels_compiled(device))
    return tokens[0, len(prompt) :].tolist(), compiled, time.perf_counter() - begin


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="opaque")
    parser.add_argument("--tokens", type=int, default=30)
    parser.add_argument("--cache", action="store_true")
    options = parser.parse_args()

    prompt = [11, 42, 7, 300, 128, 5]
    model = make()
    expected, _, cpu_seconds = decode(model, prompt, options.tokens, "cpu", options.cache)
    with planned(options.device):
        actual, compiled, seconds = decode(
            model, prompt, options.tokens, options.device, options.cache
        )
    late = compiled[-1] - compiled[min(2, len(compiled) - 1)]
    good = actual == expected and late == 0
    print("tokens:", *actual)
    print(
        f"{'equal to' if actual == expected else 'DIFFERENT FROM'} CPU's, {late} kernels compiled after token 3, "
        f"{seconds:.2f} s (CPU {cpu_seconds:.2f} s): {'ok' if good else 'WRONG'}"
    )
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
