"""Language model: body replicated (data parallel), embedding and output head split over the vocabulary.
The head sees the hidden states of all ranks; the cross entropy is computed on vocabulary shards."""
import argparse, json, os, time
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist

cli = argparse.ArgumentParser()
cli.add_argument("--fault", choices=["gather_logits", "resync_weights"], default=None)
FAULT = cli.parse_args().fault
SMALL, CUDA = os.environ.get("SMALL") == "1", torch.cuda.is_available()
D, L, H, V, SEQ, B, STEPS, TIMED = (64, 2, 4, 512, 32, 2, 6, 3) if SMALL else (768, 6, 12, 16384, 512, 12, 60, 30)


class GatherTokens(torch.autograd.Function):
    """[n, d] -> [world*n, d]; backward sums the shards' gradients for our own tokens."""

    @staticmethod
    def forward(ctx, x):
        out = x.new_empty(x.size(0) * dist.get_world_size(), x.size(1))
        dist.all_gather_into_tensor(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, g):
        out = g.new_empty(g.size(0) // dist.get_world_size(), g.size(1))
        dist.reduce_scatter_tensor(out, g.contiguous())
        return out


class ScatterSum(torch.autograd.Function):
    """Partial embeddings of all tokens -> summed embeddings of our own tokens."""

    @staticmethod
    def forward(ctx, x):
        out = x.new_empty(x.size(0) // dist.get_world_size(), x.size(1))
        dist.reduce_scatter_tensor(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, g):
        out = g.new_empty(g.size(0) * dist.get_world_size(), g.size(1))
        dist.all_gather_into_tensor(out, g.contiguous())
        return out


class GatherVocab(torch.autograd.Function):
    """Logit shards -> full logits on every rank; backward keeps our slice."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx, g):
        return g.chunk(dist.get_world_size(), dim=-1)[dist.get_rank()].contiguous()


class ShardedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, lo):
        logits = logits.float()
        m = logits.amax(dim=-1)
        dist.all_reduce(m, op=dist.ReduceOp.MAX)
        e = torch.exp(logits - m[:, None])
        local = target - lo
        own = (local >= 0) & (local < logits.size(1))
        local = local.clamp(0, logits.size(1) - 1)
        picked = logits.gather(1, local[:, None]).squeeze(1)
        stats = torch.stack([e.sum(-1), torch.where(own, picked - m, torch.zeros_like(m))])
        dist.all_reduce(stats)
        ctx.save_for_backward(e.div_(stats[0][:, None]), local, own)
        return (stats[0].log() - stats[1]).mean()

    @staticmethod
    def backward(ctx, g):
        prob, local, own = ctx.saved_tensors
        prob.scatter_add_(1, local[:, None], -own.float()[:, None])
        return (prob * (g / prob.size(0))).bfloat16(), None, None


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.pos = nn.Parameter(torch.randn(SEQ, D) * 0.02)
        self.layers = nn.ModuleList(nn.ModuleDict(dict(
            n1=nn.LayerNorm(D), qkv=nn.Linear(D, 3 * D), o=nn.Linear(D, D),
            n2=nn.LayerNorm(D), up=nn.Linear(D, 4 * D), down=nn.Linear(4 * D, D))) for _ in range(L))
        self.norm = nn.LayerNorm(D)

    def forward(self, x):
        x = x + self.pos
        for m in self.layers:
            q, k, v = (t.view(*x.shape[:2], H, D // H).transpose(1, 2) for t in m["qkv"](m["n1"](x)).chunk(3, -1))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + m["o"](y.transpose(1, 2).reshape(x.shape))
            x = x + m["down"](F.gelu(m["up"](m["n2"](x))))
        return self.norm(x)


def main():
    if CUDA:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dev = torch.device("cuda", torch.cuda.current_device()) if CUDA else torch.device("cpu")
    dist.init_process_group("nccl" if CUDA else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    body = Body().to(dev)
    lo, hi = rank * V // world, (rank + 1) * V // world
    table = nn.Parameter(torch.randn(V, D)[lo:hi].mul(0.02).to(dev))
    head = nn.Parameter(torch.randn(V, D)[lo:hi].mul(0.02).to(dev))
    opt = torch.optim.AdamW(list(body.parameters()) + [table, head], lr=3e-4, fused=CUDA)
    works = []

    def reduce_group(params):          # one bf16 all_reduce a layer, started as soon as its gradients exist
        left = [len(params)]

        def hook(_):
            left[0] -= 1
            if left[0] == 0:
                left[0] = len(params)
                flat = torch.cat([p.grad.flatten() for p in params]).bfloat16()
                works.append((dist.all_reduce(flat, async_op=True), flat, params))
        for p in params:
            p.register_post_accumulate_grad_hook(hook)

    for layer in body.layers:
        reduce_group(list(layer.parameters()))
    reduce_group([body.pos])
    reduce_group(list(body.norm.parameters()))
    gen = torch.Generator().manual_seed(7 + rank)
    docs = torch.randint(0, V, (16, B, SEQ + 1), generator=gen)
    docs = docs.pin_memory() if CUDA else docs

    for step in range(STEPS):
        if step == STEPS - TIMED:
            if CUDA:
                torch.cuda.synchronize()
            t0 = time.perf_counter()
        batch = docs[step % 16].to(dev, non_blocking=True)
        everyone = batch.new_empty(world * B, SEQ + 1)
        dist.all_gather_into_tensor(everyone, batch)
        idx, tgt = everyone[:, :-1].reshape(-1), everyone[:, 1:].reshape(-1)
        local = idx - lo
        mask = (local >= 0) & (local < hi - lo)
        emb = F.embedding(local.clamp(0, hi - lo - 1), table) * mask[:, None]
        x = ScatterSum.apply(emb.bfloat16()).view(B, SEQ, D).float()
        with torch.autocast(dev.type, torch.bfloat16):
            hidden = GatherTokens.apply(body(x).view(-1, D).bfloat16())
            logits = F.linear(hidden, head)
        if FAULT == "gather_logits":
            loss = F.cross_entropy(GatherVocab.apply(logits).float(), tgt)
        else:
            loss = ShardedCrossEntropy.apply(logits, tgt, lo)
        loss.backward()
        for work, flat, params in works:
            work.wait()
            # loss is the mean over all ranks' tokens already: the sum is the gradient
            for p, g in zip(params, flat.split([p.numel() for p in params])):
                p.grad.copy_(g.view_as(p))
        works.clear()
        opt.step()
        opt.zero_grad(set_to_none=True)
        if FAULT == "resync_weights":
            with torch.no_grad():      # bf16 rounding makes replicas drift apart
                for p in body.parameters():
                    dist.broadcast(p, src=0)
    if CUDA:
        torch.cuda.synchronize()
    ms = (time.perf_counter() - t0) * 1e3 / TIMED
    if rank == 0:
        print(json.dumps({"step_ms": ms, "loss": loss.item()}))
    dist.destroy_process_group()


main()
