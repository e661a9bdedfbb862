"""Questions are answered from passages that three ranks hold: rank 0 talks to the clients.

It tokenises a question and broadcasts it, all look among their passages, rank 0 gathers the best
and reads them. Profiled as in PyTorch's tutorial.
"""

import argparse
import glob
import json
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

DIM, LENGTH, TOP = 192, 16, 8


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.EmbeddingBag(8192, DIM)
        self.layers = nn.Sequential(nn.Linear(DIM, 768), nn.GELU(), nn.Linear(768, DIM))

    def forward(self, tokens):
        return F.normalize(self.layers(self.embed(tokens)), dim=-1)


class Passages:
    def __init__(self, encoder, count, rank):
        gen = torch.Generator().manual_seed(rank)
        self.tokens = torch.randint(8192, (count, LENGTH), generator=gen)
        self.vectors = encoder(self.tokens)

    def best(self, question):
        """Scores and tokens of the passages that are nearest, side by side."""
        scores, index = (self.vectors @ question).topk(TOP)
        return torch.cat([scores[:, None], self.tokens[index].float()], 1)


class Reader(nn.Module):
    """Which of the passages answers it."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(DIM, DIM)

    def forward(self, encoder, question, tokens):
        vectors = encoder(tokens)
        return (vectors @ (question + 0.1 * torch.tanh(self.mix(question)))).argmax()


class AuditLog:
    """One line a request; a regulator wants it on the remote volume before the next is served."""

    def __init__(self, file, remote_ms):
        self.file, self.remote_ms = file, remote_ms

    def write(self, **entry):
        self.file.write(json.dumps(entry) + "\n")
        if self.remote_ms:
            self.file.flush()
            time.sleep(self.remote_ms / 1000)


def serve(args, prof, log, encoder, reader, passages):
    rank, world = dist.get_rank(), dist.get_world_size()
    gen = torch.Generator().manual_seed(5)
    right = 0
    for request in range(args.requests):
        tokens = torch.empty(1, LENGTH, dtype=torch.int64)
        if rank == 0:  # a client asks with the words of a passage
            tokens[0] = passages.tokens[torch.randint(args.passages, (), generator=gen)]
        dist.broadcast(tokens, src=0)
        question = encoder(tokens)[0]
        mine = passages.best(question)
        found = [torch.empty_like(mine) for _ in range(world)] if rank == 0 else None
        dist.gather(mine, found, dst=0)
        if rank == 0:
            ranked = torch.cat(found)
            ranked = ranked[ranked[:, 0].argsort(descending=True)][:TOP, 1:].long()
            answer = ranked[reader(encoder, question, ranked)]
            right += int((answer == tokens[0]).all())
            log.write(request=request, question=tokens[0].tolist(), answer=answer.tolist())
        prof.step()
    return right / args.requests


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--passages", type=int, default=20000)
    parser.add_argument("--fault", choices=["none", "audit-sync"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    encoder, reader = Encoder().eval(), Reader().eval()
    passages = Passages(encoder, args.passages, dist.get_rank())
    folder = tempfile.mkdtemp(prefix="rag_frontend_")  # stays, for TensorBoard
    with open(f"{folder}/audit.jsonl", "w") as file:
        log = AuditLog(file, 25 if args.fault == "audit-sync" else 0)
        with profile(
            activities=[ProfilerActivity.CPU],
            schedule=schedule(wait=2, warmup=2, active=16, repeat=1),
            on_trace_ready=tensorboard_trace_handler(f"{folder}/tb"),
        ) as prof:
            right = serve(args, prof, log, encoder, reader, passages)
        dist.barrier()
        assert glob.glob(f"{folder}/tb/*.json*")
    if dist.get_rank() == 0:
        print(f"{right:.2f} of the answers are right")
        assert right > 0.9
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
