"""ResNet-50 and MobileNetV2, as published, with random weights: inference on images of 224 x 224, training steps on small ones; a block
of PVTv2.

He et al., Deep Residual Learning for Image Recognition, 2015 (with the stride in the 3x3 convolution); Sandler et al., MobileNetV2:
Inverted Residuals and Linear Bottlenecks, 2018; Wang et al., PVT v2: Improved Baselines with Pyramid Vision Transformer, 2022.
"""

import functools

import torch
import torch.nn.functional as F
from registry import row
from torch import nn

from rows.models import mean_square, training


def convolution(inputs, outputs, size, stride=1, groups=1, activation=None):
    layers = [
        nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([activation()] if activation else []))


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.branch = nn.Sequential(
            convolution(inputs, width, 1, activation=nn.ReLU),
            convolution(width, width, 3, stride, activation=nn.ReLU),
            convolution(width, 4 * width, 1),
        )
        same = stride == 1 and inputs == 4 * width
        self.skip = nn.Identity() if same else convolution(inputs, 4 * width, 1, stride)

    def forward(self, x):
        return torch.relu(self.branch(x) + self.skip(x))


def resnet50():
    layers = [convolution(3, 64, 7, 2, activation=nn.ReLU), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(blocks):
            layers.append(Bottleneck(inputs, width, stride if i == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


class InvertedResidual(nn.Module):
    def __init__(self, inputs, outputs, stride, expansion):
        super().__init__()
        width = inputs * expansion
        widen = [convolution(inputs, width, 1, activation=nn.ReLU6)] if expansion > 1 else []
        self.branch = nn.Sequential(
            *widen,
            convolution(width, width, 3, stride, groups=width, activation=nn.ReLU6),
            convolution(width, outputs, 1),
        )
        self.same = stride == 1 and inputs == outputs

    def forward(self, x):
        return x + self.branch(x) if self.same else self.branch(x)


# expansion, channels, blocks, stride of the first
MOBILENET = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenetv2():
    layers, inputs = [convolution(3, 32, 3, 2, activation=nn.ReLU6)], 32
    for expansion, channels, blocks, stride in MOBILENET:
        for i in range(blocks):
            layers.append(InvertedResidual(inputs, channels, stride if i == 0 else 1, expansion))
            inputs = channels
    layers.append(convolution(inputs, 1280, 1, activation=nn.ReLU6))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


def inference(make, batch):
    return make().eval(), (torch.randn(batch, 3, 224, 224),)


for _name, _make, _flops in (("resnet50", resnet50, 8.18e9), ("mobilenetv2", mobilenetv2, 0.6e9)):
    for _batch in (1, 8):
        row(f"{_name}_b{_batch}", flops=_batch * _flops)(
            functools.partial(inference, _make, _batch)
        )


# ---- training


class ConvolutionalFeedForward(nn.Module):
    """PVTv2's: patches are seen as an image between two products, where channels come last."""

    def __init__(self, width=32, ratio=8):
        super().__init__()
        hidden = width * ratio
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.mix = nn.Conv2d(hidden, hidden, 3, 1, 1, groups=hidden)

    def forward(self, x):
        batch, patches, _ = x.shape
        side = int(patches**0.5)
        y = self.up(x).transpose(1, 2).view(batch, -1, side, side)
        return self.down(F.gelu(self.mix(y).flatten(2).transpose(1, 2)))


@row(kind="steps", tolerance=1e-4)
def train_pvt_feed_forward_4x1024():
    x, y = torch.randn(4, 1024, 32), torch.randn(4, 1024, 32)
    return training(ConvolutionalFeedForward, mean_square), (x, y)


# Norms over four images decide much by the last bit: f32 and f64 drift apart in eager, too.
@row(kind="steps", tolerance=1e-4)
def train_mobilenetv2_4x128():
    x, y = torch.randn(4, 3, 128, 128), torch.randint(0, 1000, (4,))
    return training(mobilenetv2, F.cross_entropy), (x, y)
