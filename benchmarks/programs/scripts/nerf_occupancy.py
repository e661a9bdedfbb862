"""A small radiance field in two dimensions, with camera offsets that are learned beside it.

An occupancy grid says which samples of a ray are worth the field; it is refreshed now and then.
Two optimizers, gradients averaged in one flat all_reduce for each.
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

RESOLUTION, EVERY = 320, 4


class Field(nn.Module):
    def __init__(self, width=96, bands=6):
        super().__init__()
        self.register_buffer("bands", 2.0 ** torch.arange(bands))
        self.body = nn.Sequential(
            nn.Linear(4 * bands, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.density, self.colour = nn.Linear(width, 1), nn.Linear(width, 3)

    def forward(self, points):
        angles = (points[..., None] * self.bands).flatten(-2)
        features = self.body(torch.cat([angles.sin(), angles.cos()], -1))
        return F.softplus(self.density(features))[..., 0], self.colour(features).sigmoid()


class OccupancyGrid:
    """Densities at the centres of cells, a moving maximum."""

    def __init__(self, alone):
        self.values = torch.ones(RESOLUTION, RESOLUTION)
        self.alone = alone
        axis = (torch.arange(RESOLUTION) + 0.5) / RESOLUTION * 2 - 1
        self.centres = torch.cartesian_prod(axis, axis).view(RESOLUTION, RESOLUTION, 2)

    @torch.no_grad()
    def density(self, field, rows):
        points = self.centres[rows]
        points = points + (torch.rand_like(points) - 0.5) / RESOLUTION
        return torch.cat([field(chunk)[0] for chunk in points.split(20)])

    def refresh(self, field):
        rank, size = dist.get_rank(), dist.get_world_size()
        if self.alone:
            fresh = torch.empty_like(self.values)
            if rank == 0:
                fresh = self.density(field, slice(None))
            dist.broadcast(fresh, src=0)
        else:
            share = RESOLUTION // size
            mine = self.density(field, slice(rank * share, (rank + 1) * share))
            fresh = torch.empty_like(self.values)
            dist.all_gather_into_tensor(fresh, mine.contiguous())
        self.values = torch.maximum(self.values * 0.9, fresh)

    def occupied(self, points):
        cells = ((points + 1) / 2 * RESOLUTION).long().clamp(0, RESOLUTION - 1)
        return self.values[cells[..., 0], cells[..., 1]] > 0.3


def render(field, grid, origins, directions, samples=24):
    depths = torch.linspace(0.05, 1.6, samples)
    points = origins[:, None] + directions[:, None] * depths[None, :, None]
    density, colour = field(points)
    alpha = 1 - torch.exp(-density * grid.occupied(points) * 1.6 / samples)
    through = torch.cumprod(torch.cat([torch.ones(len(alpha), 1), 1 - alpha], 1), 1)[:, :-1]
    return ((alpha * through)[..., None] * colour).sum(1)


def average_gradients(optimizer):
    grads = [p.grad for g in optimizer.param_groups for p in g["params"]]
    flat = _flatten_dense_tensors(grads)
    dist.all_reduce(flat, op=dist.ReduceOp.AVG)
    for grad, mean in zip(grads, _unflatten_dense_tensors(flat, grads), strict=True):
        grad.copy_(mean)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "grid-on-rank-0"], default="none")
    fault = parser.parse_args().fault
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(4)
    field, offsets = Field(), nn.Parameter(torch.zeros(12, 2))
    grid = OccupancyGrid(alone=fault == "grid-on-rank-0")
    field_optimizer = torch.optim.Adam(field.parameters(), lr=4e-3)
    pose_optimizer = torch.optim.SGD([offsets], lr=1e-3, momentum=0.9)
    torch.manual_seed(50 + dist.get_rank())
    losses = []
    for iteration in range(16):
        if iteration % EVERY == 2:
            grid.refresh(field)
        camera, angle = torch.randint(12, (400,)), torch.rand(400) * 6.2832
        directions = torch.stack([angle.cos(), angle.sin()], 1)
        where = torch.stack([(camera * 0.5).cos(), (camera * 0.5).sin()], 1) * 0.8
        target = torch.stack([directions[:, 0].abs(), where[:, 0] ** 2, where[:, 1] ** 2], 1)
        loss = F.mse_loss(render(field, grid, where + offsets[camera], directions), target)
        for optimizer in (field_optimizer, pose_optimizer):
            optimizer.zero_grad()
        loss.backward()
        for optimizer in (field_optimizer, pose_optimizer):
            average_gradients(optimizer)
            optimizer.step()
        losses.append(loss.detach())
    assert losses[-1] < losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
