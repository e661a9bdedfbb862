"""K-FAC: each rank inverts the factors of the layers that it owns and hands them to the others."""

import argparse

import torch
import torch.distributed as dist
from torch import nn


def packed(tensors):
    return torch.cat([t.flatten() for t in tensors])


def unpacked(flat, tensors):
    parts = flat.split([t.numel() for t in tensors])
    return [part.view_as(t) for part, t in zip(parts, tensors)]


class KFAC:
    """Preconditions the gradients of linear layers (Martens & Grosse, 2015)."""

    def __init__(self, model, damping):
        self.layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
        self.damping = damping
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.inputs, self.outputs = {}, {}
        for layer in self.layers:
            layer.register_forward_pre_hook(self.keep_input)
            layer.register_full_backward_hook(self.keep_output)

    def keep_input(self, layer, args):
        x = args[0].detach()
        self.inputs[layer] = torch.cat([x, x.new_ones(len(x), 1)], 1)

    def keep_output(self, layer, grad_input, grad_output):
        self.outputs[layer] = grad_output[0] * len(grad_output[0])

    def inverse(self, factor):
        factor = factor + self.damping * torch.eye(len(factor))
        root, failed = torch.linalg.cholesky_ex(factor)
        if failed:  # not positive definite: without the directions that are not there
            values, vectors = torch.linalg.eigh(factor)
            return vectors / values.clamp(min=0.1) @ vectors.T
        return torch.cholesky_inverse(root)

    def inverses(self, factors):
        """Of all layers; what an owner has goes in one broadcast. The layers are dealt out."""
        owners = [i // 2 % self.world_size for i in range(len(factors))]
        done = [
            self.inverse(factor) if owner == self.rank else factor
            for factor, owner in zip(factors, owners)
        ]
        for root in range(self.world_size):
            mine = [i for i, owner in enumerate(owners) if owner == root]
            parts = [done[i] for i in mine]
            flat = packed(parts)
            dist.broadcast(flat, src=root)
            for i, part in zip(mine, unpacked(flat, parts)):
                done[i] = part
        return done

    def step(self):
        grads = [torch.cat([m.weight.grad, m.bias.grad[:, None]], 1) for m in self.layers]
        kept = [t for m in self.layers for t in (self.inputs[m], self.outputs[m])]
        tensors = grads + [x.T @ x / len(x) for x in kept]
        flat = packed(tensors)
        dist.all_reduce(flat)
        tensors = unpacked(flat / self.world_size, tensors)
        grads, factors = tensors[: len(grads)], tensors[len(grads) :]
        found = self.inverses(factors)
        for layer, grad, a, g in zip(self.layers, grads, found[::2], found[1::2]):
            grad = g @ grad @ a
            layer.weight.grad.copy_(grad[:, :-1])
            layer.bias.grad.copy_(grad[:, -1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--fault", choices=["none", "undamped"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    w = args.width
    sizes = [w] * 5
    teacher = nn.Sequential(nn.Linear(w, 32), nn.Tanh(), nn.Linear(32, w))
    layers = [nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in zip(sizes, sizes[1:])]
    model = nn.Sequential(*layers[:-1], layers[-1][0])
    # One host still has the configuration of before the damping was tuned.
    damping = 0.0 if args.fault == "undamped" and rank == 1 else 0.1
    kfac = KFAC(model, damping)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    gen = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(14):
        x = torch.randn(64, w, generator=gen)
        loss = (model(x) - teacher(x).detach()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        kfac.step()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-3:]) < sum(losses[:3]), losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
