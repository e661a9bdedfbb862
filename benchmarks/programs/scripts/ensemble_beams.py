"""Beam search with an ensemble: each rank has a decoder of its own, and the log-probabilities of
both are averaged before the beams are chosen. Every rank keeps the same beams."""

import argparse
import math

import torch
import torch.distributed as dist
from torch import nn

VOCAB, DIM, BEAMS, LENGTH, END = 600, 160, 6, 12, 0


class Decoder(nn.Module):
    """A GRU that was told the sentence's vector."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(VOCAB, DIM)
        self.cells = nn.ModuleList(nn.GRUCell(DIM, DIM) for _ in range(2))
        self.out = nn.Linear(DIM, VOCAB)

    def forward(self, tokens, states):
        x, new = self.embed(tokens), []
        for cell, state in zip(self.cells, states):
            x = cell(x, state)
            new.append(x)
        return self.out(4 * x).log_softmax(-1), new


class TensorBeams:
    """Hypotheses as one tensor."""

    def __init__(self):
        self.tokens = torch.ones(1, 1, dtype=torch.int64)
        self.scores = torch.zeros(1)

    def advance(self, logprobs):
        """Of which beam each of the next ones comes."""
        repeated = torch.zeros_like(logprobs).scatter_(1, self.tokens, -1.0)  # nothing twice
        total = (self.scores[:, None] + logprobs + repeated).flatten()
        self.scores, best = total.topk(BEAMS)
        origin, token = best // VOCAB, best % VOCAB
        self.tokens = torch.cat([self.tokens[origin], token[:, None]], 1)
        return origin, token


class ListBeams:
    """Hypotheses as lists, so that a rule in Python may have its say about every candidate."""

    def __init__(self):
        self.rows = [([1], 0.0)]

    def advance(self, logprobs):
        candidates = []
        for beam, (row, logprob) in enumerate(zip(self.rows, logprobs.tolist())):
            for token, value in enumerate(logprob):
                penalty = -1.0 if token in row[0] else 0.0
                candidates.append((row[1] + value + penalty, beam, token))
        best = sorted(candidates, key=lambda each: -each[0])[:BEAMS]
        self.rows = [([*self.rows[beam][0], token], score) for score, beam, token in best]
        origin, token = torch.tensor([each[1:] for each in best]).T
        return origin, token

    @property
    def tokens(self):
        return torch.tensor([row for row, _ in self.rows])

    @property
    def scores(self):
        return torch.tensor([score for _, score in self.rows])


@torch.inference_mode()
def translate(decoder, sentence, beams):
    states = [sentence.expand(1, DIM)] * 2
    token = torch.ones(1, dtype=torch.int64)
    for _ in range(LENGTH):
        logprobs, states = decoder(token, states)
        dist.all_reduce(logprobs)
        origin, token = beams.advance(logprobs / dist.get_world_size())
        states = [state[origin] for state in states]
    return beams


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sentences", type=int, default=16)
    parser.add_argument("--fault", choices=["none", "list-beams"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    decoder = Decoder(seed=dist.get_rank())
    gen = torch.Generator().manual_seed(1)
    total = 0.0
    for _ in range(args.sentences):
        sentence = torch.randn(DIM, generator=gen)
        beams = ListBeams() if args.fault == "list-beams" else TensorBeams()
        beams = translate(decoder, sentence, beams)
        assert beams.tokens.shape == (BEAMS, LENGTH + 1)
        total += beams.scores.max().item() / LENGTH
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, (total, beams.tokens.tolist()))
    assert all(each == everybody[0] for each in everybody)
    assert total / args.sentences > -math.log(VOCAB)  # better than to guess
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
