"""Speaker verification (GE2E): each rank trains on its own speakers; after each step all average."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--fault", choices=["none", "through-rank-0"], default="none")
parser.add_argument("--speakers", type=int, default=6)
parser.add_argument("--utterances", type=int, default=4)

MELS, FRAMES, WIDTH = 40, 20, 320


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(MELS, WIDTH, batch_first=True)
        self.project = nn.Linear(WIDTH, 128)
        self.scale, self.shift = nn.Parameter(torch.tensor(10.0)), nn.Parameter(torch.tensor(-5.0))

    def forward(self, mel):
        _, (last, _) = self.lstm(mel)
        return F.normalize(self.project(last[-1]), dim=-1)

    def ge2e(self, mel):
        """``mel`` is (speakers, utterances, frames, mels); each against all speakers' centroids."""
        speakers, utterances = mel.shape[:2]
        e = self(mel.flatten(0, 1)).unflatten(0, (speakers, utterances))
        others = (e.sum(1, keepdim=True) - e) / (utterances - 1)
        similarity = torch.einsum("sud,cd->suc", e, e.mean(1))
        own = torch.arange(speakers)
        similarity[own, :, own] = (e * others).sum(-1)
        logits = self.scale * similarity + self.shift
        return F.cross_entropy(logits.flatten(0, 1), own.repeat_interleave(utterances))


class Speakers:
    def __init__(self, args, seed):
        self.shape = (args.speakers, args.utterances, FRAMES, MELS)
        self.gen = torch.Generator().manual_seed(seed)
        self.voices = torch.randn(40, MELS, generator=self.gen)

    def batch(self):
        who = torch.randperm(len(self.voices), generator=self.gen)[: self.shape[0]]
        noise = 2.5 * torch.randn(self.shape, generator=self.gen)
        return self.voices[who][:, None, None] + noise


def average(weights):
    dist.all_reduce(weights)
    weights /= dist.get_world_size()


def average_through_rank_0(weights):
    """What a parameter server does, from the days when the ranks were processes on sockets."""
    if dist.get_rank() > 0:
        dist.send(weights, dst=0)
        dist.recv(weights, src=0)
        return
    others = range(1, dist.get_world_size())
    received = torch.empty_like(weights)
    for rank in others:
        dist.recv(received, src=rank)
        weights += received
    weights /= dist.get_world_size()
    for rank in others:
        dist.send(weights, dst=rank)


def main():
    args = parser.parse_args()
    dist.init_process_group("gloo")
    mix = average_through_rank_0 if args.fault == "through-rank-0" else average
    torch.manual_seed(0)
    encoder = Encoder()
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.02, momentum=0.9)
    speakers = Speakers(args, seed=dist.get_rank())
    for _ in range(14):
        loss = encoder.ge2e(speakers.batch())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(encoder.parameters(), 3.0)
        optimizer.step()
        with torch.no_grad():
            weights = nn.utils.parameters_to_vector(encoder.parameters())
            mix(weights)
            nn.utils.vector_to_parameters(weights, encoder.parameters())
    low, high = weights.clone(), weights.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    assert torch.equal(low, high) and weights.isfinite().all()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
