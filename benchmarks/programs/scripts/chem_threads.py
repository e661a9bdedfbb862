"""Solubility of molecules: batches are prepared by a thread while the model trains (DDP).

    torchrun --nproc-per-node 2 chem_threads.py [--fault python-rings]

--fault python-rings: the chemist's own ring counter, in plain Python, was
added to the features on rank 1 to try it out; it runs in the loader's thread
and "costs nothing, it's in the background".
"""

import argparse
import queue
import threading
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ATOMS, ELEMENTS, BATCH, ROUNDS, STEPS = 20, 8, 240, 3, 200


def molecules(gen):
    """Random chains with some rings: elements (B, A) and bonds (B, A, A)."""
    elements = torch.randint(ELEMENTS, (BATCH, ATOMS), generator=gen)
    bonds = torch.diag_embed(torch.ones(BATCH, ATOMS - 1), 1)
    far = torch.rand(BATCH, ATOMS, ATOMS, generator=gen) < 0.02
    bonds = ((bonds + far.float().triu(2)) > 0).float()
    return elements, bonds + bonds.transpose(1, 2)


def small_rings(bonds, largest=6):
    """Walks from each atom and counts how often it comes home in six or fewer bonds."""
    counts = []
    for table in bonds.tolist():
        near = [[j for j, b in enumerate(row) if b] for row in table]
        found = 0
        for home in range(len(near)):
            stack = [(home, -1, 0)]
            while stack:
                atom, before, length = stack.pop()
                if length == largest:
                    continue
                for other in near[atom]:
                    if other == home and length >= 2 and other != before:
                        found += 1
                    elif other > home and other != before:
                        stack.append((other, atom, length + 1))
        counts.append(found)
    return torch.tensor(counts, dtype=torch.float32)


class Prefetcher(threading.Thread):
    def __init__(self, seed, count_rings, depth=2):
        super().__init__(daemon=True)
        self.gen = torch.Generator().manual_seed(seed)
        self.count_rings, self.ready = count_rings, queue.Queue(depth)
        self.stopped = threading.Event()

    def run(self):
        while not self.stopped.is_set():
            elements, bonds = molecules(self.gen)
            rings = small_rings(bonds) if self.count_rings else torch.zeros(BATCH)
            soluble = (elements < 3).float().mean(1) - 0.02 * bonds.sum((1, 2))
            batch = (elements, bonds, rings, soluble)
            while not self.stopped.is_set():
                try:
                    self.ready.put(batch, timeout=0.2)
                    break
                except queue.Full:
                    pass

    def stop(self):
        self.stopped.set()
        self.join()


class GraphNet(nn.Module):
    def __init__(self, dim=96):
        super().__init__()
        self.embed = nn.Embedding(ELEMENTS, dim)
        self.rounds = nn.ModuleList(nn.Linear(2 * dim, dim) for _ in range(ROUNDS))
        self.out = nn.Linear(dim + 1, 1)

    def forward(self, elements, bonds, rings):
        x = self.embed(elements)
        for layer in self.rounds:
            x = x + torch.relu(layer(torch.cat([x, bonds @ x], 2)))
        return self.out(torch.cat([x.mean(1), 0.01 * rings[:, None]], 1)).squeeze(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "python-rings"])
    fault = parser.parse_args().fault
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(GraphNet())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = Prefetcher(rank, count_rings=fault == "python-rings" and rank == 1)
    loader.start()
    took = []
    for step in range(STEPS):
        began = time.perf_counter()
        elements, bonds, rings, soluble = loader.ready.get()
        loss = F.mse_loss(model(elements, bonds, rings), soluble)
        opt.zero_grad()
        loss.backward()
        opt.step()
        took.append(time.perf_counter() - began)
        if rank == 0 and step % 50 == 0:
            print(f"step {step:3d} mse {loss.item():.4f}", flush=True)
    loader.stop()
    if rank == 0:
        print(f"mean step {1e3 * sum(took[5:]) / len(took[5:]):.1f} ms")
    dist.barrier()  # nobody leaves while another still talks
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
