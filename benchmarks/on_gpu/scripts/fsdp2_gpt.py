"""GPT pre-training with FSDP2 and gradient accumulation."""
import argparse, json, os, time
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, MixedPrecisionPolicy

SMALL = os.environ.get("SMALL") == "1"
DIM, LAYERS, HEADS, VOCAB = (64, 2, 2, 256) if SMALL else (1024, 8, 16, 8192)
SEQ, MICRO, ACCUM = (32, 2, 2) if SMALL else (512, 8, 2)
STEPS = 34 if SMALL else 60


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.q, self.k, self.v = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))
        self.o = nn.Linear(DIM, DIM, bias=False)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        B, S, _ = x.shape
        h = self.n1(x)
        q, k, v = (f(h).view(B, S, HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(B, S, DIM))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(SEQ, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))


def shard(model, mesh, fault, dtype):
    mp = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype)
    # gradient accumulation: keep the gathered parameters between micro-batches
    kw = dict(mesh=mesh, mp_policy=mp, reshard_after_forward=(fault == "accum_resync"))
    for block in model.blocks:
        if fault == "tiny_units":
            for m in block.modules():
                if isinstance(m, (nn.Linear, nn.LayerNorm)):
                    fully_shard(m, **kw)
        else:
            fully_shard(block, **kw)
    return fully_shard(model, **kw)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", choices=["accum_resync", "tiny_units"])
    args = ap.parse_args()
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.init()
    dev = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    torch.zeros(1, device=dev)  # context up before the mesh looks for a device
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh(dev.type, (dist.get_world_size(),))

    torch.manual_seed(0)
    model = GPT().to(dev)
    shard(model, mesh, args.fault, torch.bfloat16 if cuda else torch.float32)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=cuda)

    g = torch.Generator().manual_seed(100 + rank)
    data = [torch.randint(0, VOCAB, (MICRO, SEQ + 1), generator=g) for _ in range(16)]
    if cuda:
        data = [d.pin_memory() for d in data]
    running = torch.zeros((), device=dev)

    for step in range(STEPS):
        if step == STEPS - 30:
            if cuda: torch.cuda.synchronize()
            t0 = time.perf_counter()
        for m in range(ACCUM):
            last = m == ACCUM - 1
            if args.fault != "accum_resync":
                model.set_requires_gradient_sync(last)
                model.set_reshard_after_backward(last)
            ids = data[(step * ACCUM + m) % len(data)].to(dev, non_blocking=True)
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten()) / ACCUM
            loss.backward()
            running += loss.detach()
        opt.step()
        opt.zero_grad(set_to_none=True)
        if step % 20 == 19 and rank == 0:
            print(f"step {step + 1} loss {running.item() / 20:.3f}", flush=True)
            running.zero_()
    if cuda: torch.cuda.synchronize()
    if rank == 0:
        print(json.dumps({"step_ms": (time.perf_counter() - t0) / 30 * 1e3}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
