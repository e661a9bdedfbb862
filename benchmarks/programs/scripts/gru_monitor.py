"""A GRU cell by cell on long sequences; a thread of rank 0 sends statistics to a dashboard."""

import argparse
import json
import queue
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

TOKENS, LENGTH, BATCH, WIDTH = 32, 28, 16, 96


class Dashboard:
    """A daemon that writes each step's summary, off the critical path."""

    def __init__(self, keep_history):
        self.keep_history, self.history, self.inbox = keep_history, [], queue.SimpleQueue()
        threading.Thread(target=self.serve, daemon=True).start()

    def report(self, loss, weights):
        self.inbox.put((loss, [w.detach().flatten()[:200].tolist() for w in weights]))

    def serve(self):
        while True:
            loss, values = self.inbox.get()
            self.publish(json.dumps({"loss": loss, "mean": [sum(v) / len(v) for v in values]}))
            if self.keep_history:
                self.history.append({str(i): v for i, v in enumerate(values)})
                rows = [(k, round(x, 6)) for day in self.history for k, v in day.items() for x in v]
                self.publish(json.dumps(sorted(rows, key=lambda row: row[1])))

    def publish(self, page):
        self.page = page


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.cell = nn.GRUCell(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens):
        state, states = tokens.new_zeros(len(tokens), WIDTH, dtype=torch.float32), []
        for x in self.embed(tokens).unbind(1):
            state = self.cell(x, state)
            states.append(state)
        return self.out(torch.stack(states, 1))


def batch(gen):
    start = torch.randint(TOKENS, (BATCH, 1), generator=gen)
    stride = torch.randint(1, 3, (BATCH, 1), generator=gen)
    return (start + stride * torch.arange(LENGTH + 1)) % TOKENS


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "whole-history"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Model())
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    dashboard = Dashboard(args.fault == "whole-history") if rank == 0 else None
    gen = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(14):
        sequence = batch(gen)
        logits = model(sequence[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), sequence[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if dashboard:
            dashboard.report(losses[-1], model.parameters())
    assert losses[-1] < losses[0]
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
