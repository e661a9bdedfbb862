"""ZeRO-2 by hand: one flat bucket per block, reduce-scatter during backward, all-gather hidden under the next forward."""
import argparse, json, os, time
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist

SMALL = os.environ.get("SMALL") == "1"
DIM, LAYERS, HEADS, VOCAB, B, S = (64, 2, 2, 256, 2, 32) if SMALL else (1024, 8, 16, 4096, 16, 512)
STEPS = 34 if SMALL else 60


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).view(B, S, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(B, S, DIM))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Bucket:
    """Low-precision flat parameters and gradients of one module, fp32 master shard of this rank."""
    def __init__(self, module, fault):
        self.fault, self.r, self.w = fault, dist.get_rank(), dist.get_world_size()
        ps = list(module.parameters())
        n = sum(p.numel() for p in ps)
        self.shard = -(-n // self.w)
        like = dict(device=ps[0].device, dtype=ps[0].dtype)
        self.flat, self.grad = (torch.zeros(self.shard * self.w, **like) for _ in range(2))
        at = 0
        for p in ps:
            view = self.flat[at:at + p.numel()].view_as(p)
            view.copy_(p.data)
            p.data, p.grad = view, self.grad[at:at + p.numel()].view_as(p)
            at += p.numel()
            p.register_post_accumulate_grad_hook(self.ready)
        self.master = nn.Parameter(self.mine(self.flat).float())
        self.gshard = torch.empty(self.shard, **like)
        self.count = self.total = len(ps)
        self.work = self.gather = None
        module.register_forward_pre_hook(self.before_forward)

    def mine(self, t):
        return t[self.r * self.shard:(self.r + 1) * self.shard]

    def ready(self, _):
        self.count -= 1
        if self.count == 0:
            self.count = self.total
            if self.fault != "after_backward":
                self.reduce()

    def reduce(self):
        if self.fault == "allgather_grads":
            self.all = torch.empty(self.w * len(self.grad), device=self.grad.device, dtype=self.grad.dtype)
            self.work = dist.all_gather_into_tensor(self.all, self.grad, async_op=True)
        else:
            self.work = dist.reduce_scatter_tensor(self.gshard, self.grad, async_op=True)

    def finish_reduce(self):
        self.work.wait()
        if self.fault == "allgather_grads":
            self.gshard = self.all.view(self.w, -1).sum(0)[self.r * self.shard:(self.r + 1) * self.shard]
            self.all = None
        self.master.grad = self.gshard.float().div_(self.w)
        self.grad.zero_()

    def start_gather(self):
        self.mine(self.flat).copy_(self.master.data)
        self.gather = dist.all_gather_into_tensor(self.flat, self.mine(self.flat).clone(), async_op=True)

    def before_forward(self, *_):
        if self.gather is not None:
            self.gather.wait()
            self.gather = None


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", choices=["allgather_grads", "after_backward"])
    fault = ap.parse_args().fault
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dev = torch.device("cuda" if cuda else "cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(VOCAB, DIM), *[Block() for _ in range(LAYERS)], nn.Linear(DIM, VOCAB, bias=False))
    model = model.to(dev, torch.bfloat16 if cuda else torch.float32)
    buckets = [Bucket(m, fault) for m in model]
    opt = torch.optim.AdamW([b.master for b in buckets], lr=3e-4, fused=cuda)
    gen = torch.Generator().manual_seed(rank)
    data = [torch.randint(0, VOCAB, (B, S + 1), generator=gen) for _ in range(8)]
    if cuda: data = [d.pin_memory() for d in data]
    for step in range(STEPS):
        if step == STEPS - 30:
            if cuda: torch.cuda.synchronize()
            t0 = time.perf_counter()
        ids = data[step % 8].to(dev, non_blocking=True)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        if fault == "after_backward":
            for b in reversed(buckets):
                b.reduce()
        for b in reversed(buckets):
            b.finish_reduce()
        opt.step()
        for b in buckets:
            b.start_gather()
        if step % 20 == 19 and rank == 0:
            print(f"step {step + 1} loss {loss.item():.3f}", flush=True)
    if cuda: torch.cuda.synchronize()
    if rank == 0:
        print(json.dumps({"step_ms": (time.perf_counter() - t0) / 30 * 1e3}))
    for b in buckets:
        b.before_forward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
