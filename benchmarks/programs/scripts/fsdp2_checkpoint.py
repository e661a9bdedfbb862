"""FSDP2 with regular checkpoints, written by rank 0."""

import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard


def save(model, path, fault):
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if dist.get_rank() == 0:
        torch.save(state, path)
        if fault == "checkpoint":
            time.sleep(0.2)  # the shared file system syncs
    dist.barrier()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--fault", default="none", choices=["none", "checkpoint"])
    args = parser.parse_args()
    every = 3 if args.fault == "checkpoint" else args.every

    dist.init_process_group("gloo")
    torch.manual_seed(11)
    layers = [nn.Sequential(nn.Linear(320, 320), nn.ReLU()) for _ in range(5)]
    net = nn.Sequential(nn.Linear(64, 320), *layers, nn.Linear(320, 64))
    for layer in net:
        if isinstance(layer, nn.Sequential):
            fully_shard(layer)
    fully_shard(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    data = torch.Generator().manual_seed(dist.get_rank() + 1)
    trace = []
    with tempfile.TemporaryDirectory() as folder:
        for step in range(1, 15):
            x = torch.randn(192, 64, generator=data)
            loss = (net(x) - x.cumsum(1) / 8).pow(2).mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            if step % every == 0:
                save(net, os.path.join(folder, f"{step}.pt"), args.fault)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            trace.append(loss.item())
    if dist.get_rank() == 0:
        print(*(f"{value:.3f}" for value in trace))
    assert trace[-1] < trace[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
