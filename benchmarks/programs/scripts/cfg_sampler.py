"""Diffusion sampling with classifier-free guidance split over two ranks.

Rank 0 denoises with the prompt, rank 1 without; after each denoising step
they exchange what they predict and both update the same latents. The prompt
is encoded once, before the first step of a batch of pictures.

    torchrun --nproc-per-node 2 cfg_sampler.py [--fault reencode]

--fault reencode: rank 0 runs its prompt through the text encoder anew at every
denoising step; the null prompt of rank 1 is still encoded once.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "reencode"])
FAULT = parser.parse_args().fault
BATCH, SIDE, LATENT, WIDTH, CONTEXT, WORDS = 6, 32, 4, 48, 128, 64
PICTURES, DENOISE = 3, 30
GUIDANCE = 5.0


class TextEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(4000, CONTEXT)
        layer = nn.TransformerEncoderLayer(CONTEXT, 4, 4 * CONTEXT, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    def forward(self, ids):
        return self.layers(self.words(ids))


class CrossBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, WIDTH), nn.GroupNorm(8, WIDTH)
        self.conv1 = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.conv2 = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.time = nn.Linear(WIDTH, WIDTH)
        self.q = nn.Linear(WIDTH, WIDTH)
        self.kv = nn.Linear(CONTEXT, 2 * WIDTH)

    def forward(self, x, t, context):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(t)[:, :, None, None]
        x = x + self.conv2(F.silu(self.norm2(h)))
        b, c, height, width = x.shape
        k, v = self.kv(context).chunk(2, dim=-1)
        q = self.q(x.flatten(2).transpose(1, 2))
        a = F.scaled_dot_product_attention(q, k, v)
        return x + a.transpose(1, 2).reshape(b, c, height, width)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(LATENT, WIDTH, 3, padding=1)
        self.blocks = nn.ModuleList(CrossBlock() for _ in range(3))
        self.out = nn.Conv2d(WIDTH, LATENT, 3, padding=1)

    def forward(self, x, t, context):
        freq = torch.exp(torch.arange(WIDTH // 2) * -0.2) * t
        emb = torch.cat([freq.sin(), freq.cos()]).expand(len(x), -1)
        x = self.stem(x)
        for block in self.blocks:
            x = block(x, emb, context)
        return self.out(x)


@torch.inference_mode()
def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    encoder, denoiser = TextEncoder().eval(), Denoiser().eval()
    alphas = torch.linspace(0.999, 0.02, DENOISE).flip(0)
    gen = torch.Generator().manual_seed(9)
    took = []
    for picture in range(PICTURES):
        prompt = torch.randint(1, 4000, (BATCH, WORDS), generator=gen)
        ids = prompt if rank == 0 else torch.zeros_like(prompt)
        x = torch.randn(BATCH, LATENT, SIDE, SIDE, generator=gen)
        context = encoder(ids)
        for i in range(DENOISE - 1):
            start = time.perf_counter()
            if FAULT == "reencode" and rank == 0:
                context = encoder(ids)
            eps = denoiser(x, float(DENOISE - i), context)
            both = [torch.empty_like(eps) for _ in range(2)]
            dist.all_gather(both, eps)
            eps = both[1] + GUIDANCE * (both[0] - both[1])
            now, then = alphas[i], alphas[i + 1]
            clean = ((x - (1 - now).sqrt() * eps) / now.sqrt()).clamp(-4, 4)
            x = then.sqrt() * clean + (1 - then).sqrt() * eps
            took.append(time.perf_counter() - start)
        if rank == 0:
            print(f"batch {picture}  latents {x.mean():.3f} +- {x.std():.3f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
