"""Bundle adjustment: landmarks are spread over ranks, the cameras' reduced system is summed."""

import argparse
import tempfile

import torch
import torch.distributed as dist
from torch.func import jacfwd, vmap
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

CAMERAS, LANDMARKS = 20, 160  # landmarks of each rank
ITERATIONS = 14


def rotate(w, x):
    """By Rodrigues' formula."""
    angle = (w.square().sum() + 1e-12).sqrt()
    axis = w / angle
    cross = torch.linalg.cross(axis, x)
    return x * angle.cos() + cross * angle.sin() + axis * (axis @ x) * (1 - angle.cos())


def project(camera, point):
    p = rotate(camera[:3], point) + camera[3:]
    return p[:2] / p[2]


each_camera = vmap(project, in_dims=(0, None))
project_all = vmap(each_camera, in_dims=(None, 0))  # (landmarks, cameras, 2)


def jacobians(cameras, points):
    by_camera = vmap(vmap(jacfwd(project, 0), in_dims=(0, None)), in_dims=(None, 0))
    by_point = vmap(vmap(jacfwd(project, 1), in_dims=(0, None)), in_dims=(None, 0))
    return by_camera(cameras, points), by_point(cameras, points)


class ReducedSystem:
    """The cameras' normal equations with this rank's landmarks eliminated (Schur complement)."""

    def __init__(self, cameras, points, observed, damping):
        residual = observed - project_all(cameras, points)
        a, b = jacobians(cameras, points)
        u = torch.einsum("pcri,pcrj->cij", a, a)
        v = torch.einsum("pcri,pcrj->pij", b, b) + damping * torch.eye(3)
        self.w = torch.einsum("pcri,pcrj->pcij", a, b)
        self.v_inv = torch.linalg.inv(v)
        self.g_points = torch.einsum("pcri,pcr->pi", b, residual)
        wv = self.w @ self.v_inv[:, None]
        matrix = -torch.einsum("pcik,pdjk->cidj", wv, self.w)
        diagonal = torch.arange(CAMERAS)
        matrix[diagonal, :, diagonal] += u
        rhs = torch.einsum("pcri,pcr->ci", a, residual)
        self.matrix = matrix
        self.rhs = rhs - torch.einsum("pcik,pk->ci", wv, self.g_points)
        self.cost = residual.square().sum()

    def reduce(self, camera_by_camera):
        """The sum over ranks, as one system."""
        if camera_by_camera:
            for camera in range(CAMERAS):
                dist.all_reduce(self.matrix[camera])
                dist.all_reduce(self.rhs[camera])
            dist.all_reduce(self.cost)
            return
        flat = torch.cat([self.matrix.flatten(), self.rhs.flatten(), self.cost[None]])
        dist.all_reduce(flat)
        n = 6 * CAMERAS
        self.matrix = flat[: n * n].view_as(self.matrix)
        self.rhs, self.cost = flat[n * n : -1].view_as(self.rhs), flat[-1]

    def solve(self, damping):
        n = 6 * CAMERAS
        matrix = self.matrix.reshape(n, n) + damping * torch.eye(n)
        cameras = torch.linalg.solve(matrix, self.rhs.flatten()).view(CAMERAS, 6)
        back = self.g_points - torch.einsum("pcik,ci->pk", self.w, cameras)
        return cameras, torch.einsum("pij,pj->pi", self.v_inv, back)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "camera-by-camera"], default="none")
    parser.add_argument("--traces", default=f"{tempfile.gettempdir()}/bundle_slam")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_default_dtype(torch.float64)
    g = torch.Generator().manual_seed(2)
    cameras = torch.cat(
        [
            0.1 * torch.randn(CAMERAS, 3, generator=g),
            torch.randn(CAMERAS, 3, generator=g) + torch.tensor([0, 0, 8.0]),
        ],
        1,
    )
    noise = 0.02 * torch.randn(cameras.shape, generator=g)
    g.manual_seed(100 + dist.get_rank())
    points = 2 * torch.randn(LANDMARKS, 3, generator=g)
    observed = project_all(cameras, points)
    observed = observed + 1e-4 * torch.randn(observed.shape, generator=g)
    cameras, points = cameras + noise, points + 0.05 * torch.randn(points.shape, generator=g)
    damping, costs = 1e-2, []
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True,
        schedule=schedule(wait=4, warmup=1, active=8, repeat=1),
        on_trace_ready=tensorboard_trace_handler(args.traces, f"rank{dist.get_rank()}"),
    ) as profiler:  # fmt: skip
        for _ in range(ITERATIONS):
            system = ReducedSystem(cameras, points, observed, damping)
            system.reduce(args.fault == "camera-by-camera")
            move, shift = system.solve(damping)
            cameras, points = cameras + move, points + shift
            damping = max(damping * 0.5, 1e-5)
            costs.append(system.cost.item())
            profiler.step()
    if dist.get_rank() == 0:
        print(f"{costs[0]:.4f} -> {costs[-1]:.6f}")
    assert costs[-1] < 0.1 * costs[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
