"""A simulation feeds a surrogate: rank 0 integrates, rank 1 learns from what it is sent."""

import argparse
import os
import tempfile
import zlib

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

CELLS, BATCHES = 48, 22


def lorenz96(x):
    return (x.roll(-1, 1) - x.roll(2, 1)) * x.roll(1, 1) - x + 8.0


def advance(x, substeps, dt=0.005):
    for _ in range(substeps):
        k1 = lorenz96(x)
        k2 = lorenz96(x + dt / 2 * k1)
        k3 = lorenz96(x + dt / 2 * k2)
        k4 = lorenz96(x + dt * k3)
        x = x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return x


def simulate(members, substeps, step):
    """Sends each state and the next; while a pair travels, the one after it is integrated."""
    x = advance(8.0 + torch.randn(members, CELLS), 400)
    pair = torch.stack([x, advance(x, substeps)])
    for _ in range(BATCHES):
        pending = dist.isend(pair, dst=1)
        following = torch.stack([pair[1], advance(pair[1], substeps)])
        pending.wait()
        pair = following
        step()


def draw(errors, path):
    """The errors of all members as a grey PNG's pixels, as a human likes to see them."""
    scale = errors.max().item() or 1.0
    rows = [bytes(min(255, int(255 * e / scale)) for e in row) for row in errors.tolist()]
    path.append(len(zlib.compress(b"".join(b"\0" + row for row in rows), 9)))


class Surrogate(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(CELLS, hidden), nn.SiLU(), nn.Linear(hidden, CELLS))

    def forward(self, x):
        return x + self.net(x / 8.0)


def learn(members, hidden, draws, step):
    model = Surrogate(hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    pair, losses, pictures = torch.empty(2, members, CELLS), [], []
    for _ in range(BATCHES):
        dist.recv(pair, src=0)
        before, after = pair.unbind()
        for _ in range(3):
            errors = model(before) - after
            loss = errors.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
        if draws:
            draw(errors.detach().abs(), pictures)
        step()
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, {len(pictures)} pictures")
    assert losses[-1] < losses[0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--members", type=int, default=600)
    parser.add_argument("--substeps", type=int, default=14)
    parser.add_argument("--hidden", type=int, default=96)
    parser.add_argument("--traces", default=os.path.join(tempfile.gettempdir(), "sim_feeder"))
    parser.add_argument("--fault", choices=["none", "draws-each-batch"], default="none")
    args = parser.parse_args()
    os.makedirs(args.traces, exist_ok=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True,
        schedule=schedule(wait=4, warmup=1, active=8, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(f"{args.traces}/rank{rank}.json"),
    ) as profiler:  # fmt: skip
        if rank == 0:
            simulate(args.members, args.substeps, profiler.step)
        else:
            learn(args.members, args.hidden, args.fault != "none", profiler.step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
