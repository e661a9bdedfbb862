"""Rain from the hours before, by a temporal convolutional network at many gauges.

Gradients cross the network as whole numbers of eight bits (summed in sixteen): everybody rounds with the
same scale, the largest gradient of all ranks. What rounding loses is added to the next gradient.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parametrizations

LEVELS = 127


class Causal(nn.Module):
    def __init__(self, channels, dilation, dropout=0.05):
        super().__init__()
        self.pad = 2 * dilation
        conv = nn.Conv1d(channels, channels, 3, dilation=dilation)
        self.conv = parametrizations.weight_norm(conv)
        self.scale = nn.Parameter(torch.ones(channels, 1))
        self.shift = nn.Parameter(torch.zeros(channels, 1))
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        y = self.conv(nn.functional.pad(x, (self.pad, 0)))
        return x + self.drop(torch.relu(y * self.scale + self.shift))


class Gauges(nn.Sequential):
    def __init__(self, channels=24, levels=6):
        blocks = [Causal(channels, 2 ** (i % 4)) for i in range(levels)]
        super().__init__(nn.Conv1d(4, channels, 1), *blocks, nn.Conv1d(channels, 1, 1))


class OctetReducer:
    """Means of gradients over ranks, in eight bits; what ``per_tensor`` says has a scale each."""

    def __init__(self, parameters, per_tensor):
        self.parameters, self.per_tensor = list(parameters), per_tensor
        self.lost = [torch.zeros_like(p) for p in self.parameters]

    def largest(self, gradients):
        peaks = torch.stack([g.abs().max() for g in gradients]).clamp_min(1e-12)
        if self.per_tensor:
            for peak in peaks:
                dist.all_reduce(peak, op=dist.ReduceOp.MAX)
        else:
            dist.all_reduce(peaks, op=dist.ReduceOp.MAX)
        return peaks

    @torch.no_grad()
    def __call__(self):
        gradients = [p.grad + lost for p, lost in zip(self.parameters, self.lost, strict=True)]
        peaks = self.largest(gradients)
        octets = [(g / s * LEVELS).round() for g, s in zip(gradients, peaks, strict=True)]
        for i, (gradient, octet) in enumerate(zip(gradients, octets, strict=True)):
            self.lost[i] = gradient - octet * peaks[i] / LEVELS
        total = torch.cat([octet.flatten() for octet in octets]).half()
        dist.all_reduce(total)
        means = total.float() / (LEVELS * dist.get_world_size())
        pieces = means.split([p.numel() for p in self.parameters])
        for parameter, piece, peak in zip(self.parameters, pieces, peaks, strict=True):
            parameter.grad.copy_(piece.view_as(parameter) * peak)


def weather(generator, gauges=12, hours=48):
    seen = torch.randn(gauges, 4, hours, generator=generator)
    rain = seen[:, :1].roll(2, -1) * 0.6 + torch.relu(seen[:, 1:2].roll(5, -1))
    return seen, rain


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "scale-by-scale"], default="none")
    fault = parser.parse_args().fault
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(8)
    model = Gauges()
    reduce = OctetReducer(model.parameters(), fault == "scale-by-scale")
    optimizer = torch.optim.NAdam(model.parameters(), lr=4e-3)
    generator = torch.Generator().manual_seed(30 + dist.get_rank())
    torch.manual_seed(80 + dist.get_rank())
    history = []
    for _ in range(18):
        seen, rain = weather(generator)
        loss = (model(seen) - rain)[..., 8:].square().mean()
        model.zero_grad()
        loss.backward()
        reduce()
        optimizer.step()
        history.append(loss.item())
    assert sum(history[-4:]) < sum(history[:4])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
