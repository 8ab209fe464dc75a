"""Training steps of small nets as people write them: images of 32 and 64 pixels, sequences of 64 steps, batches of 8 and 16.

Tan and Le, EfficientNet, 2019 (the block MBConv with squeeze-and-excitation); Ronneberger et al., U-Net, 2015, with Wu and He, Group
Normalization, 2018; Hochreiter and Schmidhuber, Long Short-Term Memory, 1997; Vaswani et al., Attention Is All You Need, 2017.
"""

import functools

import torch
import torch.nn.functional as F
from registry import row
from torch import nn

from rows.models import Recurrent, mean_square, training
from rows.vision import convolution


class MBConv(nn.Module):
    def __init__(self, channels, widened):
        super().__init__()
        self.widen = nn.Sequential(
            convolution(channels, widened, 1, activation=nn.SiLU),
            convolution(widened, widened, 3, groups=widened, activation=nn.SiLU),
        )
        self.squeeze, self.excite = nn.Conv2d(widened, channels, 1), nn.Conv2d(channels, widened, 1)
        self.narrow = convolution(widened, channels, 1)

    def forward(self, x):
        wide = self.widen(x)
        scale = self.excite(F.silu(self.squeeze(F.adaptive_avg_pool2d(wide, 1))))
        return x + self.narrow(wide * torch.sigmoid(scale))


class UNet(nn.Module):
    def __init__(self, width):
        super().__init__()

        def twice(inputs, outputs):
            layers = []
            for number in (inputs, outputs):
                conv = nn.Conv2d(number, outputs, 3, padding=1)
                layers += [conv, nn.GroupNorm(8, outputs), nn.SiLU()]
            return nn.Sequential(*layers)

        self.down = nn.ModuleList([twice(3, width), twice(width, 2 * width)])
        self.middle = twice(2 * width, 4 * width)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * n, n, 2, 2) for n in (2 * width, width))
        self.join = nn.ModuleList(twice(2 * n, n) for n in (2 * width, width))
        self.last = nn.Conv2d(width, 3, 1)

    def forward(self, x):
        seen = []
        for layer in self.down:
            seen.append(layer(x))
            x = F.max_pool2d(seen[-1], 2)
        x = self.middle(x)
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([up(x), seen.pop()], 1))
        return self.last(x)


def mbconv():
    return nn.Sequential(
        nn.Conv2d(3, 24, 3, 2, 1),
        MBConv(24, 96),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 10),
    )


def convnet():
    layers = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
        layers += [convolution(inputs, outputs, 3, activation=nn.ReLU), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 4 * 4, 10))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        return self.head(self.layers(self.embedding(x.long())).mean(1))


def labelled(x, classes=10):
    return x, torch.randint(0, classes, (16,))


@row(kind="steps", tolerance=1e-4)
def train_mbconv_16x64():
    return training(mbconv, F.cross_entropy), labelled(torch.randn(16, 3, 64, 64))


@row(kind="steps", tolerance=1e-4)
def train_unet_8x32():
    x, y = torch.randn(8, 3, 32, 32), torch.randn(8, 3, 32, 32)
    return training(functools.partial(UNet, 16), mean_square), (x, y)


@row(kind="steps", tolerance=1e-4)
def train_convnet_16x32():
    return training(convnet, F.cross_entropy), labelled(torch.randn(16, 3, 32, 32))


@row(kind="steps", tolerance=1e-4)
def train_encoder_16x64():
    return training(Encoder, F.cross_entropy), labelled(
        torch.randint(0, 1000, (16, 64)).float()
    )  # a row's model gets the dtype of its input


for _name, _kind, _options in (("lstm_2x256", nn.LSTM, {"num_layers": 2}), ("gru_256", nn.GRU, {})):
    row(f"train_{_name}_of_64", kind="steps", tolerance=1e-4)(
        lambda kind=_kind, options=_options: (
            training(functools.partial(Recurrent, kind, 256, **options), F.cross_entropy),
            labelled(torch.randn(64, 16, 256)),
        )
    )
