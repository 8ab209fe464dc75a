"""The small reader of text IR: nodes, bytes, dot."""

import pytest
from torch_opaque import irtext

TEXT = """graph @g0 {
  %0 = input f32[128,768]
  %1 = input f32[3072,768]
  %2 = scalar f32[] {value=0x1p+0}
  %3 = matmul f32[128,3072] %0, %1 {transpose_b=1}   # train.py:40
  %4 = add f32[128,3072] %3, %2           # train.py:41
  %5 = permute f32[3072,128] %4 {dims=[1,0]}
  %6 = sum f32[3072,1] %5 {axes=[1], tree=lanes}
  output %4
  output %6
}
"""


def test_parse():
    nodes, outputs = irtext.parse(TEXT)
    assert [n.op for n in nodes] == ["input", "input", "scalar", "matmul", "add", "permute", "sum"]
    assert (
        nodes[3].operands == (0, 1)
        and nodes[3].attrs == "transpose_b=1"
        and nodes[3].line == "train.py:40"
    )
    assert nodes[6].attrs == "axes=[1], tree=lanes" and nodes[6].type == "f32[3072,1]"
    assert outputs == [4, 6]


@pytest.mark.parametrize(
    "text, size",
    [("f32[3]", 12), ("bf16[2,2]", 8), ("i64[]", 8), ("bool[0,5]", 0), ("raw128[2]", 32)],
)
def test_type_bytes(text, size):
    assert irtext.type_bytes(text) == size


def test_unfused_bytes_counts_ops_not_views():
    matrix = 128 * 3072 * 4
    matmul = 128 * 768 * 4 + 3072 * 768 * 4 + matrix
    add = 2 * matrix
    total = matmul + add + matrix + 3072 * 4
    assert irtext.unfused_bytes(TEXT) == total


def test_dot():
    dot = irtext.to_dot(TEXT)
    assert dot.startswith("digraph opaque {") and dot.rstrip().endswith("}")
    assert (
        'n0 -> n3 [label="f32[128,768]"];' in dot and "n6 -> out1" in dot and "train.py:41" in dot
    )
