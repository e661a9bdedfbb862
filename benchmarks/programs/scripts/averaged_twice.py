"""DDP, but the tutorial's average_gradients was never taken out."""

import argparse

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def average_gradients(model):
    size = float(dist.get_world_size())
    for param in model.parameters():
        summed = funcol.all_reduce(param.grad, "sum", dist.group.WORLD)
        param.grad.copy_(funcol.wait_tensor(summed)).div_(size)


class Net(nn.Module):
    """The tutorial's, only wider."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, kernel_size=5)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=5)
        self.fc1 = nn.Linear(512, 1024)
        self.fc2 = nn.Linear(1024, 1024)
        self.fc3 = nn.Linear(1024, 10)

    def forward(self, x):
        x = nn.functional.relu(nn.functional.max_pool2d(self.conv1(x), 2))
        x = nn.functional.relu(nn.functional.max_pool2d(self.conv2(x), 2))
        x = nn.functional.relu(self.fc1(x.flatten(1)))
        x = nn.functional.relu(self.fc2(x))
        return nn.functional.log_softmax(self.fc3(x), dim=1)


def digits(batch, generator):
    """Bright squares; the label is where."""
    label = torch.randint(0, 10, (batch,), generator=generator)
    image = torch.rand(batch, 1, 28, 28, generator=generator)
    for picture, where in zip(image, label.tolist()):
        row, column = divmod(where, 4)
        picture[0, 8 * row : 8 * row + 6, 7 * column : 7 * column + 6] += 2
    return image, label


def run(rank, args):
    torch.manual_seed(1234)
    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(args.steps):
        data, target = digits(args.batch_size, generator)
        optimizer.zero_grad()
        loss = nn.functional.nll_loss(model(data), target)
        loss.backward()
        if args.fault == "averaged-twice":
            average_gradients(model)
        optimizer.step()
        losses.append(loss.item())
    print("Rank", rank, "epoch loss:", sum(losses) / len(losses))
    assert losses[-1] < losses[0], losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=192)
    parser.add_argument("--steps", type=int, default=22)
    parser.add_argument("--fault", choices=["none", "averaged-twice"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    run(dist.get_rank(), args)
    dist.destroy_process_group()
