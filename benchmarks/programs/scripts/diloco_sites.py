"""DiLoCo: each site trains alone for a while; then they agree on an outer step."""

import argparse
import time

import torch
import torch.distributed as dist

H = 3  # inner steps


def busy(seconds):
    a = torch.randn(192, 192)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        a = (a @ a).softmax(1)


class Outer:
    """Nesterov momentum on what the inner steps changed."""

    def __init__(self, params, lr=0.7):
        self.params = list(params)
        self.anchor = [p.detach().clone() for p in self.params]
        self.sgd = torch.optim.SGD(self.anchor, lr=lr, momentum=0.5, nesterov=True)

    def step(self):
        for a, p in zip(self.anchor, self.params):
            a.grad = a - p.detach()
            dist.all_reduce(a.grad, op=dist.ReduceOp.SUM)
            a.grad /= dist.get_world_size()
        self.sgd.step()
        with torch.no_grad():
            for a, p in zip(self.anchor, self.params):
                p.copy_(a)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--fault", choices=["none", "slow-site"], default="none")

if __name__ == "__main__":
    args = parser.parse_args()
    dist.init_process_group("gloo")
    site = dist.get_rank()
    torch.manual_seed(3)
    lm = torch.nn.Sequential(
        torch.nn.Embedding(256, 160), torch.nn.Linear(160, 640), torch.nn.GELU(),
        torch.nn.Linear(640, 256),
    )  # fmt: skip
    inner = torch.optim.AdamW(lm.parameters(), lr=4e-3)
    outer = Outer(lm.parameters())
    text = torch.Generator().manual_seed(100 + site)
    losses = []
    for step in range(1, 15):
        x = torch.randint(0, 256, (12, 32), generator=text)
        loss = torch.nn.functional.cross_entropy(lm(x).flatten(0, 1), (x.flatten() * 5 + 1) % 256)
        inner.zero_grad()
        loss.backward()
        if args.fault == "slow-site" and site == 0:
            busy(0.012)
        inner.step()
        losses.append(loss.item())
        if step % H == 0:
            outer.step()
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()
