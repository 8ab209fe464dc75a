"""The first call in a new process, of rows of other modules: what a user waits for before the second one.

`first_cold_...`: no kernel on disk but those that came with the package. `first_warm_...`: the program ran before.
"""

from registry import ROWS, row

from . import models, vision  # noqa: F401, whose rows these are

OF = (
    "gpt2_124M_128",
    "gpt2_block_128",
    "bert_layer_128",
    "minilm_8x16",
    "resnet50_b1",
    "mobilenetv2_b1",
    "lstm_2x512_of_50",
    "train_mlp_784",
    "train_gpt2_block_128",
    "train_pvt_feed_forward_4x1024",
    "train_mobilenetv2_4x128",
)

for _name in OF:
    for _cache in ("cold", "warm"):
        row(f"first_{_cache}_{_name}", kind="first", of=_name)(ROWS[_name].make)
