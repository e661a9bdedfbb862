"""Trains on a mixture of tasks that a planner, a service of its own, chooses for every step.

The planner answers all ranks of a step at once, with the same plan, by lines of JSON over TCP.
"""

import argparse
import json
import socket
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn

PLANNER = """
import json, random, socketserver, sys, threading, time

takes_s, plans, lock = float(sys.argv[1]), {}, threading.Lock()

class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            step = json.loads(line)["step"]
            with lock:  # the first to ask has it planned, the others get the same
                if step not in plans:
                    time.sleep(takes_s)
                    plans[step] = [random.Random(step * 7 + task).random() for task in range(6)]
            self.wfile.write((json.dumps(plans[step]) + "\\n").encode())

class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

server = Server(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""
TASKS, INPUTS = 6, 48


class Client:
    def __init__(self, port):
        self.file = socket.create_connection(("127.0.0.1", port)).makefile("rw")

    def plan(self, step):
        print(json.dumps({"step": step}), file=self.file, flush=True)
        return torch.tensor(json.loads(self.file.readline()))


class MultiTask(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(INPUTS, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
        )
        self.heads = nn.ModuleList(nn.Linear(width, 1) for _ in range(TASKS))

    def forward(self, x):
        features = self.trunk(x)
        return torch.cat([head(features) for head in self.heads], 1)


def train(model, client, rank, steps):
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    truth = torch.randn(INPUTS, TASKS, generator=torch.Generator().manual_seed(5)) / 7
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for step in range(steps):
        weights = client.plan(step)
        x = torch.randn(512, INPUTS, generator=generator)
        error = (model(x) - (x @ truth).tanh()).square().mean(0)
        loss = (weights * error).sum() / weights.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(error.mean().detach())
    return torch.stack(losses)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--fault", choices=["none", "slow-planner"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    service, port = None, [None]
    if rank == 0:
        takes_s = "0.04" if args.fault == "slow-planner" else "0.0"
        command = [sys.executable, "-c", PLANNER, takes_s]
        service = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        port = [int(service.stdout.readline())]
    dist.broadcast_object_list(port, src=0)
    try:
        torch.manual_seed(0)
        model = nn.parallel.DistributedDataParallel(MultiTask(), bucket_cap_mb=2)
        losses = train(model, Client(port[0]), rank, args.steps)
        dist.all_reduce(losses, op=dist.ReduceOp.AVG)
        assert losses[-1] < 0.8 * losses[0], losses
    finally:
        if service:
            service.terminate()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
