"""Functions that give numbers, not tensors; one has the name of one that Python has."""

import json

import torch

model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def dumps(x):
    with torch.no_grad():
        return model(x).argmax(1).tolist()


def twice(x):
    first = model(x).sum().item()
    return first + model(x.tanh()).sum().item()


for _ in range(3):
    train(torch.ones(5, 8))
twice(torch.ones(5, 8))
print(json.dumps("accuracy"), dumps(torch.ones(5, 8)))
