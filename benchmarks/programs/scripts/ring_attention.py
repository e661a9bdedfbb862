"""Context parallelism: keys and values travel round a ring by batch_isend_irecv."""

import argparse
import math
import time

import torch
import torch.distributed as dist


def rotate(*tensors):
    """Hand these on to the next rank; what the one before hands on."""
    rank, n = dist.get_rank(), dist.get_world_size()
    received = [torch.empty_like(t) for t in tensors]
    ops = []
    for tensor, buffer in zip(tensors, received):
        ops.append(dist.P2POp(dist.isend, tensor, (rank + 1) % n))
        ops.append(dist.P2POp(dist.irecv, buffer, (rank - 1) % n))
    if rank % 2:
        ops = [*ops[1::2], *ops[::2]]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return received


def attend(q, k, v, delay):
    """Attention over all chunks of the sequence (the values' gradient stays local)."""
    weights, values = [], []
    for hop in range(dist.get_world_size()):
        if hop:
            if delay:
                time.sleep(delay)
            k, v = rotate(k.detach().contiguous(), v.detach().contiguous())
        weights.append(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]))
        values.append(v)
    return torch.cat(weights, -1).softmax(-1) @ torch.cat(values, -2)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--chunk", type=int, default=256, help="length of a rank's part")
    ap.add_argument("--fault", default="none", choices=["none", "sleeping-rank"])
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    qkv = torch.nn.Linear(128, 384)
    out = torch.nn.Linear(128, 128)
    params = [*qkv.parameters(), *out.parameters()]
    opt = torch.optim.Adam(params, lr=2e-3)
    delay = 0.025 if args.fault == "sleeping-rank" and rank == 1 else 0.0
    data = torch.Generator().manual_seed(50 + rank)
    curve = []
    for step in range(14):
        x = torch.randn(4, args.chunk, 128, generator=data)
        loss = (out(attend(*qkv(x).chunk(3, -1), delay)) - x.mean(1, keepdim=True)).square().mean()
        opt.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in params])
        dist.all_reduce(flat)
        for p, g in zip(params, flat.split([p.numel() for p in params])):
            p.grad.copy_(g.view_as(p) / dist.get_world_size())
        opt.step()
        curve.append(loss.item())
        if rank == 0:
            print(step, round(curve[-1], 4))
    assert curve[-1] < curve[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
