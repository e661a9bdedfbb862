"""Tuning a text policy by reward: the actor, the critic and the reward each have a rank."""

import argparse
import difflib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

ACTOR, CRITIC, JUDGE = 0, 1, 2
LETTERS, BATCH, LENGTH, ROUNDS, EPOCHS = 26, 24, 20, 14, 2


class Policy(nn.Module):
    def __init__(self, width=96, out=LETTERS):
        super().__init__()
        self.embed = nn.Embedding(LETTERS + 1, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, out)

    def forward(self, tokens, state=None):
        y, state = self.gru(self.embed(tokens), state)
        return self.head(y), state


class Actor:
    def __init__(self):
        self.policy = Policy()
        self.optimizer = torch.optim.Adam(self.policy.parameters(), 1e-2)
        self.rewards = []

    @torch.no_grad()
    def sample(self):
        token, state, out = torch.full((BATCH, 1), LETTERS), None, []
        for _ in range(LENGTH):
            logits, state = self.policy(token, state)
            token = torch.distributions.Categorical(logits=logits[:, 0]).sample()[:, None]
            out.append(token)
        return torch.cat(out, 1)

    def log_probs(self, tokens):
        start = torch.full((BATCH, 1), LETTERS)
        logits, _ = self.policy(torch.cat([start, tokens[:, :-1]], 1))
        return F.log_softmax(logits, -1).gather(-1, tokens[..., None])[..., 0]

    def round(self):
        tokens = self.sample()
        pending = [dist.isend(tokens, CRITIC), dist.isend(tokens, JUDGE)]
        with torch.no_grad():
            old = self.log_probs(tokens)
        values, rewards = torch.empty(BATCH, LENGTH), torch.empty(BATCH, LENGTH)
        dist.recv(values, CRITIC)
        dist.recv(rewards, JUDGE)
        for work in pending:
            work.wait()
        returns = rewards.flip(1).cumsum(1).flip(1)
        advantage = returns - values
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        send = dist.isend(returns, CRITIC)
        for _ in range(EPOCHS):
            ratio = (self.log_probs(tokens) - old).exp()
            clipped = ratio.clamp(0.8, 1.2)
            loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        send.wait()
        self.rewards.append(rewards.sum(1).mean().item())


class Critic:
    def __init__(self):
        self.net = Policy(out=1)
        self.optimizer = torch.optim.Adam(self.net.parameters(), 3e-3)

    def round(self):
        tokens = torch.empty(BATCH, LENGTH, dtype=torch.long)
        dist.recv(tokens, ACTOR)
        values = self.net(tokens)[0][..., 0]
        dist.send(values.detach(), ACTOR)
        returns = torch.empty(BATCH, LENGTH)
        dist.recv(returns, ACTOR)
        self.optimizer.zero_grad()
        F.mse_loss(values, returns).backward()
        self.optimizer.step()


class Judge:
    """Likes texts in which a letter follows its predecessor in the alphabet."""

    def __init__(self, compare):
        self.compare = compare
        alphabet = "".join(chr(97 + i) for i in range(LETTERS))
        self.references = [
            alphabet[i : i + length] for length in (8, 10, 12) for i in range(LETTERS - length)
        ]

    def nearest(self, tokens):
        """How like a reference each text is."""
        for row in tokens.tolist():
            text = "".join(chr(97 + i) for i in row)
            yield max(difflib.SequenceMatcher(None, r, text).ratio() for r in self.references)

    def round(self):
        tokens = torch.empty(BATCH, LENGTH, dtype=torch.long)
        dist.recv(tokens, ACTOR)
        rewards = torch.zeros(BATCH, LENGTH)
        rewards[:, 1:] = ((tokens.diff(dim=1) - 1).abs() <= 3).float()
        if self.compare:
            rewards[:, -1] += torch.tensor(list(self.nearest(tokens)))
        dist.send(rewards, ACTOR)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "compare-texts"], default="none")
    fault = parser.parse_args().fault
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    roles = (Actor, Critic, lambda: Judge(fault == "compare-texts"))
    role = roles[dist.get_rank()]()
    for _ in range(ROUNDS):
        role.round()
    if dist.get_rank() == ACTOR:
        print([round(reward, 2) for reward in role.rewards])
        assert sum(role.rewards[-3:]) > sum(role.rewards[:3])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
