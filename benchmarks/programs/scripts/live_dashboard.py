"""A thread of one rank may draw a dashboard while that rank trains."""

import argparse
import threading

import torch
import torch.distributed as dist
import torch.nn as nn


class Dashboard(threading.Thread):
    """Renders the history as text, over and over, in pure Python."""

    def __init__(self, history):
        super().__init__(daemon=True)
        self.history, self.done, self.page = history, threading.Event(), ""

    def run(self):
        while not self.done.is_set():
            lines = []
            for i in range(400):
                value = self.history[i % len(self.history)] if self.history else 0.0
                lines.append(f"{i:5d} {'#' * int(20 * value)} {value:.5f}")
            self.page = "\n".join(lines)


def train(model, history, rank):
    opt = torch.optim.NAdam(model.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(rank)
    state = torch.zeros(2, 48, 96)
    for _ in range(14):
        x = torch.randn(48, 20, 96, generator=gen)
        y = x.cumsum(1) / 5
        out, hidden = model(x, state)
        loss = (out - y).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        state = hidden.detach()
        history.append(loss.item())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.ModuleList(nn.GRUCell(96, 96) for _ in range(2))

    def forward(self, x, state):
        outs, h = [], list(state)
        for t in range(x.shape[1]):
            h[0] = self.cells[0](x[:, t], h[0])
            h[1] = self.cells[1](h[0], h[1])
            outs.append(h[1])
        return torch.stack(outs, 1), torch.stack(h)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "drawing"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    history, rank = [], dist.get_rank()
    board = Dashboard(history)
    if args.fault == "drawing" and rank == 1:
        board.start()
    train(nn.parallel.DistributedDataParallel(Net()), history, rank)
    board.done.set()
    assert history[-1] < history[0]
    dist.destroy_process_group()
