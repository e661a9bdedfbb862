"""A physics-informed network: L-BFGS calls the closure several times, each sums over the ranks."""

import argparse

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--points", type=int, default=600)
parser.add_argument("--fault", choices=["none", "fine-domain"], default="none")
args = parser.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
net = torch.nn.Sequential(
    torch.nn.Linear(1, 96), torch.nn.Tanh(), torch.nn.Linear(96, 96), torch.nn.Tanh(),
    torch.nn.Linear(96, 96), torch.nn.Tanh(), torch.nn.Linear(96, 1),
)  # fmt: skip
points = args.points
if args.fault == "fine-domain" and rank == 1:
    points *= 3  # the boundary layer is in this subdomain
x = torch.linspace(rank / world, (rank + 1) / world, points)[:, None].requires_grad_()
optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=4, history_size=10)


def residual():
    u = net(x)
    (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (ddu,) = torch.autograd.grad(du.sum(), x, create_graph=True)
    return (ddu + torch.sin(3 * x)).square().mean() + net(torch.zeros(1, 1)).square().sum()


def closure():
    optimizer.zero_grad()
    loss = residual() / world
    loss.backward()
    flat = torch.cat([p.grad.flatten() for p in net.parameters()] + [loss.detach()[None]])
    dist.all_reduce(flat)
    grads = flat[:-1].split([p.numel() for p in net.parameters()])
    for p, grad in zip(net.parameters(), grads):
        p.grad.copy_(grad.view_as(p))
    return flat[-1]


losses = [optimizer.step(closure).item() for _ in range(14)]
print(losses)
assert losses[-1] < losses[0]
dist.destroy_process_group()
