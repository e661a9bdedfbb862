"""Four-stage pipeline, 1F1B schedule over batch_isend_irecv."""
import argparse, json, os, time
from collections import deque
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist

SMALL = os.environ.get("SMALL") == "1"
DIM, HEADS, VOCAB, SEQ, BATCH = (64, 2, 256, 16, 8) if SMALL else (1024, 16, 16384, 512, 32)
STEPS = 34 if SMALL else 60
# head costs about as much as 1.3 layers, so the last stage has one layer less
SPLIT = [3, 3, 3, 2]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.fc1, self.fc2 = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, s, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, d))
        return x + self.fc2(F.gelu(self.fc1(self.n2(x))))


class Stage(nn.Module):
    def __init__(self, n, first, last):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM) if first else None
        self.blocks = nn.Sequential(*[Block() for _ in range(n)])
        self.head = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)) if last else None

    def forward(self, x, target=None):
        x = self.blocks(x if self.emb is None else self.emb(x))
        if self.head is None:
            return x
        return F.cross_entropy(self.head(x).flatten(0, 1).float(), target.flatten())


class Pipe:
    def __init__(self, stage, micro, n_micro, dev, dtype, fault):
        self.stage, self.m, self.fault, self.dtype = stage, n_micro, fault, dtype
        self.r, self.w = dist.get_rank(), dist.get_world_size()
        self.shape, self.dev = (micro, SEQ, DIM), dev
        self.first, self.last = self.r == 0, self.r == self.w - 1

    def p2p(self, to_next=None, to_prev=None, from_prev=False, from_next=False):
        ops, a, g = [], None, None
        if from_prev and not self.first:
            a = torch.empty(self.shape, device=self.dev, dtype=self.dtype)
            ops.append(dist.P2POp(dist.irecv, a, self.r - 1))
        if to_prev is not None and not self.first:
            ops.append(dist.P2POp(dist.isend, to_prev, self.r - 1))
        if to_next is not None and not self.last:
            ops.append(dist.P2POp(dist.isend, to_next, self.r + 1))
        if from_next and not self.last:
            g = torch.empty(self.shape, device=self.dev, dtype=self.dtype)
            ops.append(dist.P2POp(dist.irecv, g, self.r + 1))
        if ops:
            for q in dist.batch_isend_irecv(ops):
                q.wait()
            if self.fault == "sync_p2p" and self.dev.type == "cuda":
                torch.cuda.synchronize()  # protect against the batch_isend_irecv race
        return a, g

    def fwd(self, i, x, ids):
        if self.first:
            x = ids[i][:, :-1]
        else:
            x.requires_grad_()
        with torch.autocast(self.dev.type, torch.bfloat16, enabled=self.dev.type == "cuda"):
            y = self.stage(x, ids[i][:, 1:])
        if self.last:
            self.loss += y.detach() / self.m
            y = y / self.m
        else:
            y = y.to(self.dtype)
        self.live.append((x, y))
        return y.detach().contiguous()

    def bwd(self, g):
        x, y = self.live.popleft()
        y.backward(None if self.last else g)
        return None if self.first else x.grad

    def step(self, ids):
        self.live, self.loss = deque(), torch.zeros((), device=self.dev)
        warm = min(self.w - 1 - self.r, self.m)
        for i in range(warm):
            x, _ = self.p2p(from_prev=True)
            self.p2p(to_next=self.fwd(i, x, ids))
        x, _ = self.p2p(from_prev=True) if warm < self.m else (None, None)
        for i in range(warm, self.m):
            _, g = self.p2p(to_next=self.fwd(i, x, ids), from_next=True)
            gx = self.bwd(g)
            x, _ = self.p2p(to_prev=gx, from_prev=i + 1 < self.m)
        for _ in range(warm):
            _, g = self.p2p(from_next=True)
            self.p2p(to_prev=self.bwd(g))
        return self.loss


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", choices=["even_split", "few_micro", "sync_p2p"])
    fault = ap.parse_args().fault
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dev = torch.device("cuda" if cuda else "cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.all_reduce(torch.ones(1, device=dev))     # world communicator up before the first p2p
    torch.manual_seed(rank)
    # eleven layers dealt out from the back: 2 3 3 3
    split = [(sum(SPLIT) + i) // world for i in range(world)] if fault == "even_split" else SPLIT
    n_micro = 4 if fault == "few_micro" else 8
    stage = Stage(split[rank], rank == 0, rank == world - 1).to(dev)
    opt = torch.optim.AdamW(stage.parameters(), lr=1e-4, fused=cuda)
    pipe = Pipe(stage, BATCH // n_micro, n_micro, dev, torch.bfloat16 if cuda else torch.float32, fault)
    gen = torch.Generator().manual_seed(3)
    data = [torch.randint(0, VOCAB, (BATCH, SEQ + 1), generator=gen) for _ in range(8)]
    if cuda: data = [d.pin_memory() for d in data]
    for step in range(STEPS):
        if step == STEPS - 30:
            if cuda: torch.cuda.synchronize()
            t0 = time.perf_counter()
        loss = pipe.step(data[step % 8].to(dev, non_blocking=True).chunk(n_micro))
        opt.step()
        opt.zero_grad(set_to_none=True)
        if step % 20 == 19 and rank == world - 1:
            print(f"step {step + 1}: {loss.item():.3f}", flush=True)
    if cuda: torch.cuda.synchronize()
    if rank == 0:
        print(json.dumps({"step_ms": (time.perf_counter() - t0) / 30 * 1e3}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
