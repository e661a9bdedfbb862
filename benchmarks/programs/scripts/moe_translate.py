"""A mixture of experts between two embeddings; experts live one per rank.

Tokens are sent to the rank of their expert by all_to_all and come back the
same way. The dense part is replicated and averaged by hand.

    torchrun --nproc-per-node 2 moe_translate.py [--fault lopsided]

--fault lopsided: the balancing of the router got lost in a merge; its logits
have a bias, and most of the tokens go to expert 0.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

DIM, HIDDEN, VOCAB, TOKENS, STEPS = 128, 1024, 500, 800, 110


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, send, recv):
        ctx.send, ctx.recv = send, recv
        out = x.new_empty(sum(recv), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), recv, send)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(sum(ctx.send), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), ctx.send, ctx.recv)
        return out, None, None


class Experts(nn.Module):
    """The expert of this rank, and the router that knows all of them."""

    def __init__(self, world, balanced):
        super().__init__()
        self.world, self.balanced = world, balanced
        self.router = nn.Linear(DIM, world)
        self.expert = nn.Sequential(nn.Linear(DIM, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, DIM))
        with torch.no_grad():
            self.router.bias.zero_()
            if not balanced:
                self.router.bias[0] = 1.0

    def forward(self, x):
        logits = self.router(x)
        if self.balanced:  # as many tokens for each expert, the surest first
            choice = torch.empty(len(x), dtype=torch.long)
            margin = (logits[:, 0] - logits[:, 1:].mean(1)).argsort(descending=True)
            for expert, rows in enumerate(margin.chunk(self.world)):
                choice[rows] = expert
        else:
            choice = logits.argmax(1)
        order = choice.argsort()
        send = torch.bincount(choice, minlength=self.world)
        recv = torch.empty_like(send)
        dist.all_to_all_single(recv, send)
        send, recv = send.tolist(), recv.tolist()
        theirs = Exchange.apply(x[order], send, recv)
        mine = Exchange.apply(self.expert(theirs), recv, send)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        gate = logits.softmax(1).gather(1, choice[:, None])
        return x + gate * mine[back]


class Translator(nn.Module):
    def __init__(self, world, balanced):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.norm = nn.LayerNorm(DIM)
        self.experts = Experts(world, balanced)
        self.out = nn.Linear(DIM, VOCAB)

    def forward(self, words):
        return self.out(self.experts(self.norm(self.embed(words))))

    def shared(self):
        return [p for name, p in self.named_parameters() if "expert." not in name]


def average(params, world):
    flat = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(flat)
    flat /= world
    for p, g in zip(params, flat.split([p.numel() for p in params])):
        p.grad.copy_(g.view_as(p))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "lopsided"])
    fault = parser.parse_args().fault
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(4)
    model = Translator(world, balanced=fault != "lopsided")
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    dictionary = torch.randperm(VOCAB)
    gen = torch.Generator().manual_seed(rank)
    took = []
    for step in range(STEPS):
        began = time.perf_counter()
        words = torch.randint(VOCAB, (TOKENS,), generator=gen)
        loss = F.cross_entropy(model(words), dictionary[words])
        opt.zero_grad(set_to_none=False)
        loss.backward()
        average(model.shared(), world)
        opt.step()
        took.append(time.perf_counter() - began)
        if rank == 0 and step % 25 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    if rank == 0:
        print(f"mean step {1e3 * sum(took[5:]) / len(took[5:]):.1f} ms")
    dist.barrier()  # nobody leaves while another still talks
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
