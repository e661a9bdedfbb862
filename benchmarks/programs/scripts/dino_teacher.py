"""DINO: a student learns from a teacher, which is the moving average of the student."""

import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

PATCHES, PIXELS, WIDTH, PROTOTYPES = 16, 48, 160, 256


class Encoder(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.patch = nn.Linear(PIXELS, WIDTH)
        self.mix = nn.ModuleList(nn.Linear(PATCHES, PATCHES) for _ in range(depth))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(depth)
        )
        self.head = nn.Linear(WIDTH, PROTOTYPES, bias=False)

    def forward(self, image):
        x = self.patch(image)
        for mix, mlp in zip(self.mix, self.mlp):
            x = x + mix(F.layer_norm(x, (WIDTH,)).mT).mT
            x = x + mlp(F.layer_norm(x, (WIDTH,)))
        return self.head(F.normalize(x.mean(1), dim=-1))


class Teacher:
    """A copy of the student that follows it slowly, with a running centre of its outputs."""

    def __init__(self, student, momentum=0.99):
        self.net = copy.deepcopy(student).requires_grad_(False)
        self.momentum, self.centre = momentum, torch.zeros(PROTOTYPES)

    @torch.no_grad()
    def __call__(self, views):
        out = self.net(views)
        mean = out.mean(0)
        dist.all_reduce(mean)
        probabilities = ((out - self.centre) / 0.03).softmax(-1)
        self.centre = 0.9 * self.centre + 0.1 * mean / dist.get_world_size()
        return probabilities

    @torch.no_grad()
    def follow(self, student):
        for mine, its in zip(self.net.parameters(), student.parameters()):
            mine.lerp_(its, 1 - self.momentum)

    def same_everywhere(self):
        """Takes rank 0's copy, in case that ours has drifted."""
        for parameter in self.net.parameters():
            dist.broadcast(parameter.data, src=0)


def two_views(gen, scenes):
    scene = scenes[torch.randint(len(scenes), (10,), generator=gen)]
    noise = 0.4 * torch.randn(2, *scene.shape, generator=gen)
    return scene + noise[0], scene + noise[1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "share-teacher"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    encoder = Encoder()
    teacher = Teacher(encoder)
    student = nn.parallel.DistributedDataParallel(encoder, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(student.parameters(), lr=3e-3, weight_decay=0.04)
    scenes = torch.randn(32, PATCHES, PIXELS)
    gen = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(14):
        a, b = two_views(gen, scenes)
        target_a, target_b = teacher(torch.cat([a, b])).chunk(2)
        out_a, out_b = (student(torch.cat([a, b])) / 0.1).log_softmax(-1).chunk(2)
        loss = -(target_a * out_b + target_b * out_a).sum(-1).mean() / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        teacher.follow(encoder)
        if args.fault == "share-teacher":
            teacher.same_everywhere()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    drift = torch.stack([p.sum() for p in teacher.net.parameters()])
    mine = drift.clone()
    dist.broadcast(drift, src=0)
    assert torch.equal(mine, drift)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
