"""Exports a tagger of sequences of up to 24 steps, untrained: tagger.so, tagger.h and tagger.weights, into the folder that is named. run.c, run.cpp and
run_numpy.py run it, and print what is written to expected.txt.

    ./dev python examples/export/export.py /tmp/tagger
    cc -I/tmp/tagger -o /tmp/tagger/run examples/export/run.c /tmp/tagger/tagger.so -Wl,-rpath,/tmp/tagger && /tmp/tagger/run
"""

import sys
from pathlib import Path

import torch
import torch_opaque
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 16)
        self.lstm = nn.LSTM(16, 32, batch_first=True, bidirectional=True)
        self.out = nn.Linear(64, 5)

    def forward(self, tokens):
        return self.out(self.lstm(self.embed(tokens))[0]).argmax(-1)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.manual_seed(0)
    model = Tagger().eval()
    length = torch.export.Dim("length", min=1, max=24)
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    print(
        torch_opaque.export(model, (tokens,), folder / "tagger.so", dynamic_shapes=({1: length},))
    )
    with open(folder / "expected.txt", "w") as file:
        for n in (5, 24):
            tags = model(torch.arange(n)[None] * 7 % 100)[0].tolist()
            print(*tags, file=file)
