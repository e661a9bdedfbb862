"""Gradients live in flat buckets; each is reduced as soon as backward has filled it."""

import argparse
import time

import torch
import torch.distributed as dist


class Bucket:
    def __init__(self, params):
        self.params = params
        self.flat = torch.zeros(sum(p.numel() for p in params))
        views = self.flat.split([p.numel() for p in params])
        for p, view in zip(params, views):
            p.grad = view.view_as(p)
            p.register_post_accumulate_grad_hook(self.ready)
        self.missing, self.handle = len(params), None

    def ready(self, _):
        self.missing -= 1
        if not self.missing:
            self.handle = dist.all_reduce(self.flat, async_op=True)

    def finish(self):
        self.handle.wait()
        self.flat.div_(dist.get_world_size())
        self.missing = len(self.params)


def histograms(model, seconds):
    """For the dashboard."""
    until, book = time.perf_counter() + seconds, {}
    while time.perf_counter() < until:
        for name, p in model.named_parameters():
            book[name] = torch.histc(p.grad, 64)
    return book


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--layers", type=int, default=6)
    cli.add_argument("--fault", choices=["none", "grad-histograms"], default="none")
    opts = cli.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(448, 448) for _ in range(opts.layers)]
    model = torch.nn.Sequential(*[m for layer in layers for m in (layer, torch.nn.Tanh())])
    buckets = [
        Bucket([*a.parameters(), *b.parameters()]) for a, b in zip(layers[::2], layers[1::2])
    ]
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for step in range(14):
        torch.manual_seed(2 * step + rank)
        x = torch.randn(160, 448)
        loss = (model(x) - x.roll(3, 1).tanh()).square().mean()
        for bucket in buckets:
            bucket.flat.zero_()
        loss.backward()
        for bucket in reversed(buckets):
            bucket.finish()
        if rank == 0 and opts.fault == "grad-histograms":
            histograms(model, 0.018)
        adam.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
