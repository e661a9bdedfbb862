"""Synchronous parameter server: rank 0 owns weights and optimizer, every rank (0 too) computes gradients."""
import argparse, json, os, time
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist

SMALL = os.environ.get("SMALL") == "1"
DIM, DEPTH, ITEMS, CLASSES, BATCH = (32, 2, 128, 10, 64) if SMALL else (1024, 4, 8192, 2000, 16384)
STEPS = 34 if SMALL else 60


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(ITEMS, DIM)
        self.up = nn.ModuleList(nn.Linear(DIM, 4 * DIM) for _ in range(DEPTH))
        self.down = nn.ModuleList(nn.Linear(4 * DIM, DIM) for _ in range(DEPTH))
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, ids, x):
        x = self.item(ids).to(x.dtype) + x
        for u, d in zip(self.up, self.down):
            x = x + d(F.relu(u(x)))
        return self.head(x)


class Server:
    """Optimizer on rank 0; the item table can live in host memory."""
    def __init__(self, model, fault, cuda):
        self.rest = [p for n, p in model.named_parameters() if n != "item.weight"]
        self.table, self.fault = model.item.weight, fault
        if fault == "cpu_table":
            self.host = nn.Parameter(self.table.detach().cpu())
            self.opts = [torch.optim.Adam(self.rest, lr=1e-4, fused=cuda), torch.optim.Adam([self.host], lr=1e-4)]
        else:
            self.opts = [torch.optim.Adam(self.rest + [self.table], lr=1e-4, fused=cuda)]

    def step(self):
        if self.fault == "cpu_table":
            self.host.grad = self.table.grad.cpu()
        for o in self.opts:
            o.step()
        if self.fault == "cpu_table":
            self.table.data.copy_(self.host.data)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", choices=["gloo_head", "cpu_table"])
    fault = ap.parse_args().fault
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dev = torch.device("cuda" if cuda else "cpu")
    wire = torch.bfloat16 if cuda else torch.float32
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("nccl" if cuda else "gloo")
    ctrl = dist.new_group(backend="gloo")       # small control messages
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Mixer().to(dev)
    params = list(model.parameters())
    head = list(model.head.parameters())        # reduced in fp32, apart from the bf16 bulk
    bulk = [p for p in params if all(p is not h for h in head)]
    server = Server(model, fault, cuda) if rank == 0 else None
    gen = torch.Generator().manual_seed(rank)
    data = []
    for _ in range(4):
        ids, y = torch.randint(0, ITEMS, (BATCH,), generator=gen), torch.randint(0, CLASSES, (BATCH,), generator=gen)
        data.append([t.to(dev) for t in (ids, torch.randn(BATCH, DIM, generator=gen).to(torch.bfloat16), y)])

    for step in range(STEPS):
        if step == STEPS - 30:
            if cuda: torch.cuda.synchronize()
            t0 = time.perf_counter()
        ids, x, y = data[step % 4]
        with torch.autocast(dev.type, torch.bfloat16):
            loss = F.cross_entropy(model(ids, x).float(), y)
        loss.backward()
        # gradients to the server
        g = torch.cat([p.grad.flatten().to(wire) for p in bulk]).div_(world)
        h = torch.cat([p.grad.flatten() for p in head]).div_(world)
        dist.reduce(g, 0)
        if fault == "gloo_head":
            dist.all_reduce(h, group=ctrl)
        else:
            dist.reduce(h, 0)
        if rank == 0:
            for group, flat in ((bulk, g), (head, h)):
                parts = flat.split([p.numel() for p in group])
                torch._foreach_copy_([p.grad for p in group], [c.view_as(p) for c, p in zip(parts, group)])
            server.step()
        # weights back to the workers
        with torch.no_grad():
            flat = torch.cat([p.detach().flatten().to(wire) for p in params])
            dist.broadcast(flat, 0)
            if rank != 0:
                parts = flat.split([p.numel() for p in params])
                torch._foreach_copy_([p.data for p in params], [c.view_as(p) for c, p in zip(parts, params)])
        for p in params:
            p.grad = None
        if step % 20 == 19 and rank == 0:
            print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
    if cuda: torch.cuda.synchronize()
    if rank == 0:
        print(json.dumps({"step_ms": (time.perf_counter() - t0) / 30 * 1e3}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
