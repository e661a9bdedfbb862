"""Fourier neural operator on a 2-D field cut into slabs of rows; the spectral layers transpose with all_to_all."""
import argparse, json, os, time
import numpy as np
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist

ap = argparse.ArgumentParser()
ap.add_argument("--fault", default=None, choices=["full_spectrum", "energy_spectrum"])
FAULT = ap.parse_args().fault
SMALL, CUDA = os.environ.get("SMALL") == "1", torch.cuda.is_available()
N, C, B, MW, MH, LAYERS, STEPS, TIMED = (32, 8, 2, 8, 4, 2, 6, 3) if SMALL else (512, 32, 4, 160, 32, 4, 60, 30)


class Exchange(torch.autograd.Function):
    """all_to_all over dim 0 (one slice for each rank); its own adjoint."""

    @staticmethod
    def forward(ctx, x):
        src = torch.view_as_real(x.contiguous())
        out = torch.empty_like(src)
        dist.all_to_all_single(out, src)
        return torch.view_as_complex(out)

    @staticmethod
    def backward(ctx, g):
        return Exchange.apply(g)


def rows_to_modes(x, P):          # [b,c,N/P,M] -> [b,c,N,M/P]
    b, c, n, m = x.shape
    y = Exchange.apply(x.reshape(b, c, n, m // P, P).permute(4, 0, 1, 2, 3))      # modes dealt out in turn
    return y.permute(1, 2, 0, 3, 4).reshape(b, c, n * P, m // P)


def modes_to_rows(x, P):          # inverse
    b, c, n, m = x.shape
    y = Exchange.apply(x.view(b, c, P, n // P, m).permute(2, 0, 1, 3, 4))
    return y.permute(1, 2, 3, 4, 0).reshape(b, c, n // P, m * P)


class SpectralSlab(nn.Module):
    def __init__(self, P):
        super().__init__()
        self.P = P
        self.weight = nn.Parameter(torch.randn(2 * MH * (MW // P), C, C, 2) / C)   # this rank's modes only

    def mix(self, z):             # z [b,c,2*MH,MW/P]
        b, c, h, w = z.shape
        z = z.permute(2, 3, 0, 1).reshape(h * w, b, c)
        z = torch.bmm(z, torch.view_as_complex(self.weight))
        return z.view(h, w, b, c).permute(2, 3, 0, 1)

    def forward(self, x):         # x [b,c,N/P,N] real
        spec = torch.fft.rfft(x, dim=-1, norm="ortho")
        if FAULT == "full_spectrum":
            # plain distributed fft2, the layer picks its modes afterwards
            keep = N // 2
            spec = torch.fft.fft(rows_to_modes(spec[..., :keep], self.P), dim=-2, norm="ortho")
            low = torch.cat([spec[:, :, :MH], spec[:, :, -MH:]], dim=2)
            mixed = self.mix(low[..., :MW // self.P])
            full = F.pad(mixed, (0, (keep - MW) // self.P))
        else:
            spec = torch.fft.fft(rows_to_modes(spec[..., :MW], self.P), dim=-2, norm="ortho")
            full = self.mix(torch.cat([spec[:, :, :MH], spec[:, :, -MH:]], dim=2))
        gap = full.new_zeros(*full.shape[:2], N - 2 * MH, full.shape[-1])
        full = torch.cat([full[:, :, :MH], gap, full[:, :, MH:]], dim=2)
        rows = modes_to_rows(torch.fft.ifft(full, dim=-2, norm="ortho"), self.P)
        return torch.fft.irfft(rows, n=N, dim=-1, norm="ortho")


class FNO(nn.Module):
    def __init__(self, P):
        super().__init__()
        self.lift = nn.Conv2d(3, C, 1)
        self.spec = nn.ModuleList(SpectralSlab(P) for _ in range(LAYERS))
        self.skip = nn.ModuleList(nn.Conv2d(C, C, 1) for _ in range(LAYERS))
        self.mlp = nn.ModuleList(nn.Sequential(nn.Conv2d(C, 4 * C, 1), nn.GELU(), nn.Conv2d(4 * C, C, 1)) for _ in range(LAYERS))
        self.proj = nn.Sequential(nn.Conv2d(C, 4 * C, 1), nn.GELU(), nn.Conv2d(4 * C, 1, 1))

    def forward(self, x):
        x = self.lift(x)
        for s, k, m in zip(self.spec, self.skip, self.mlp):
            x = F.gelu(s(x) + k(x))
            x = x + m(x)
        return self.proj(x)


def spectrum(field):
    """Radially binned energy spectrum of every sample, for the log."""
    a = np.abs(np.fft.rfft2(field.detach().cpu().double().numpy()[:, 0])) ** 2
    ky, kx = np.fft.fftfreq(a.shape[1]) * a.shape[1], np.arange(a.shape[2])
    k = np.hypot(ky[:, None], kx[None]).astype(int)
    return [np.bincount(k.ravel(), weights=s.ravel()) for s in a]


def main():
    if CUDA:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dev = torch.device("cuda", torch.cuda.current_device()) if CUDA else torch.device("cpu")
    dist.init_process_group("nccl" if CUDA else "gloo")
    rank, P = dist.get_rank(), dist.get_world_size()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(3)
    net = FNO(P).to(dev)
    shared = [p for n, p in net.named_parameters() if "spec" not in n]
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    torch.manual_seed(30 + rank)
    inputs = [torch.randn(B, 3, N // P, N, device=dev) for _ in range(4)]
    targets = [torch.randn(B, 1, N // P, N, device=dev) for _ in range(4)]
    history = []
    for step in range(STEPS):
        if step == STEPS - TIMED:
            if CUDA:
                torch.cuda.synchronize()
            t0 = time.perf_counter()
        x, y = inputs[step % 4], targets[step % 4]
        opt.zero_grad(set_to_none=True)
        pred = net(x)
        loss = F.mse_loss(pred, y)
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in shared])
        dist.all_reduce(flat)
        flat.div_(P)
        for p, g in zip(shared, flat.split([p.numel() for p in shared])):
            p.grad.copy_(g.view_as(p))
        opt.step()
        if FAULT == "energy_spectrum" and rank == 0:
            history.append(np.mean(spectrum(pred), axis=0)[:N // 2])
    if CUDA:
        torch.cuda.synchronize()
    ms = (time.perf_counter() - t0) * 1e3 / TIMED
    if rank == 0:
        print(json.dumps({"step_ms": ms, "loss": loss.item()}))
    dist.destroy_process_group()


main()
