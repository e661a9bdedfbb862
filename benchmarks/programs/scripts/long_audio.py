"""Denoises long recordings: each rank has a stretch of time, and its neighbours' edges."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_gather_single_autograd


class Edges(torch.autograd.Function):
    """Puts ``reach`` samples of each neighbour beside this rank's; zeros where there is none."""

    @staticmethod
    def swap(to_left, to_right):
        """What the neighbours on the left and on the right sent."""
        rank, world = dist.get_rank(), dist.get_world_size()
        left, right = torch.zeros_like(to_right), torch.zeros_like(to_left)
        messages = []
        for peer, outgoing, incoming in ((rank - 1, to_left, left), (rank + 1, to_right, right)):
            if 0 <= peer < world:
                messages.append(dist.P2POp(dist.isend, outgoing.contiguous(), peer))
                messages.append(dist.P2POp(dist.irecv, incoming, peer))
        for work in dist.batch_isend_irecv(messages):
            work.wait()
        return left, right

    @staticmethod
    def forward(ctx, x, reach):
        ctx.reach = reach
        left, right = Edges.swap(x[..., :reach], x[..., -reach:])
        return torch.cat([left, x, right], dim=-1)

    @staticmethod
    def backward(ctx, grad):
        reach = ctx.reach
        left, right = Edges.swap(grad[..., :reach], grad[..., -reach:])
        grad = grad[..., reach:-reach].clone()
        grad[..., :reach] += left
        grad[..., -reach:] += right
        return grad, None


def from_whole(x, reach):
    """The same from everybody's samples."""
    whole = all_gather_single_autograd(x.contiguous(), gather_dim=2, group=dist.group.WORLD)
    whole = nn.functional.pad(whole, (reach, reach))
    start = dist.get_rank() * x.size(-1)
    return whole[..., start : start + x.size(-1) + 2 * reach]


class Denoiser(nn.Module):
    def __init__(self, neighbours, channels=8, dilations=(1, 2, 4, 8)):
        super().__init__()
        self.neighbours = neighbours
        self.lift, self.lower = nn.Conv1d(1, channels, 1), nn.Conv1d(channels, 1, 1)
        self.layers = nn.ModuleList(
            nn.Conv1d(channels, channels, 3, dilation=dilation) for dilation in dilations
        )

    def forward(self, x):
        x = self.lift(x)
        for layer in self.layers:
            x = x + torch.tanh(layer(self.neighbours(x, layer.dilation[0])))
        return self.lower(x)


def recording(batch, length, generator):
    """A few tones, and the same with noise."""
    time = torch.arange(length) / 80
    pitch = torch.rand(batch, 3, 1, generator=generator) * 4 + 0.5
    clean = torch.sin(pitch * time).sum(1, keepdim=True)
    return clean, clean + 0.5 * torch.randn(clean.shape, generator=generator)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=16384)
    parser.add_argument("--fault", choices=["none", "gather-recording"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Denoiser(Edges.apply if args.fault == "none" else from_whole)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(2)
    losses = []
    for _ in range(14):
        clean, noisy = (
            part.chunk(world, dim=-1)[rank] for part in recording(4, args.samples, generator)
        )
        loss = (model(noisy) - clean).square().mean()
        optimizer.zero_grad()
        loss.backward()
        packed = nn.utils.parameters_to_vector([p.grad for p in model.parameters()])
        dist.all_reduce(packed)
        nn.utils.vector_to_parameters(packed / world, [p.grad for p in model.parameters()])
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()
