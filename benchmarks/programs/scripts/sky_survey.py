"""Three telescopes stack their exposures in real time and look for what moved.

The camera delivers a frame every 200 ms; when a frame is there, each rank
subtracts its background, the frames are summed, and rank 0 notes transients.
Nothing is trained; the pace is that of the cameras.

    torchrun --nproc-per-node 3 sky_survey.py [--fault doubles]

--fault doubles: somebody was afraid of rounding; the stack and its variance
are summed in float64, one after the other.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

SIDE, PERIOD, STEPS = 256, 0.200, 90


class Camera:
    """Hands out a frame at each tick of its clock (ticks are those of all)."""

    def __init__(self, rank, begin):
        self.gen = torch.Generator().manual_seed(rank)
        self.sky = torch.rand(SIDE, SIDE, generator=torch.Generator().manual_seed(7)) ** 8 * 50
        self.begin, self.count = begin, 0

    def frame(self):
        self.count += 1
        image = self.sky + torch.randn(SIDE, SIDE, generator=self.gen)
        row = (self.count * 2) % SIDE
        image[row, row] += 40  # a satellite
        ready = self.begin + self.count * PERIOD
        pause = ready - time.time()
        if pause > 0:
            time.sleep(pause)  # the shutter is still open
        return image


def background(image):
    """A smooth sky from coarse minima."""
    coarse = -F.max_pool2d(-image[None, None], 32)
    return F.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear")[0, 0]


class Stacker:
    def __init__(self, doubles):
        self.doubles = doubles
        self.reference = torch.zeros(SIDE, SIDE)
        self.noise = torch.ones(SIDE, SIDE)

    def stack(self, clean):
        if self.doubles:
            total = clean.double()
            dist.all_reduce(total)
            squares = clean.double().square()
            dist.all_reduce(squares)
            total, squares = total.float(), squares.float()
        else:
            both = torch.stack([clean, clean.square()])
            dist.all_reduce(both)
            total, squares = both
        world = dist.get_world_size()
        mean = total / world
        return mean, (squares / world - mean.square()).clamp_min(0.1)

    def transients(self, mean, variance):
        moved = (mean - self.reference) / self.noise.sqrt()
        self.reference.lerp_(mean, 0.1)
        self.noise.lerp_(variance, 0.1)
        return (moved > 12).nonzero()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "doubles"])
    fault = parser.parse_args().fault
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    begin = torch.tensor([time.time() + 0.5], dtype=torch.float64)
    dist.broadcast(begin, 0)
    camera, stacker, found = Camera(rank, begin.item()), Stacker(fault == "doubles"), []
    times = []
    for step in range(STEPS):
        start = time.perf_counter()
        image = camera.frame()
        clean = image - background(image)
        mean, variance = stacker.stack(clean)
        if rank == 0:
            found.append(stacker.transients(mean, variance))
            if step % 30 == 29:
                print(f"frame {step + 1}: {sum(map(len, found[-30:]))} transients", flush=True)
        times.append(time.perf_counter() - start)
    if rank == 0:
        print(f"mean step {1e3 * sum(times[5:]) / len(times[5:]):.1f} ms")
    dist.barrier()  # nobody leaves while another still talks
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
