"""A training loop as in a tutorial."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
points = np.random.default_rng(0).normal(size=(64, 20)).astype("float32")
x = torch.from_numpy(points)
y = torch.tensor(points[:, 0] > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)


def train_step(batch, labels):
    optimizer.zero_grad()
    loss = loss_fn(model(batch), labels)
    loss.backward()
    optimizer.step()
    return loss


for _ in range(2):
    for batch, labels in loader:
        loss = train_step(batch.to(device), labels.to(device))
with torch.no_grad():
    right = model(x).argmax(1).cpu().numpy() == y.numpy()
print(f"loss {loss.item():.4f}, accuracy {right.mean():.3f}, on {next(model.parameters()).device}")
