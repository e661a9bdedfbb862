"""Images and captions by a sigmoid loss; captions travel around a ring of ranks.

Each rank compares its images to its own captions, then to those of the rank
before it, and so on. Captions of others are constants for the loss.

    torchrun --nproc-per-node 3 siglip_ring.py [--fault wait-first]

--fault wait-first: the exchange is started before the loss of what is there,
but waited for before it, too.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

FAULT = ""
PIXELS, WORDS, WIDTH, EMBED, BATCH, STEPS = 256, 400, 96, 1024, 96, 70


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(
            nn.Linear(PIXELS, WIDTH), nn.GELU(), nn.Linear(WIDTH, EMBED, bias=False)
        )
        self.words = nn.EmbeddingBag(WORDS, WIDTH)
        self.text = nn.Linear(WIDTH, EMBED, bias=False)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.bias = nn.Parameter(torch.tensor(-4.0))

    def forward(self, image, caption):
        image = F.normalize(self.image(image), dim=1)
        return image, F.normalize(self.text(self.words(caption)), dim=1)


def pair_loss(model, image, text, own):
    logits = model.scale.exp() * image @ text.T + model.bias
    sign = 2 * torch.eye(len(image)) - 1 if own else -torch.ones(len(image), len(text))
    return -F.logsigmoid(sign * logits).sum() / len(image)


def pass_on(text):
    """Send to the next rank, and receive from the one before."""
    rank, world = dist.get_rank(), dist.get_world_size()
    arriving = torch.empty_like(text)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, text, (rank + 1) % world),
            dist.P2POp(dist.irecv, arriving, (rank - 1) % world),
        ]
    )
    return arriving, works


def ring_loss(model, image, text):
    world = dist.get_world_size()
    total, here = 0.0, text
    held = text.detach().contiguous()
    for hop in range(world):
        if hop + 1 < world:
            arriving, works = pass_on(held)
            if FAULT == "wait-first":
                for work in works:
                    work.wait()
        total = total + pair_loss(model, image, here, own=hop == 0)
        if hop + 1 < world:
            if FAULT != "wait-first":
                for work in works:
                    work.wait()
            here = held = arriving
    return total


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = Towers()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank)
    look = torch.randn(WORDS, PIXELS, generator=torch.Generator().manual_seed(50))
    took = []
    for step in range(STEPS):
        start = time.perf_counter()
        caption = torch.randint(WORDS, (BATCH, 8), generator=gen)
        image = look[caption].mean(1) + 0.1 * torch.randn(BATCH, PIXELS, generator=gen)
        loss = ring_loss(model, *model(image, caption))
        opt.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.all_reduce(flat)
        sizes = [p.numel() for p in model.parameters()]
        for p, g in zip(model.parameters(), flat.div_(world).split(sizes)):
            p.grad = g.view_as(p)
        opt.step()
        took.append(time.perf_counter() - start)
        if rank == 0 and step % 20 == 0:
            print(f"step {step:3d}  loss {loss.item():.3f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "wait-first"])
    FAULT = parser.parse_args().fault
    main()
