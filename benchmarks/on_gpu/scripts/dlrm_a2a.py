"""DLRM: embedding tables sharded by table over the ranks (all_to_all both ways), dense layers data parallel (four ranks)."""
import argparse, json, os, time
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--fault", choices=["wide_tables_together", "gather_pooled"])
parser.add_argument("--steps", type=int, default=60)
args = parser.parse_args()
SMALL = os.environ.get("SMALL") == "1"
CUDA = torch.cuda.is_available()
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if CUDA:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
dev = torch.device("cuda", torch.cuda.current_device()) if CUDA else torch.device("cpu")
dist.init_process_group("nccl" if CUDA else "gloo")
torch.set_float32_matmul_precision("high")
torch.manual_seed(0)

TABLES, ROWS, DIM, BATCH, HIDDEN = (8, 500, 16, 32, 64) if SMALL else (32, 40_000, 128, 4096, 2048)
PER = TABLES // WORLD
POOLING = [40 if t < TABLES // 4 else 4 for t in range(TABLES)]  # ids per sample: history features are long
if args.fault == "wide_tables_together":
    owner = [t // PER for t in range(TABLES)]  # equal rows and equal table count on every rank
else:
    owner = [t % WORLD for t in range(TABLES)]
tables_of = [[t for t in range(TABLES) if owner[t] == r] for r in range(WORLD)]
mine = tables_of[RANK]
ids_for = [BATCH * sum(POOLING[t] for t in tables_of[r]) for r in range(WORLD)]


class PooledExchange(torch.autograd.Function):
    """(WORLD*BATCH, PER, DIM) of my tables -> (WORLD, BATCH, PER, DIM): my samples, tables ordered by owner."""

    @staticmethod
    def forward(ctx, pooled):
        pooled = pooled.contiguous()
        if args.fault == "gather_pooled":
            full = pooled.new_empty(WORLD, WORLD, BATCH, PER, DIM)
            dist.all_gather_into_tensor(full.view(-1), pooled.view(-1))
            return full[:, RANK].contiguous()
        out = torch.empty_like(pooled)
        dist.all_to_all_single(out, pooled)
        return out.view(WORLD, BATCH, PER, DIM)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous()
        if args.fault == "gather_pooled":
            full = g.new_empty(WORLD, *g.shape)
            dist.all_gather_into_tensor(full.view(-1), g.view(-1))
            return full[:, RANK].reshape(WORLD * BATCH, PER, DIM)
        out = torch.empty_like(g)
        dist.all_to_all_single(out, g)
        return out.view(WORLD * BATCH, PER, DIM)


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, DIM), nn.ReLU())
        pairs = (TABLES + 1) * TABLES // 2
        self.top = nn.Sequential(nn.Linear(pairs + DIM, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(),
                                 nn.Linear(HIDDEN, HIDDEN // 2), nn.ReLU(), nn.Linear(HIDDEN // 2, 1))
        i, j = torch.tril_indices(TABLES + 1, TABLES + 1, -1)
        self.register_buffer("tri", i * (TABLES + 1) + j, persistent=False)

    def forward(self, dense, emb):
        x = self.bottom(dense)
        feats = torch.cat([x[:, None], emb.to(x.dtype)], 1)
        inter = torch.bmm(feats, feats.transpose(1, 2)).flatten(1)[:, self.tri]
        return self.top(torch.cat([x, inter], 1)).squeeze(1)


weights = nn.ParameterList(nn.Parameter(torch.randn(ROWS, DIM, device=dev) * 0.01) for _ in mine)
net = nn.parallel.DistributedDataParallel(Dense().to(dev), device_ids=[dev.index] if CUDA else None,
                                          broadcast_buffers=False, gradient_as_bucket_view=True)
opt = torch.optim.Adagrad([{"params": net.parameters(), "lr": 0.01}, {"params": weights.parameters(), "lr": 0.02}])
torch.manual_seed(100 + RANK)
data = []
for _ in range(4):  # ids grouped by the rank that owns the table, then by table
    ids = [torch.randint(0, ROWS, (BATCH * POOLING[t],)) for r in range(WORLD) for t in tables_of[r]]
    item = (torch.rand(BATCH, 13), torch.cat(ids), (torch.rand(BATCH) < 0.2).float())
    data.append(tuple(z.pin_memory() for z in item) if CUDA else item)
sizes = [BATCH * POOLING[t] for t in mine]


def exchange_ids(ids):
    out = torch.empty(WORLD * ids_for[RANK], dtype=torch.long, device=dev)
    dist.all_to_all_single(out, ids, [ids_for[RANK]] * WORLD, ids_for)
    per_rank = [part.split(sizes) for part in out.split(ids_for[RANK])]
    return [torch.cat([per_rank[r][k] for r in range(WORLD)]).view(WORLD * BATCH, POOLING[t]) for k, t in enumerate(mine)]


for step in range(args.steps):
    if step == args.steps - 30:
        if CUDA:
            torch.cuda.synchronize()
        t0 = time.perf_counter()
    dense, ids, click = (z.to(dev, non_blocking=True) for z in data[step % 4])
    bags = exchange_ids(ids)
    pooled = torch.stack([F.embedding_bag(i, w, mode="sum") for i, w in zip(bags, weights)], 1)
    emb = PooledExchange.apply(pooled.bfloat16() if CUDA else pooled)
    with torch.autocast(dev.type, dtype=torch.bfloat16):
        logit = net(dense, emb.permute(1, 0, 2, 3).flatten(1, 2))
    loss = F.binary_cross_entropy_with_logits(logit.float(), click)
    loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=True)
if CUDA:
    torch.cuda.synchronize()
if RANK == 0:
    print(json.dumps({"step_ms": (time.perf_counter() - t0) / 30 * 1e3}), flush=True)
dist.destroy_process_group()
