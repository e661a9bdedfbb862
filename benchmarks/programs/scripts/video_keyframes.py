"""Action recognition on compressed clips: frames are differences from the last key frame."""

import argparse
import zlib

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser()
parser.add_argument("--fault", choices=["none", "rare-keyframes"], default="none")
parser.add_argument("--epochs", type=int, default=1)

SIDE, LENGTH, CLIP, ACTIONS, BATCH = 64, 480, 8, 4, 4


class Video:
    """A blob that moves into one of four directions, and its code."""

    def __init__(self, seed, action, keyframe_every):
        self.action, self.every = action, keyframe_every
        rng = np.random.default_rng(seed)
        shift = [(0, 1), (0, -1), (1, 0), (-1, 0)][action]
        frame = rng.integers(0, 60, (SIDE, SIDE), dtype=np.uint8)
        frame[16:32, 16:32] += 150
        self.packets, last = [], np.zeros_like(frame)
        for i in range(LENGTH):
            key = i % keyframe_every == 0
            self.packets.append(zlib.compress((frame if key else frame - last).tobytes(), 1))
            last = frame
            frame = np.roll(frame, shift, (0, 1))

    def clip(self, start):
        """Eight frames from ``start`` on; what is before them back to a key frame is decoded."""
        frames, frame = [], None
        for i in range(start - start % self.every, start + CLIP):
            packet = np.frombuffer(zlib.decompress(self.packets[i]), np.uint8)
            frame = packet if i % self.every == 0 else frame + packet
            if i >= start:
                frames.append(frame.reshape(SIDE, SIDE))
        return torch.from_numpy(np.stack(frames)).float().div_(255)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv3d(1, 12, (3, 5, 5), stride=(1, 4, 4), padding=(1, 2, 2))
        self.body = nn.Conv3d(12, 24, 3, stride=2, padding=1)
        self.head = nn.Linear(24 * 4 * 8 * 8, ACTIONS)

    def forward(self, clip):
        x = F.relu(self.stem(clip[:, None] - clip.mean((1, 2, 3))[:, None, None, None, None]))
        return self.head(F.relu(self.body(x)).flatten(1))


def starts(gen):
    """Where the clips of a batch begin; a batch is four clips of one scene."""
    scene = int(torch.randint(LENGTH - 4 * CLIP, (), generator=gen))
    return [scene + CLIP * i for i in range(BATCH)]


def main():
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    every = 240 if args.fault == "rare-keyframes" else CLIP
    videos = [Video(10 * rank + a, a, every) for a in range(ACTIONS)]
    torch.manual_seed(0)
    net = DDP(Net())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.8)
    gen = torch.Generator().manual_seed(1 + rank)
    losses = []
    for _ in range(args.epochs * 14):
        clips = torch.stack([v.clip(s) for v, s in zip(videos, starts(gen))])
        loss = F.cross_entropy(net(clips), torch.arange(ACTIONS))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert min(losses[-4:]) < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
