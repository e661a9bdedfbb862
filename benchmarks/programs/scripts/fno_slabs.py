"""A Fourier neural operator over slabs: its two-dimensional FFT transposes by all_to_all."""

import argparse

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_f
from torch import nn

SIZE, BATCH, LAYERS = 128, 16, 2


def transpose(x, to_columns):
    """From rows on each rank to columns, or back; complex [batch, rows, columns]."""
    n = dist.get_world_size()
    parts = x.chunk(n, dim=2 if to_columns else 1)
    sent = torch.view_as_real(torch.stack(parts).contiguous())
    received = dist_f.all_to_all_single(torch.empty_like(sent), sent.contiguous())
    pieces = torch.view_as_complex(received).unbind(0)
    return torch.cat(pieces, dim=1 if to_columns else 2)


class Fft:
    def __call__(self, x, dim):
        return torch.fft.fft(x, dim=dim, norm="ortho")

    def inverse(self, x, dim):
        return torch.fft.ifft(x, dim=dim, norm="ortho")


class MatrixFft(Fft):
    """For builds of torch without MKL, whose FFT raised an error once."""

    def __init__(self):
        self.matrix = torch.fft.fft(torch.eye(SIZE, dtype=torch.complex64), norm="ortho")

    def __call__(self, x, dim):
        return self.apply(x, self.matrix, dim)

    def inverse(self, x, dim):
        return self.apply(x, self.matrix.conj(), dim)

    @staticmethod
    def apply(x, matrix, dim):
        return (x.transpose(dim, -1) @ matrix).transpose(dim, -1)


class Operator(nn.Module):
    def __init__(self, fft):
        super().__init__()
        columns = SIZE // dist.get_world_size()
        self.fft = fft
        self.spectrum = nn.ParameterList(
            nn.Parameter(torch.ones(SIZE, columns, 2)) for _ in range(LAYERS)
        )

    def forward(self, x):
        for spectrum in self.spectrum:
            y = transpose(self.fft(x.to(torch.complex64), dim=2), True)
            y = self.fft(y, dim=1) * torch.view_as_complex(spectrum)
            y = transpose(self.fft.inverse(y, dim=1), False)
            x = x + torch.tanh(self.fft.inverse(y, dim=2).real)
        return x


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=["none", "no-mkl"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    rows = SIZE // dist.get_world_size()
    fft = MatrixFft() if args.fault == "no-mkl" and rank == 1 else Fft()
    model = Operator(fft)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(0)
    mine = slice(rank * rows, (rank + 1) * rows)
    losses = []
    for _ in range(22):
        field = torch.randn(BATCH, SIZE, SIZE, generator=gen)
        smooth = (field + field.roll(1, 1) + field.roll(1, 2)) / 3
        loss = (model(field[:, mine]) - smooth[:, mine]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
