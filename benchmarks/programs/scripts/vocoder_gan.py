"""A vocoder: a generator of waves from mel frames against a discriminator, an optimizer each."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

MELS, FRAMES, HOP = 40, 8, 64


class Generator(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.inp = nn.Conv1d(MELS, width, 5, padding=2)
        self.up1 = nn.ConvTranspose1d(width, width // 2, 16, 8, 4)
        self.res = nn.Conv1d(width // 2, width // 2, 3, padding=3, dilation=3)
        self.up2 = nn.ConvTranspose1d(width // 2, 16, 16, 8, 4)
        self.out = nn.Conv1d(16, 1, 7, padding=3)

    def forward(self, mel):
        x = self.up1(F.leaky_relu(self.inp(mel), 0.1))
        x = x + self.res(F.leaky_relu(x, 0.1))
        return torch.tanh(self.out(F.leaky_relu(self.up2(F.leaky_relu(x, 0.1)), 0.1)))


class PeriodDiscriminator(nn.Module):
    """Looks at every p-th sample, for several p."""

    def __init__(self, periods=(2, 4), widths=(16, 64, 256, 384)):
        super().__init__()
        self.periods = periods
        self.stacks = nn.ModuleList()
        for _ in periods:
            layers, last = [], 1
            for width in widths:
                layers += [nn.Conv2d(last, width, (5, 1), (3, 1), (2, 0)), nn.LeakyReLU(0.1)]
                last = width
            self.stacks.append(nn.Sequential(*layers, nn.Conv2d(last, 1, (3, 1), 1, (1, 0))))

    def forward(self, wave):
        return [
            stack(wave.view(wave.size(0), 1, -1, p)).flatten(1)
            for p, stack in zip(self.periods, self.stacks)
        ]


def batch(gen, filters, size=8):
    t = torch.arange(FRAMES * HOP) / 100.0
    pitch = 1 + 3 * torch.rand(size, 1, 1, generator=gen)
    wave = torch.sin(pitch * t) * 0.5 + 0.2 * torch.sin(2 * pitch * t)
    mel = (wave.view(size, FRAMES, HOP) @ filters).abs().log1p().transpose(1, 2)
    return mel, wave


def main(fault):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    gen_model, disc_model = DDP(Generator()), DDP(PeriodDiscriminator())
    opt_g = torch.optim.AdamW(gen_model.parameters(), 2e-3, betas=(0.8, 0.99))
    opt_d = torch.optim.AdamW(disc_model.parameters(), 2e-4, betas=(0.8, 0.99))
    filters = torch.randn(HOP, MELS)
    g = torch.Generator().manual_seed(dist.get_rank())
    mel_losses = []
    for _ in range(14):
        mel, wave = batch(g, filters)
        fake = gen_model(mel)

        opt_d.zero_grad()
        scores = disc_model(torch.cat([wave, fake.detach()]))
        loss_d = 0.0
        for score in scores:
            real, made = score.chunk(2)
            loss_d = loss_d + (1 - real).square().mean() + made.square().mean()
        loss_d.backward()
        opt_d.step()

        opt_g.zero_grad()
        judge = disc_model
        if fault == "none":  # the judge passes gradients on and needs none itself
            judge = disc_model.module.requires_grad_(False)
        mel_loss = F.l1_loss(
            (fake.view(-1, FRAMES, HOP) @ filters).abs().log1p().transpose(1, 2), mel
        )
        adversarial = sum((1 - score).square().mean() for score in judge(fake))
        (45 * mel_loss + adversarial).backward()
        opt_g.step()
        disc_model.module.requires_grad_(True)
        mel_losses.append(mel_loss.item())
    assert sum(mel_losses[-3:]) < sum(mel_losses[:3]), mel_losses
    if dist.get_rank() == 0:
        print(mel_losses[0], mel_losses[-1])
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "judge-keeps-gradients"], default="none")
    main(parser.parse_args().fault)
