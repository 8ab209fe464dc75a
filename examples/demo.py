"""./dev demo: a pretrained encoder and a training run on the device, and what happened below.

Prints the ranking and the training result with their checks against the CPU, what one encoder layer
records, its fused graph, its kernels and the bytes saved, and the encoder's times eager, unfused
and fused (compilation apart). Exits with 1 if a check fails.
"""

import statistics
import sys
import time

import digits
import minilm
import torch
import torch_opaque


def section(title: str) -> None:
    print(f"\n==== {title} " + "=" * max(0, 100 - len(title)), flush=True)


def cpu_seconds(model, batch: dict, repeat: int = 5) -> tuple:
    """(median seconds of eager PyTorch on the CPU, the embeddings)."""
    times = []
    for _ in range(repeat + 1):
        begin = time.perf_counter()
        result = minilm.encode(model, batch)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:]), result


@torch.no_grad()
def one_layer(model, batch: dict) -> None:
    """What the first encoder layer records, what it is fused to, what that costs."""
    layer = model.encoder.layer[0]
    hidden = model.embeddings(batch["input_ids"])
    torch.opaque.synchronize()

    def run():
        return layer(hidden)

    section(f"one encoder layer, hidden states {list(hidden.shape)}: recorded")
    print(torch_opaque.graph(run))
    section("the same layer: fused")
    print(torch_opaque.graph(run, stage="fused"))
    section("the same layer: kernels")
    torch_opaque.explain(run)


@torch.no_grad()
def table(model, cpu_batch: dict, batch: dict) -> bool:
    """The whole encoder eager, unfused and fused, against PyTorch on the CPU. Returns whether the values agree."""
    section(f"the encoder on {list(batch['input_ids'].shape)} tokens")
    _, cpu_model = minilm.load()
    seconds, expected = cpu_seconds(cpu_model, cpu_batch)
    result = torch_opaque.compare(lambda: minilm.encode(model, batch), repeat=6)
    print(f"PyTorch on the CPU, eager: {seconds * 1e3:.1f} ms")
    difference = (minilm.encode(model, batch).cpu() - expected).abs().max().item()
    good = difference <= 1e-5 and result["unfused"].same_bits
    print(f"against CPU: largest difference {difference:.1e}: {'ok' if good else 'WRONG'}")
    return good


def main() -> int:
    section("sentence embeddings (examples/minilm.py)")
    embedding = minilm.main([])

    tokenizer, model = minilm.load()
    cpu_batch = dict(tokenizer(minilm.sentences()[:16], padding=True, return_tensors="pt"))
    batch = {k: v.to("opaque") for k, v in cpu_batch.items()}
    model.to("opaque")
    one_layer(model, batch)
    good = table(model, cpu_batch, batch)

    section("training (examples/digits.py)")
    training = digits.main([])
    return int(embedding != 0 or training != 0 or not good)


if __name__ == "__main__":
    sys.exit(main())
