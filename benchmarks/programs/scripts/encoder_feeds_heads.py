"""Rank 0 trains an autoencoder and sends its codes to the others, who train a head on them."""

import argparse

import torch
import torch.distributed as dist
from torch import nn

ROWS, PIXELS, CODE = 256, 512, 256


class Encoder:
    """Goes on learning by itself; hands out codes of two batches per step."""

    def __init__(self, receivers):
        self.receivers = receivers
        self.encode = nn.Sequential(nn.Linear(PIXELS, 512), nn.ReLU(), nn.Linear(512, CODE))
        self.decode = nn.Sequential(nn.ReLU(), nn.Linear(CODE, PIXELS))
        params = [*self.encode.parameters(), *self.decode.parameters()]
        self.optimizer = torch.optim.Adam(params, lr=1e-3)

    def step(self, gen):
        loss = 0
        for receiver in self.receivers:
            x = torch.randn(ROWS, 16, generator=gen) @ torch.ones(16, PIXELS).triu()
            code = self.encode(x)
            dist.send(code.detach(), receiver)
            loss = loss + (self.decode(code) - x).square().mean() / len(self.receivers)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


class Head:
    """Learns by itself what is in a code, with the other heads."""

    def __init__(self, group, calibrates):
        self.group, self.calibrates = group, calibrates
        self.net = nn.Sequential(nn.Linear(CODE, 768), nn.GELU(), nn.Linear(768, 768), nn.GELU(),
                                 nn.Linear(768, 1))  # fmt: skip
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        self.kept = torch.randn(4 * ROWS, CODE)

    @torch.no_grad()
    def calibrate(self):
        """Temperature by the codes of before; looked at in tensorboard once."""
        for temperature in (0.5, 2.0):
            torch.sigmoid(self.net(self.kept) / temperature).mean()

    def step(self, gen):
        if self.calibrates:
            self.calibrate()
        code = torch.empty(ROWS, CODE)
        dist.recv(code, 0)
        self.kept = torch.cat((self.kept[ROWS:], code))
        loss = nn.functional.mse_loss(self.net(code), code.norm(dim=1, keepdim=True))
        self.optimizer.zero_grad()
        loss.backward()
        for p in self.net.parameters():
            dist.all_reduce(p.grad, group=self.group)
        self.optimizer.step()
        return loss.item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=["none", "calibrate-each-step"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    heads = dist.new_group(range(1, world))
    torch.manual_seed(0)
    if rank == 0:
        me = Encoder(range(1, world))
    else:
        me = Head(heads, args.fault == "calibrate-each-step" and rank == 2)
    gen = torch.Generator().manual_seed(rank)
    losses = [me.step(gen) for _ in range(22)]
    assert losses[-1] < losses[0], losses
    dist.barrier()
    dist.destroy_process_group()
