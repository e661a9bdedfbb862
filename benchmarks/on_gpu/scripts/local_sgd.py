"""Federated averaging: every client trains a residual MLP locally, models are averaged every ten steps."""
import argparse, json, os, tempfile, time
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist

SMALL = os.environ.get("SMALL") == "1"
DIM, DEPTH, CLASSES, BATCH = (32, 2, 10, 64) if SMALL else (1024, 5, 1000, 65536)
STEPS, LOCAL = (34 if SMALL else 60), 10


class Res(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        return x + self.b(F.relu(self.a(self.norm(x).to(x.dtype))))


def average(model, fault, dev):
    world = dist.get_world_size()
    if fault == "object_average":
        # clients hand in their state dicts, as in the simulator this came from
        states = [None] * world
        dist.all_gather_object(states, {k: t.cpu() for k, t in model.state_dict().items()})
        mean = {k: sum(s[k] for s in states) / world for k in states[0]}
        model.load_state_dict(mean)
        return
    params = [p.data for p in model.parameters()]
    flat = torch.cat([p.flatten() for p in params]).div_(world)
    dist.all_reduce(flat)
    torch._foreach_copy_(params, [c.view_as(p) for c, p in zip(flat.split([p.numel() for p in params]), params)])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", choices=["avg_every_step", "object_average", "ckpt_rank0"])
    fault = ap.parse_args().fault
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dev = torch.device("cuda" if cuda else "cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(*[Res() for _ in range(DEPTH)], nn.Linear(DIM, CLASSES)).to(dev)
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    torch.manual_seed(50 + rank)        # every client has its own data, resident on its GPU
    xs = torch.randn(4, BATCH, DIM, device=dev).to(torch.bfloat16)
    ys = torch.randint(0, CLASSES, (4, BATCH), device=dev)
    path = os.path.join(tempfile.gettempdir(), f"fedavg_{os.environ['MASTER_PORT']}.pt")
    for step in range(STEPS):
        if step == STEPS - 30:
            if cuda: torch.cuda.synchronize()
            t0 = time.perf_counter()
        with torch.autocast(dev.type, torch.bfloat16):
            loss = F.cross_entropy(model(xs[step % 4]).float(), ys[step % 4])
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        if fault == "avg_every_step" or step % LOCAL == LOCAL - 1:
            average(model, fault, dev)
            if fault == "ckpt_rank0" and step % LOCAL == LOCAL - 1:
                if rank == 0:           # the round's global model
                    torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "step": step}, path)
                dist.barrier()
        if step % 20 == 19 and rank == 0:
            print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
    if cuda: torch.cuda.synchronize()
    if rank == 0:
        print(json.dumps({"step_ms": (time.perf_counter() - t0) / 30 * 1e3}))
        if os.path.exists(path):
            os.remove(path)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
