"""Averaging gradients in one flat all_reduce, clipping, and an exponential moving average."""

import argparse
import copy
import time

import torch
import torch.distributed as dist


def flat_average(model):
    grads = [p.grad for p in model.parameters()]
    flat = torch._utils._flatten_dense_tensors(grads)
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for g, f in zip(grads, torch._utils._unflatten_dense_tensors(flat, grads)):
        g.copy_(f)


@torch.no_grad()
def update_ema(ema, model, decay=0.99):
    for e, p in zip(ema.parameters(), model.parameters()):
        e.lerp_(p, 1 - decay)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--fault", choices=["none", "ema-on-rank-0", "sleeping-rank"], default="none"
    )
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(17)
    denoiser = torch.nn.Sequential(
        torch.nn.Linear(256, 640), torch.nn.SiLU(), torch.nn.Linear(640, 640), torch.nn.SiLU(),
        torch.nn.Linear(640, 256),
    )  # fmt: skip
    ema = copy.deepcopy(denoiser)
    opt = torch.optim.AdamW(denoiser.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank)
    basis = torch.randn(8, 256, generator=torch.Generator().manual_seed(1))
    log = []
    for step in range(14):
        clean = torch.randn(160, 8, generator=gen) @ basis / 3
        noise = torch.randn(160, 256, generator=gen)
        loss = (denoiser(clean + 0.3 * noise) - clean).square().mean()
        loss.backward()
        if rank == 1 and args.fault == "sleeping-rank":
            time.sleep(0.040)
        flat_average(denoiser)
        torch.nn.utils.clip_grad_norm_(denoiser.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        update_ema(ema, denoiser)
        if rank == 0 and args.fault == "ema-on-rank-0":
            until = time.perf_counter() + 0.035  # dozens of averages, to choose from later
            while time.perf_counter() < until:
                update_ema(ema, denoiser)
        log.append(loss.item())
    print(f"rank {rank}", " ".join("%.3f" % v for v in log))
    assert log[-1] < log[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
