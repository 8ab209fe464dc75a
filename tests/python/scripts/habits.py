"""What programs that know of the CPU alone write. Each line is right there, and has to be right on the device."""

import io

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split

cpu = torch.device("cpu")


def there(*tensors):
    assert all(t.device.type == "opaque" for t in tensors), [t.device for t in tensors]


class Numbers(Dataset):
    def __init__(self):
        self.x, self.y = torch.randn(8, 3), np.arange(8)

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return self.x[i], self.y[i], torch.tensor(float(i)), {"index": i}


def makes():
    there(torch.zeros(2, device="cpu"), torch.ones(2, device=cpu), torch.tensor([1]))
    there(torch.Tensor([1, 2]), torch.FloatTensor([1.0]), torch.LongTensor(3), torch.Tensor(2, 3))
    there(torch.from_numpy(np.ones(2)), torch.as_tensor(np.ones(2)), torch.normal(0.0, 1.0, (2,)))
    x = torch.ones(2, 3)
    there(x.to("cpu"), x.to(cpu, torch.float64), x.to(device=cpu), x.cpu(), x.pin_memory())
    there(
        torch.zeros_like(x, device=cpu),
        x.new_zeros(2),
        torch.distributions.Normal(0.0, 1.0).sample(),
    )
    assert x.type(torch.LongTensor).dtype == x.type("torch.LongTensor").dtype == torch.int64
    assert isinstance(x, torch.FloatTensor) and not isinstance(x, torch.LongTensor)
    assert torch.LongTensor | None
    with torch.device("meta"):
        assert nn.Linear(2, 2).weight.device.type == "meta"
    torch.set_default_device("cpu")
    there(torch.zeros(2), nn.Linear(2, 2).weight)


def draws():
    first = torch.randn(3, generator=torch.Generator().manual_seed(1))
    again = torch.randperm(5, generator=torch.Generator("cpu").manual_seed(1))
    there(first, again)
    assert np.allclose(first.numpy(), [0.6614, 0.2669, 0.0617], atol=1e-4)  # the CPU's
    part, _ = random_split(range(10), [8, 2], generator=torch.Generator().manual_seed(1))
    assert sorted(part)[0] in range(3)


def numbers():
    x = torch.ones(2, 3)
    assert np.asarray(x).sum() == x.numpy().sum() == np.mean([x, x]) * 6 == 6
    assert x.detach().cpu().numpy().dtype == np.float32 and x.to("cpu").numpy().shape == (2, 3)
    try:
        x.requires_grad_().numpy()
    except RuntimeError as error:
        assert "requires grad" in str(error)
    else:
        raise AssertionError


def batches():
    for workers in (0, 1):
        for batch in DataLoader(Numbers(), batch_size=4, num_workers=workers, shuffle=True):
            there(*batch[:3], batch[3]["index"])
            assert torch.equal(batch[1], batch[2].long())


def models():
    model = nn.LSTM(3, 4, batch_first=True).to("cpu").cpu()
    there(*model.parameters())
    lengths = torch.tensor([5, 3])
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(2, 5, 3), lengths, batch_first=True)
    there(nn.utils.rnn.pad_packed_sequence(model(packed)[0], batch_first=True)[0])
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    for where in ({}, {"map_location": "cpu"}, {"map_location": cpu}):
        file.seek(0)
        state = torch.load(file, **where)
        there(*state.values())
    model.load_state_dict(state)
    there(torch.compile(nn.Linear(3, 3))(torch.ones(2, 3)))
    there(torch.compile(mode="reduce-overhead")(lambda x: x * 2)(torch.ones(2)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert nn.Linear(3, 3)(torch.ones(2, 3)).dtype == torch.bfloat16


def itself():
    """What PyTorch makes for itself stays where it was."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert optimizer.state[model.weight]["step"].device == cpu
    torch.testing.assert_close(model.weight, model.weight.clone())


if __name__ == "__main__":
    makes()
    draws()
    numbers()
    batches()
    models()
    itself()
    print("all of them")
