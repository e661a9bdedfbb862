"""Word vectors on a server; two workers pull rows, and push gradients, by send and recv.

    torchrun --nproc-per-node 3 word_server.py [--fault row-by-row]

--fault row-by-row: the server applies a gradient one row after the other,
since rows may come twice.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

VOCABULARY, DIM, WINDOWS, NEGATIVES, ROUNDS, RATE = 20000, 64, 80, 6, 70, 0.4
SERVER = 0


class Server:
    def __init__(self, by_row):
        self.table = 0.1 * torch.randn(VOCABULARY, DIM)
        self.by_row = by_row
        self.workers = range(1, dist.get_world_size())

    def pull(self, worker):
        rows = torch.empty(WINDOWS * (2 + NEGATIVES), dtype=torch.long)
        dist.recv(rows, worker)
        dist.send(self.table[rows], worker)
        return rows

    def push(self, worker, rows):
        gradient = torch.empty(len(rows), DIM)
        dist.recv(gradient, worker)
        if self.by_row:
            for row, part in zip(rows.tolist(), gradient):
                self.table[row] -= RATE * part
        else:
            self.table.index_add_(0, rows, gradient, alpha=-RATE)

    def round(self):
        asked = [self.pull(worker) for worker in self.workers]
        for worker, rows in zip(self.workers, asked):
            self.push(worker, rows)


class Worker:
    def __init__(self, number):
        self.gen = torch.Generator().manual_seed(number)
        self.loss = 0.0
        # from another corpus, and frozen
        torch.manual_seed(21)
        self.tower = torch.nn.Sequential(
            torch.nn.Linear(DIM, 512),
            torch.nn.GELU(),
            torch.nn.Linear(512, 512),
            torch.nn.GELU(),
            torch.nn.Linear(512, DIM),
        ).requires_grad_(False)

    def windows(self):
        """Words and their neighbours, which are close to them in the vocabulary."""
        word = (torch.rand(WINDOWS, 1, generator=self.gen) ** 4 * VOCABULARY / 4).long()
        near = (word + torch.randint(1, 4, (WINDOWS, 1), generator=self.gen)) % VOCABULARY
        others = torch.randint(VOCABULARY, (WINDOWS, NEGATIVES), generator=self.gen)
        return torch.cat([word, near, others], 1)

    def round(self):
        rows = self.windows().flatten()
        dist.send(rows, SERVER)
        vectors = torch.empty(len(rows), DIM)
        dist.recv(vectors, SERVER)
        vectors.requires_grad_()
        parts = (vectors + self.tower(vectors)).view(WINDOWS, 2 + NEGATIVES, DIM)
        score = torch.einsum("wd,wnd->wn", parts[:, 0], parts[:, 1:])
        sign = torch.ones(1 + NEGATIVES)
        sign[1:] = -1
        loss = -F.logsigmoid(sign * score).sum() / WINDOWS
        loss.backward()
        self.loss = loss.item()
        dist.send(vectors.grad, SERVER)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "row-by-row"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(4)
    rank = dist.get_rank()
    part = Server(args.fault == "row-by-row") if rank == SERVER else Worker(rank)
    took = []
    for number in range(ROUNDS):
        start = time.perf_counter()
        part.round()
        took.append(time.perf_counter() - start)
        if rank == 1 and number % 20 == 0:
            print(f"round {number:3d}  loss {part.loss:.4f}", flush=True)
    if rank == SERVER:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/round")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
