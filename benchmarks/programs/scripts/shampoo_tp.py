"""Tensor-parallel MLP (DTensor, parallelize_module) trained with a block-wise Shampoo.

Shampoo preconditions each gradient matrix with inverse roots of its second moments; here
every rank does this for its own shard, so that the optimizer needs no communication.

    torchrun --nproc-per-node 2 shampoo_tp.py [--fault roots_every_step]

The inverse roots (an eigendecomposition each) are normally renewed every 25 steps.  With
--fault roots_every_step all ranks recompute all of them in every step.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

DIM, FF, LAYERS, BATCH = 112, 224, 3, 256


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.up = nn.Linear(DIM, FF, bias=False)
        self.gate = nn.Linear(DIM, FF, bias=False)
        self.down = nn.Linear(FF, DIM, bias=False)

    def forward(self, x):
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(20, DIM)
        self.layers = nn.ModuleList(FeedForward() for _ in range(LAYERS))
        self.out = nn.Linear(DIM, 6)

    def forward(self, x):
        x = self.inp(x)
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


def inverse_fourth_root(m, eps=1e-6):
    val, vec = torch.linalg.eigh(m + eps * m.diagonal().mean() * torch.eye(len(m)))
    return (vec * val.clamp(min=1e-12).pow(-0.25)) @ vec.t()


class BlockShampoo(torch.optim.Optimizer):
    """Shampoo on the local shards; steps have the length of the plain gradient (grafting)."""

    def __init__(self, params, lr=0.1, beta=0.95, every=25):
        super().__init__(params, dict(lr=lr, beta=beta))
        self.every, self.count = every, 0

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                w, g = p.to_local(), p.grad.to_local()
                st = self.state[p]
                if not st:
                    st["left"] = torch.zeros(w.shape[0], w.shape[0])
                    st["right"] = torch.zeros(w.shape[1], w.shape[1])
                st["left"].lerp_(g @ g.t(), 1 - group["beta"])
                st["right"].lerp_(g.t() @ g, 1 - group["beta"])
                if self.count % self.every == 0:
                    st["lroot"] = inverse_fourth_root(st["left"])
                    st["rroot"] = inverse_fourth_root(st["right"])
                d = st["lroot"] @ g @ st["rroot"]
                w.add_(d, alpha=-group["lr"] * (g.norm() / (d.norm() + 1e-12)).item())
        self.count += 1


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", choices=["none", "roots_every_step"], default="none")
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    torch.manual_seed(2)
    net = Net()
    for layer in net.layers:
        parallelize_module(
            layer,
            mesh,
            {"up": ColwiseParallel(), "gate": ColwiseParallel(), "down": RowwiseParallel()},
        )
    sharded = [p for p in net.parameters() if isinstance(p, DTensor)]
    plain = [p for p in net.parameters() if not isinstance(p, DTensor)]
    shampoo = BlockShampoo(sharded, every=1 if args.fault == "roots_every_step" else 25)
    adam = torch.optim.AdamW(plain, lr=2e-3)
    g = torch.Generator().manual_seed(6)  # the same data on both ranks
    w = torch.randn(20, 6, generator=g) / 4
    losses, times = [], []
    for step in range(29):
        x = torch.randn(BATCH, 20, generator=g)
        y = torch.tanh(3 * x @ w)
        t0 = time.perf_counter()
        loss = F.mse_loss(net(x), y)
        net.zero_grad()
        loss.backward()
        shampoo.step()
        adam.step()
        losses.append(loss.item())
        times.append(time.perf_counter() - t0)
    if dist.get_rank() == 0:
        assert losses[-1] < losses[0]
        print(f"mse {losses[0]:.4f} -> {losses[-1]:.4f}")
        print(f"mean step {sum(times[4:]) / len(times[4:]) * 1e3:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
