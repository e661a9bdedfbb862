"""Momentum-contrast pre-training: student ViT under DDP, EMA teacher, queue of negatives kept as a buffer."""
import argparse, json, os, time
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--fault", choices=["queue_broadcast", "cpu_weights_average"])
ap.add_argument("--steps", type=int, default=60)
args = ap.parse_args()
SMALL = os.environ.get("SMALL") == "1"
CUDA = torch.cuda.is_available()
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if CUDA:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
DEV = torch.device("cuda", torch.cuda.current_device()) if CUDA else torch.device("cpu")
dist.init_process_group("nccl" if CUDA else "gloo")
torch.manual_seed(0)
IMG, DIM, DEPTH, BATCH, QUEUE, FEAT = (32, 32, 2, 4, 64, 16) if SMALL else (224, 384, 12, 80, 65600, 256)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, d // 32 // 2 or 1, -1).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, DIM, 16, 16)
        self.pos = nn.Parameter(torch.randn(1, (IMG // 16) ** 2, DIM) * 0.02)
        self.body = nn.Sequential(*[Block() for _ in range(DEPTH)], nn.LayerNorm(DIM))
        self.head = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, FEAT))

    def forward(self, x):
        x = self.body(self.patch(x).flatten(2).transpose(1, 2) + self.pos).mean(1)
        return F.normalize(self.head(x).float(), dim=-1)


class MoCo(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = Encoder()
        self.register_buffer("queue", F.normalize(torch.randn(QUEUE, FEAT), dim=-1))

    def forward(self, x, key, temp=0.2):
        q = self.student(x)
        pos = (q * key).sum(-1, keepdim=True)
        logits = torch.cat([pos, q @ self.queue.t()], 1) / temp
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=q.device))


moco = MoCo().to(DEV)
teacher = Encoder().to(DEV).requires_grad_(False)
teacher.load_state_dict(moco.student.state_dict())
ddp = nn.parallel.DistributedDataParallel(
    moco, device_ids=[DEV.index] if CUDA else None, gradient_as_bucket_view=True,
    broadcast_buffers=args.fault == "queue_broadcast")  # the queue is built from gathered keys: equal on all ranks
opt = torch.optim.AdamW(moco.parameters(), lr=1e-4, fused=CUDA)
s_params, t_params = list(moco.student.parameters()), list(teacher.parameters())

# Averaged weights for the evaluation job; rank 0 writes them out at the end.
average = None
if args.fault == "cpu_weights_average" and RANK == 0:
    average = {k: v.cpu().clone() for k, v in moco.student.state_dict().items()}

torch.manual_seed(10 + RANK)
views = [torch.randint(0, 256, (BATCH, 3, IMG, IMG), dtype=torch.uint8) for _ in range(6)]
views = [v.pin_memory() for v in views] if CUDA else views
all_keys = torch.empty(WORLD * BATCH, FEAT, device=DEV)
ptr = 0
for step in range(args.steps):
    if step == args.steps - 30:
        if CUDA:
            torch.cuda.synchronize()
        t0 = time.perf_counter()
    img = views[step % 6].to(DEV, non_blocking=True).float().div_(127.5).sub_(1)
    view1 = torch.flip(img, [3]) + 0.05 * torch.randn_like(img)
    view2 = img * (0.8 + 0.4 * torch.rand(BATCH, 1, 1, 1, device=DEV))
    with torch.autocast(DEV.type, dtype=torch.bfloat16):
        with torch.no_grad():
            key = teacher(view2)
        loss = ddp(view1, key)
    gathered = dist.all_gather_into_tensor(all_keys, key.contiguous(), async_op=True)
    loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=True)
    with torch.no_grad():
        torch._foreach_lerp_(t_params, s_params, 0.004)
        gathered.wait()
        end = min(ptr + len(all_keys), QUEUE)
        moco.queue[ptr:end] = all_keys[:end - ptr]
        ptr = end % QUEUE
    if average is not None and step % 3 == 0:
        for k, v in moco.student.state_dict().items():
            average[k].mul_(0.999).add_(v.cpu(), alpha=0.001)
    if step % 50 == 0 and RANK == 0:
        print(f"step {step} loss {loss.item():.3f}", flush=True)
if CUDA:
    torch.cuda.synchronize()
if RANK == 0:
    print(json.dumps({"step_ms": (time.perf_counter() - t0) / 30 * 1e3}), flush=True)
dist.destroy_process_group()
