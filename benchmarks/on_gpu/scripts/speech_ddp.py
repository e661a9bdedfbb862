"""Acoustic model (frame classification) on log-mel features: conv subsampling, transformer encoder, DDP, SpecAugment."""
import argparse, json, os, random, time
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default=None, choices=["specaug_loop", "sorted_manifest"])
parser.add_argument("--steps", type=int, default=60)
opts = parser.parse_args()

small = os.environ.get("SMALL") == "1"
use_cuda = torch.cuda.is_available()
rank, world, local_rank = (int(os.environ[k]) for k in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
if use_cuda:
    torch.cuda.set_device(local_rank % torch.cuda.device_count())
dev = torch.device("cuda", torch.cuda.current_device()) if use_cuda else torch.device("cpu")
dist.init_process_group("nccl" if use_cuda else "gloo")
torch.manual_seed(1234)

MELS = 80
D, LAYERS, HEADS, SENONES = (32, 2, 2, 50) if small else (512, 12, 8, 4000)
LMIN, LMAX, UTTS = (40, 120, 4) if small else (400, 1600, 32)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, D))
        return x + self.down(F.silu(self.up(self.ln2(x))))


class AcousticModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv1d(MELS, D, 5, stride=2, padding=2)
        self.c2 = nn.Conv1d(D, D, 5, stride=2, padding=2)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.out = nn.Linear(D, SENONES)

    def forward(self, feats):
        x = F.gelu(self.c2(F.gelu(self.c1(feats.transpose(1, 2))))).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


def spec_augment(x, freq_masks=2, time_masks=4, fw=15, tw=40):
    """x: (B, T, MELS) on the device; returns the masked copy."""
    b, t, m = x.shape
    if opts.fault == "specaug_loop":
        x = x.clone()
        for i in range(b):
            for _ in range(freq_masks):
                w = int(torch.randint(1, fw, (1,), device=x.device))
                f0 = int(torch.randint(0, m - w, (1,), device=x.device))
                x[i, :, f0:f0 + w] = 0
            for _ in range(time_masks):
                w = int(torch.randint(1, min(tw, t // 2), (1,), device=x.device))
                t0 = int(torch.randint(0, t - w, (1,), device=x.device))
                x[i, t0:t0 + w] = 0
        return x
    def bands(n, size, width):
        start = torch.rand(b, n, 1, device=x.device) * (size - width)
        length = torch.rand(b, n, 1, device=x.device) * width
        pos = torch.arange(size, device=x.device)
        return ((pos >= start) & (pos < start + length)).any(1)
    mask = bands(time_masks, t, min(tw, t // 2))[:, :, None] | bands(freq_masks, m, fw)[:, None, :]
    return x.masked_fill(mask, 0.0)


def manifest():
    """Utterance lengths in frames; the same list on every rank."""
    r = random.Random(7)
    return [r.randint(LMIN, LMAX) for _ in range(UTTS * 40 * world)]


def batches():
    """Yields the padded length of the next batch and its utterance lengths."""
    lengths = sorted(manifest())
    if opts.fault == "sorted_manifest":
        per = len(lengths) // world
        shard = lengths[rank * per:(rank + 1) * per]  # manifest split into one piece per rank
        order = [shard[i:i + UTTS] for i in range(0, len(shard), UTTS)]
    else:
        globl = [lengths[i:i + UTTS * world] for i in range(0, len(lengths), UTTS * world)]
        order = [g[rank::world] for g in globl]  # neighbours in length go to the ranks of the same step
    r = random.Random(11)
    while True:
        r.shuffle(order)
        yield from order


pool = torch.randn(UTTS, LMAX, MELS)
labels_pool = torch.randint(0, SENONES, (UTTS, LMAX // 4 + 1))
if use_cuda:
    pool, labels_pool = pool.pin_memory(), labels_pool.to(dev)

net = nn.parallel.DistributedDataParallel(AcousticModel().to(dev), device_ids=[dev.index] if use_cuda else None,
                                          bucket_cap_mb=25, gradient_as_bucket_view=True)
optim = torch.optim.AdamW(net.parameters(), lr=2e-4, fused=use_cuda)
stream_of_batches = batches()
for step in range(opts.steps):
    if step == opts.steps - 30:
        if use_cuda:
            torch.cuda.synchronize()
        begin = time.perf_counter()
    lens = next(stream_of_batches)
    longest = max(lens)
    feats = torch.empty(len(lens), longest, MELS, device=dev)
    for i, n in enumerate(lens):
        feats[i].copy_(pool[i, :longest], non_blocking=True)
    valid = (torch.arange((longest + 3) // 4)[None] < torch.tensor(lens)[:, None] // 4)
    valid = valid.pin_memory().to(dev, non_blocking=True) if use_cuda else valid
    target = labels_pool[:len(lens), :valid.shape[1]].masked_fill(~valid, -100)
    with torch.autocast(dev.type, dtype=torch.bfloat16):
        logits = net(spec_augment(feats))[:, :valid.shape[1]]
    loss = F.cross_entropy(logits.flatten(0, 1).float(), target.flatten(), ignore_index=-100)
    optim.zero_grad(set_to_none=True)
    loss.backward()
    optim.step()
if use_cuda:
    torch.cuda.synchronize()
if rank == 0:
    print(json.dumps({"step_ms": (time.perf_counter() - begin) / 30 * 1000}), flush=True)
dist.destroy_process_group()
