"""Only rank 0 can read the data: it scatters a part of each batch to everybody."""

import argparse
import time

import torch
import torch.distributed as dist

FEATURES, PART = 128, 64


class Archive:
    def __init__(self, world, seek):
        self.gen, self.world, self.seek = torch.Generator().manual_seed(0), world, seek

    def read(self):
        time.sleep(self.seek)
        x = torch.randn(self.world, PART, FEATURES + 1, generator=self.gen)
        x[..., -1] = x[..., :3].sum(-1)
        return list(x)


def receive(archive):
    part = torch.empty(PART, FEATURES + 1)
    dist.scatter(part, archive.read() if archive else None, src=0)
    return part[:, :-1], part[:, -1:]


if __name__ == "__main__":
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--lr", type=float, default=0.01)
    cli.add_argument("--fault", choices=["none", "slow-archive"], default="none")
    args = cli.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    seek = 0.030 if args.fault == "slow-archive" else 0.002
    archive = Archive(world, seek) if rank == 0 else None
    torch.manual_seed(4)
    net = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(FEATURES, 256), torch.nn.ELU(), torch.nn.Linear(256, 1))
    )
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    losses = []
    for step in range(14):
        x, y = receive(archive)
        time.sleep(0.010)  # the accelerator
        loss = torch.nn.functional.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        if rank == 0:
            print(f"{step=} {loss=:.4f}")
    assert losses[-1] < losses[0]
    dist.destroy_process_group()
