"""Expert-parallel MoE transformer: top-2 routing, all_to_all_single dispatch and combine."""
import argparse, json, os, time
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist

ap = argparse.ArgumentParser()
ap.add_argument("--fault", choices=["hot_expert", "fp32_dispatch"])
FAULT = ap.parse_args().fault
SMALL = os.environ.get("SMALL") == "1"
D, FF, E, K, L, V = (64, 128, 8, 2, 2, 256) if SMALL else (1024, 4096, 8, 2, 4, 4096)
B, S, H = (2, 32, 4) if SMALL else (8, 512, 16)
STEPS = 34 if SMALL else 60
CUDA = torch.cuda.is_available()
if CUDA:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
dev = torch.device("cuda" if CUDA else "cpu")
dist.init_process_group("nccl" if CUDA else "gloo")
R, W = dist.get_rank(), dist.get_world_size()
EL = E // W     # experts per rank


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, send, recv):
        ctx.send, ctx.recv = send, recv
        out = x.new_empty(sum(recv), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), recv, send)
        return out

    @staticmethod
    def backward(ctx, g):
        out = g.new_empty(sum(ctx.send), g.shape[1])
        dist.all_to_all_single(out, g.contiguous(), ctx.send, ctx.recv)
        return out, None, None


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(D, E, bias=False)
        self.w1 = nn.Parameter(torch.randn(EL, D, FF) * D ** -0.5)
        self.w2 = nn.Parameter(torch.randn(EL, FF, D) * FF ** -0.5)
        # selection bias of loss-free balancing, and the load seen in this step
        self.register_buffer("bias", torch.zeros(E))
        self.register_buffer("load", torch.zeros(E))
        if FAULT == "hot_expert":
            self.bias[0] = 1.0      # as restored from a checkpoint whose router collapsed

    def forward(self, x):
        T = x.shape[0]
        prob = self.router(x).float().softmax(-1)
        idx = (prob + self.bias).topk(K, -1).indices
        gate = prob.gather(-1, idx)
        flat = idx.flatten()
        order = flat.argsort(stable=True)
        count = torch.zeros(E, dtype=torch.long, device=dev).scatter_add_(0, flat, torch.ones_like(flat))
        self.load += count
        incoming = torch.empty_like(count)
        dist.all_to_all_single(incoming, count)
        both = torch.stack([count, incoming]).view(2, W, EL).tolist()      # the one host sync of the layer
        send, recv = ([sum(c) for c in side] for side in both)
        per_expert = [sum(both[1][w][e] for w in range(W)) for e in range(EL)]

        got = AllToAll.apply(x[order // K], send, recv)
        eid = torch.arange(EL, device=dev).repeat(W).repeat_interleave(incoming, output_size=sum(recv))
        by_expert = eid.argsort(stable=True)
        parts = got[by_expert].split(per_expert)
        done = torch.cat([F.gelu(p @ a) @ b for p, a, b in zip(parts, self.w1.unbind(), self.w2.unbind())])
        back = torch.empty_like(by_expert)
        back[by_expert] = torch.arange(len(by_expert), device=dev)
        out = AllToAll.apply(done[back].to(x.dtype), recv, send)
        slot = torch.empty_like(order)
        slot[order] = torch.arange(len(order), device=dev)
        return (out[slot].view(T, K, D) * gate[..., None].to(out.dtype)).sum(1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj, self.moe = nn.Linear(D, 3 * D), nn.Linear(D, D), MoE()

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).view(B, S, 3, H, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(B, S, D))
        h = self.n2(x).flatten(0, 1)        # layer_norm runs in fp32 under autocast
        if FAULT != "fp32_dispatch":
            h = h.to(torch.bfloat16)
        return x + self.moe(h).view(B, S, D)


torch.manual_seed(11)
emb = nn.Embedding(V, D)
blocks = nn.Sequential(*[Block() for _ in range(L)])
head = nn.Linear(D, V, bias=False)
model = nn.ModuleList([emb, blocks, head]).to(dev)
experts = {id(p) for b in blocks for p in (b.moe.w1, b.moe.w2)}
shared = [p for p in model.parameters() if id(p) not in experts]
opt = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=CUDA)
gen = torch.Generator().manual_seed(R)
data = [torch.randint(0, V, (B, S + 1), generator=gen) for _ in range(8)]
if CUDA: data = [d.pin_memory() for d in data]


def sync_shared():
    flat = torch.cat([p.grad.flatten().to(torch.bfloat16) for p in shared]).div_(W)
    dist.all_reduce(flat)
    chunks = flat.split([p.numel() for p in shared])
    torch._foreach_copy_([p.grad for p in shared], [c.view_as(p) for c, p in zip(chunks, shared)])


def rebalance():
    load = torch.stack([b.moe.load for b in blocks])
    dist.all_reduce(load)
    if FAULT != "hot_expert":
        for b, l in zip(blocks, load):
            b.moe.bias -= 0.02 * torch.sign(l - l.mean())
    for b in blocks:
        b.moe.load.zero_()


for step in range(STEPS):
    if step == STEPS - 30:
        if CUDA: torch.cuda.synchronize()
        t0 = time.perf_counter()
    ids = data[step % 8].to(dev, non_blocking=True)
    with torch.autocast(dev.type, torch.bfloat16):
        logits = head(blocks(emb(ids[:, :-1])))
        loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
    loss.backward()
    sync_shared()
    opt.step()
    opt.zero_grad(set_to_none=True)
    rebalance()
    if step % 20 == 19 and R == 0:
        print("step", step + 1, "loss", round(loss.item(), 3), flush=True)
if CUDA: torch.cuda.synchronize()
if R == 0:
    print(json.dumps({"step_ms": (time.perf_counter() - t0) / 30 * 1e3}))
dist.destroy_process_group()
