"""torch.save, pickle and torch.multiprocessing of tensors that share memory: afterwards they share it as on the CPU, and a file is as large."""

import copy
import io
import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
import torch


def views(device):
    x = torch.arange(24.0, device=device).view(4, 6) + 1
    return {
        "x": x,
        "row": x[1],
        "strided": x.view(-1)[3:20:4],
        "transposed": x.t()[1:3],
        "expanded": x[:, :1].expand(4, 3),
        "of_one": x[2, 3],
        "nothing": x[:0],
        "clone": x.clone(),
        "parameter": torch.nn.Parameter(x[2:]),
    }


def complex_views(device):
    z = torch.arange(6.0, device=device).to(torch.complex64)
    return {"z": z, "conj": z[1:].conj(), "real": z[:2]}


def tied(device):
    model = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    return model.to(device).state_dict()


def optimizer(device):
    model = torch.nn.Linear(3, 2).to(device)
    adam = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3, device=device)).sum().backward()
    adam.step()
    return {**adam.state_dict()["state"][0], **model.state_dict()}


def written(tensors):
    """What each tensor holds at first, and after each of them was written in turn."""
    seen = []
    with torch.no_grad():
        for t in [None, *tensors.values()]:
            if t is not None and t.is_floating_point() and not (t.dim() and 0 in t.stride()):
                t.mul_(2).add_(1)
            seen.append([(o.tolist(), o.stride(), o.storage_offset()) for o in tensors.values()])
    return seen


def dumped(value, **options):
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


def loaded(data, **options):
    return torch.load(io.BytesIO(data), **options)


def check(got, device, expected):
    assert all(t.device.type == device for t in got.values() if t.dim())
    for steps, want in zip(written(got), written(expected), strict=True):
        assert steps == want


@pytest.mark.parametrize("make", [views, tied, optimizer])
@pytest.mark.parametrize("zip_format", [True, False])
def test_saved_views_share(make, zip_format):
    torch.manual_seed(0)
    ours = make("opaque")
    torch.manual_seed(0)
    cpu = make("cpu")
    data = dumped(ours, _use_new_zipfile_serialization=zip_format)
    expected = dumped(cpu, _use_new_zipfile_serialization=zip_format)
    assert abs(len(data) - len(expected)) < 512 + len(expected) // 50
    for where, device in (
        (None, "opaque"),
        ("opaque", "opaque"),
        ("cpu", "cpu"),
        ({"opaque:0": "cpu"}, "cpu"),
    ):
        check(loaded(data, map_location=where, weights_only=True), device, loaded(expected))
    check(loaded(expected, map_location="opaque"), "opaque", loaded(expected))


def test_saved_views_of_complex_numbers():
    for got, want in zip(
        *(loaded(dumped(complex_views(d)), map_location="cpu").values() for d in ("opaque", "cpu")),
        strict=True,
    ):
        assert got.is_conj() == want.is_conj() and torch.equal(got, want)


def test_what_is_pending_is_saved_and_stays():
    x = torch.arange(4.0, device="opaque") * 2
    y = x[1:]
    y += 1
    got = loaded(dumped([y, x]))
    got[0].zero_()
    assert got[1].tolist() == [0, 0, 0, 0] and x.tolist() == [0, 3, 5, 7]


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool, torch.complex128, torch.uint16,
              torch.float8_e4m3fn]
)  # fmt: skip
def test_dtypes(dtype):
    x = torch.arange(6).to(dtype)
    y = x.to("opaque")
    pickled = (
        [] if dtype in (torch.uint16, torch.float8_e4m3fn) else [pickle.loads(pickle.dumps(y))]
    )  # not on the CPU either
    for got in (*loaded(dumped([y, y.view(2, 3)])), *pickled, copy.deepcopy(y)):
        assert got.device.type == "opaque" and got.dtype == dtype
        assert torch.equal(got.cpu().view(-1).view(torch.uint8), x.view(torch.uint8))


def test_one_memory_as_two_dtypes_is_refused_as_on_the_cpu():
    for device in ("cpu", "opaque"):
        x = torch.ones(4, device=device)
        with pytest.raises(RuntimeError, match="view the same data as different types"):
            dumped([x, x.view(torch.int32)])


def test_pickle_keeps_classes_attributes_and_gradients():
    def run(device):
        p = torch.nn.Parameter(torch.arange(3.0, device=device))
        p.note = "kept"
        x = torch.ones(2, device=device, requires_grad=True)
        result = pickle.loads(pickle.dumps([p, x, x.detach()[1:]]))
        return [
            (type(t), t.requires_grad, t.tolist(), t.device.type == device) for t in result
        ], result[0].note

    assert run("opaque") == run("cpu")
    with pytest.warns(UserWarning, match="hooks"):
        x = torch.ones(2, device="opaque", requires_grad=True)
        x.register_hook(lambda g: g)
        pickle.dumps(x)


def test_files_of_a_training_loop():
    """A checkpoint of the device is one of any PyTorch: state_dicts, an optimizer, a scheduler, a scaler."""
    model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).to("opaque")
    adam = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step():
        adam.zero_grad()
        loss = model(torch.ones(2, 3, 8, device="opaque")).square().mean()
        loss.backward()
        adam.step()
        return loss.item()

    model.eval()
    step()
    data = dumped({"model": model.state_dict(), "adam": adam.state_dict()})
    expected = [step(), step()]
    state = loaded(data, map_location="cpu", weights_only=True)
    for where in (None, "cpu"):
        state = loaded(data, map_location=where, weights_only=True)
        model.load_state_dict(state["model"])
        adam.load_state_dict(state["adam"])
        assert [step(), step()] == expected


def test_a_loaded_model_is_as_fast_as_one_that_was_made():
    """A loaded parameter is data of its dtype, no bytes that each graph has to look at as something else."""
    import torch_opaque

    model = loaded(dumped(torch.nn.Linear(4, 4).to("opaque")), weights_only=False)
    model(torch.ones(1, 4, device="opaque")).cpu()
    text = str(torch_opaque.graph(model(torch.ones(1, 4, device="opaque"))))
    assert "raw8" not in text and "u8" not in text, text


def test_messages_keep_tied_weights():
    received = pickle.loads(ForkingPickler.dumps(list(tied("opaque").values())))
    with torch.no_grad():
        received[0].fill_(3)
    assert received[1].device.type == "opaque" and received[1].tolist() == received[0].tolist()
    x = torch.arange(1000.0, device="opaque")
    row = pickle.loads(ForkingPickler.dumps(x[3:5]))
    assert row.tolist() == [3, 4] and row.untyped_storage().nbytes() == 8


def test_dlpack_says_what_to_do():
    x = torch.ones(2, device="opaque")
    for export in (
        x.__dlpack__,
        lambda: torch.utils.dlpack.to_dlpack(x),
        lambda: torch.from_dlpack(x),
    ):
        with pytest.raises(BufferError, match=r"\.cpu\(\) first"):
            export()
    assert torch.from_dlpack(x.cpu()).tolist() == [1, 1]
    with pytest.raises(TypeError, match=r"Tensor.cpu\(\)"):
        x.numpy()
