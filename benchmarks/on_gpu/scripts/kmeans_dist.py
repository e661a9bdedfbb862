"""Lloyd's k-means over points sharded across GPUs."""
import argparse, json, os, time
import torch
import torch.distributed as dist

SMALL = os.environ.get("SMALL") == "1"
N, DIM, K, CHUNK = (4096, 16, 8, 1024) if SMALL else (4_000_000, 64, 256, 500_000)
ITERS = 34 if SMALL else 60


class KMeans:
    def __init__(self, x, fault):
        self.x, self.fault, self.dev = x, fault, x.device
        self.c = x[:K].clone()
        dist.broadcast(self.c, 0)

    def assign(self):
        label = torch.empty(len(self.x), dtype=torch.long, device=self.dev)
        best = torch.empty(len(self.x), device=self.dev)
        c2 = self.c.square().sum(-1)
        for i in range(0, len(self.x), CHUNK):
            d = torch.addmm(c2, self.x[i:i + CHUNK], self.c.t(), alpha=-2.0)
            torch.min(d, 1, out=(best[i:i + CHUNK], label[i:i + CHUNK]))
        return label, best

    def iterate(self):
        label, best = self.assign()
        sums = torch.zeros(K, DIM + 1, device=self.dev)
        sums[:, :DIM].index_add_(0, label, self.x)
        if self.fault == "gather_labels":
            # global counts and inertia from everybody's assignment
            w = dist.get_world_size()
            labels = torch.empty(w * len(label), dtype=label.dtype, device=self.dev)
            bests = torch.empty(w * len(best), device=self.dev)
            dist.all_gather_into_tensor(labels, label)
            dist.all_gather_into_tensor(bests, best)
            counts = torch.zeros(K, device=self.dev).index_add_(0, labels, torch.ones_like(bests))
            inertia = bests.sum()
            dist.all_reduce(sums)
        else:
            sums[:, DIM].index_add_(0, label, torch.ones_like(best))
            if self.fault == "per_cluster":
                for k in range(K):
                    dist.all_reduce(sums[k])
                inertia = best.sum()
                dist.all_reduce(inertia)
            else:
                packed = torch.cat([sums.flatten(), best.sum()[None]])
                dist.all_reduce(packed)
                sums, inertia = packed[:-1].view(K, DIM + 1), packed[-1]
            counts = sums[:, DIM]
        self.c = sums[:, :DIM] / counts.clamp(min=1.0)[:, None]
        return inertia


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", choices=["per_cluster", "gather_labels"])
    fault = ap.parse_args().fault
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.set_float32_matmul_precision("high")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    dev = torch.device("cuda" if cuda else "cpu")
    torch.manual_seed(rank)
    x = torch.randn(N, DIM, device=dev)
    km = KMeans(x, fault)
    for it in range(ITERS):
        if it == ITERS - 30:
            if cuda: torch.cuda.synchronize()
            t0 = time.perf_counter()
        inertia = km.iterate()
        if it % 20 == 19 and rank == 0:
            print(f"iteration {it + 1} inertia {inertia.item():.4e}", flush=True)
    if cuda: torch.cuda.synchronize()
    if rank == 0:
        print(json.dumps({"step_ms": (time.perf_counter() - t0) / 30 * 1e3}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
