"""GRPO in a nutshell: a recurrent policy answers each question several times, a judge scores."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

p = argparse.ArgumentParser()
p.add_argument("--questions", type=int, default=4)
p.add_argument("--answers", type=int, default=16)
p.add_argument("--length", type=int, default=10)
p.add_argument("--fault", choices=["none", "remote-judge"], default="none")

VOCAB = 24


class Policy(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.cell = nn.GRUCell(width, width)
        self.head = nn.Linear(width, VOCAB)

    def forward(self, question, answer):
        """Log-probabilities of given answers."""
        state, token, out = self.embed(question), question, []
        for target in answer.unbind(1):
            state = self.cell(self.embed(token), state)
            out.append(-F.cross_entropy(self.head(state), target, reduction="none"))
            token = target
        return torch.stack(out, 1)

    @torch.no_grad()
    def sample(self, question, length, generator):
        state, token, out = self.embed(question), question, []
        for _ in range(length):
            state = self.cell(self.embed(token), state)
            chances = self.head(state).softmax(-1)
            token = torch.multinomial(chances, 1, generator=generator)[:, 0]
            out.append(token)
        return torch.stack(out, 1)


class Judge:
    """How many of an answer's tokens are of the question's parity."""

    def __init__(self, round_trip_s=0.0):
        self.round_trip_s = round_trip_s

    def __call__(self, question, answers):
        if self.round_trip_s:
            time.sleep(self.round_trip_s)  # the judge is a service: one request a question
        return ((answers % 2) == (question % 2)).float().mean(1)


if __name__ == "__main__":
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    policy = Policy()
    model = DDP(policy)
    opt = torch.optim.Adam(policy.parameters(), lr=4e-3)
    judge = Judge(0.009 if args.fault == "remote-judge" else 0.0)  # each rank asks for its own
    gen = torch.Generator().manual_seed(100 + rank)
    history = []
    for it in range(14):
        questions = torch.randint(VOCAB, (args.questions,), generator=gen)
        repeated = questions.repeat_interleave(args.answers)
        answers = policy.sample(repeated, args.length, gen)
        rewards = torch.stack(
            [judge(q, group) for q, group in zip(questions, answers.split(args.answers))]
        )
        advantage = (rewards - rewards.mean(1, True)) / (rewards.std(1, keepdim=True) + 1e-4)
        log_probs = model(repeated, answers)
        ratio = (log_probs - log_probs.detach()).exp()  # on-policy: one update a batch
        loss = -(ratio * advantage.flatten()[:, None]).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        opt.step()
        history.append(rewards.mean())
    curve = torch.stack(history)
    dist.all_reduce(curve, op=dist.ReduceOp.AVG)
    if rank == 0:
        print("reward", [round(r, 3) for r in curve.tolist()])
    assert curve[-3:].mean() > curve[:3].mean() + 0.05
    dist.destroy_process_group()
