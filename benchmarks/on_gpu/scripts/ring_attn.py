"""Context-parallel training of a long-sequence transformer with ring attention (4 ranks)."""
import argparse, json, os, time
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist

SMALL = os.environ.get("SMALL") == "1"
DIM, HEADS, LAYERS, VOCAB, SLOC = (64, 4, 2, 128, 32) if SMALL else (1024, 16, 2, 4096, 2048)
STEPS = 34 if SMALL else 60
FAULT = None


def ring(t):
    """Start passing t to the next rank; gives the buffer being filled and the requests."""
    r, w = dist.get_rank(), dist.get_world_size()
    buf = torch.empty_like(t)
    reqs = dist.batch_isend_irecv([dist.P2POp(dist.isend, t, (r + 1) % w), dist.P2POp(dist.irecv, buf, (r - 1) % w)])
    return buf, reqs


def wait(reqs):
    while reqs:
        reqs.pop().wait()


def plan(src, rank):
    """Which local queries see which keys of rank src: (query slice, key slice, diagonal) or None."""
    half, full = SLOC // 2, slice(0, SLOC)
    if src == rank:
        return full, full, True
    if FAULT == "contiguous":               # rank r holds tokens [r*SLOC, (r+1)*SLOC)
        return (full, full, False) if src < rank else None
    # zigzag: rank r holds chunks r and 2W-1-r
    return (full, slice(0, half), False) if src < rank else (slice(half, SLOC), full, False)


class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, kv):
        r, w = dist.get_rank(), dist.get_world_size()
        scale = q.shape[-1] ** -0.5
        out = torch.zeros(q.shape, device=q.device)
        lse = torch.full(q.shape[:-1], -1e30, device=q.device)
        mask = torch.ones(SLOC, SLOC, dtype=torch.bool, device=q.device).triu(1)
        cur = kv
        for t in range(w):
            if t + 1 < w:
                nxt, reqs = ring(cur)
                if FAULT == "wait_first":
                    wait(reqs)
            todo = plan((r - t) % w, r)
            if todo:
                qs, ks, diag = todo
                s = (q[:, qs] @ cur[0][:, ks].transpose(1, 2)).float().mul_(scale)
                if diag: s.masked_fill_(mask, -1e30)
                b = s.logsumexp(-1)
                o = s.sub_(b[..., None]).exp_().to(q.dtype) @ cur[1][:, ks]
                new = torch.logaddexp(lse[:, qs], b)
                out[:, qs] = out[:, qs] * (lse[:, qs] - new).exp()[..., None] + o * (b - new).exp()[..., None]
                lse[:, qs] = new
            if t + 1 < w:
                if FAULT != "wait_first":
                    wait(reqs)
                cur = nxt
        out = out.to(q.dtype)
        ctx.save_for_backward(q, kv, out, lse, mask)
        return out

    @staticmethod
    def backward(ctx, do):
        q, kv, out, lse, mask = ctx.saved_tensors
        r, w = dist.get_rank(), dist.get_world_size()
        scale = q.shape[-1] ** -0.5
        do = do.contiguous()
        delta = (do.float() * out.float()).sum(-1)
        dq = torch.zeros(q.shape, device=q.device)
        cur, dkv, dreqs = kv, None, None
        for t in range(w):
            if t + 1 < w:
                nxt, reqs = ring(cur)
                if FAULT == "wait_first":
                    wait(reqs)
            mine = torch.zeros_like(kv)
            todo = plan((r - t) % w, r)
            if todo:
                qs, ks, diag = todo
                k, v = cur[0][:, ks], cur[1][:, ks]
                s = (q[:, qs] @ k.transpose(1, 2)).float().mul_(scale)
                if diag: s.masked_fill_(mask, -1e30)
                p = s.sub_(lse[:, qs][..., None]).exp_()
                mine[1][:, ks] = p.to(q.dtype).transpose(1, 2) @ do[:, qs]
                dp = (do[:, qs] @ v.transpose(1, 2)).float().sub_(delta[:, qs][..., None])
                ds = p.mul_(dp).mul_(scale).to(q.dtype)
                dq[:, qs] += ds @ k
                mine[0][:, ks] = ds.transpose(1, 2) @ q[:, qs]
            if dreqs is not None:       # the gradient of this block, as far as the ranks before us got
                wait(dreqs)
                mine += dkv
            dkv, dreqs = ring(mine)
            if FAULT == "wait_first":
                wait(dreqs)
            if t + 1 < w:
                if FAULT != "wait_first":
                    wait(reqs)
                cur = nxt
        wait(dreqs)
        return dq.to(q.dtype), dkv


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        qkv = self.qkv(self.n1(x)).view(SLOC, 3, HEADS, -1).permute(1, 2, 0, 3).contiguous()
        a = RingAttention.apply(qkv[0], qkv[1:].contiguous())
        x = x + self.proj(a.transpose(0, 1).reshape(SLOC, DIM))
        return x + self.down(F.gelu(self.up(self.n2(x))))


def main():
    global FAULT
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", choices=["wait_first", "contiguous"])
    FAULT = ap.parse_args().fault
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dev = torch.device("cuda" if cuda else "cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.all_reduce(torch.ones(1, device=dev))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(VOCAB, DIM), *[Block() for _ in range(LAYERS)], nn.Linear(DIM, VOCAB)).to(dev)
    params = list(model.parameters())
    opt = torch.optim.AdamW(params, lr=1e-4, fused=cuda)
    half = SLOC // 2
    if FAULT == "contiguous":
        own = torch.arange(rank * SLOC, (rank + 1) * SLOC)
    else:
        own = torch.cat([torch.arange(c * half, (c + 1) * half) for c in (rank, 2 * world - 1 - rank)])
    gen = torch.Generator().manual_seed(5)
    docs = [torch.randint(0, VOCAB, (world * SLOC + 1,), generator=gen) for _ in range(8)]
    data = [torch.stack([d[own], d[own + 1]]) for d in docs]
    if cuda: data = [d.pin_memory() for d in data]
    for step in range(STEPS):
        if step == STEPS - 30:
            if cuda: torch.cuda.synchronize()
            t0 = time.perf_counter()
        ids, target = data[step % 8].to(dev, non_blocking=True)
        with torch.autocast(dev.type, torch.bfloat16):
            loss = F.cross_entropy(model(ids).float(), target)
        loss.backward()
        flat = torch.cat([p.grad.flatten().to(torch.bfloat16) for p in params]).div_(world)
        dist.all_reduce(flat)
        parts = flat.split([p.numel() for p in params])
        torch._foreach_copy_([p.grad for p in params], [c.view_as(p) for c, p in zip(parts, params)])
        opt.step()
        opt.zero_grad(set_to_none=True)
        if step % 20 == 19 and rank == 0:
            print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
    if cuda: torch.cuda.synchronize()
    if rank == 0:
        print(json.dumps({"step_ms": (time.perf_counter() - t0) / 30 * 1e3}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
