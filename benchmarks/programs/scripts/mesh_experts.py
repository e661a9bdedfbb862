"""Four ranks: two replicas of two experts each; tokens go to experts by all_to_all."""

import argparse
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

TOKENS, DIM = 32, 48


class Dispatch(torch.autograd.Function):
    """Half of the tokens to each expert; backward sends the gradients home."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group, out = group, torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        return Dispatch.apply(grad, ctx.group), None


def expert_call(expert, x, seconds):
    time.sleep(seconds)  # the expert runs on an accelerator
    return torch.relu(expert(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "slow-expert"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "expert"))
    mine, same = mesh.get_group("expert"), mesh.get_group("replica")
    rank = dist.get_rank()
    torch.manual_seed(mesh.get_local_rank("expert"))
    expert = torch.nn.Linear(DIM, DIM)
    torch.manual_seed(9)
    out = torch.nn.Linear(DIM, DIM)
    opt = torch.optim.SGD([*expert.parameters(), *out.parameters()], lr=0.3)
    seconds = 0.045 if args.fault == "slow-expert" and rank == 3 else 0.015
    gen = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(14):
        x = torch.rand(TOKENS, DIM, generator=gen)
        y = Dispatch.apply(expert_call(expert, Dispatch.apply(x, mine), seconds), mine)
        loss = (out(y) - x.flip(1)).square().mean()
        opt.zero_grad()
        loss.backward()
        for p in expert.parameters():
            dist.all_reduce(p.grad, group=same)
            p.grad /= 2
        for p in out.parameters():
            dist.all_reduce(p.grad)
            p.grad /= 4
        opt.step()
        losses.append(loss.item())
    print(rank, losses[0], losses[-1])
    assert losses[-1] < losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
