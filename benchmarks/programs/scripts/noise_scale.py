"""Measures the gradient noise scale (McCandlish et al.) beside training."""

import argparse

import torch
import torch.distributed as dist
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=256)
parser.add_argument("--smoothing", type=float, default=0.8)
parser.add_argument("--fault", choices=["none", "example-by-example"], default="none")
args = parser.parse_args()
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(128, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 10)
)
parameters = list(model.parameters())
optimizer = torch.optim.SGD(parameters, lr=0.2, momentum=0.8)
criterion = nn.CrossEntropyLoss()
generator = torch.Generator().manual_seed(100 + rank)
teacher = torch.randn(128, 10, generator=torch.Generator().manual_seed(1))

noise = signal = 0.0
losses = []
example_norms = []
for step in range(15):
    x = torch.randn(args.batch_size, 128, generator=generator)
    y = (x @ teacher).argmax(1)
    if args.fault == "example-by-example" and rank == 0 and step % 3 == 0:
        # the spread among examples, for the report
        for i in range(40):
            grads = torch.autograd.grad(criterion(model(x[i : i + 1]), y[i : i + 1]), parameters)
            example_norms.append(sum(g.square().sum() for g in grads).item())
    loss = criterion(model(x), y)
    gradients = torch.autograd.grad(loss, parameters)

    # the last element is the squared norm of this rank's own gradient
    own = torch.cat([g.flatten() for g in gradients])
    packed = torch.cat([own, own.square().sum().view(1)])
    dist.all_reduce(packed)
    packed /= world_size
    mean, small = packed[:-1], packed[-1].item()
    big = mean.square().sum().item()

    b_small, b_big = args.batch_size, args.batch_size * world_size
    norm_squared = (b_big * big - b_small * small) / (b_big - b_small)
    variance = (small - big) / (1 / b_small - 1 / b_big)
    signal = args.smoothing * signal + (1 - args.smoothing) * norm_squared
    noise = args.smoothing * noise + (1 - args.smoothing) * variance

    for parameter, gradient in zip(
        parameters, mean.split([p.numel() for p in parameters]), strict=True
    ):
        parameter.grad = gradient.view_as(parameter)
    optimizer.step()
    losses.append(loss.item())

if rank == 0:
    print(f"noise scale {noise / signal:.0f}, loss {losses[0]:.3f} -> {losses[-1]:.3f}")
assert noise > 0 and losses[-1] < losses[0]
dist.destroy_process_group()
