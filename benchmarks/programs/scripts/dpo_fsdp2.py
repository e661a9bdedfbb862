"""Direct preference optimisation of a small language model; policy and reference are sharded."""

import argparse
import copy
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

VOCAB, LENGTH, PROMPT = 256, 20, 8


@dataclass
class Config:
    width: int = 256
    layers: int = 2
    pairs: int = 2
    beta: float = 0.1
    lr: float = 3e-4
    steps: int = 14


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        split = (*x.shape[:2], 4, x.shape[2] // 4)
        q, k, v = (t.view(split).transpose(1, 2) for t in self.qkv(self.norms[0](x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class LanguageModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, config.width)
        self.positions = nn.Parameter(0.02 * torch.randn(LENGTH, config.width))
        self.layers = nn.ModuleList(Layer(config.width) for _ in range(config.layers))
        self.head = nn.Linear(config.width, VOCAB)

    def forward(self, ids):
        """Log-probability of what follows the prompt, of each sequence."""
        x = self.tokens(ids) + self.positions
        for layer in self.layers:
            x = layer(x)
        log_probs = self.head(x[:, PROMPT - 1 : -1]).log_softmax(-1)
        return log_probs.gather(-1, ids[:, PROMPT:, None]).sum((1, 2))


class DPOTrainer:
    def __init__(self, config, separately):
        self.config, self.separately = config, separately
        policy = LanguageModel(config)
        reference = copy.deepcopy(policy).requires_grad_(False).eval()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for model in (policy, reference):
            for layer in model.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
        self.policy, self.reference = policy, reference
        self.optimizer = torch.optim.AdamW(policy.parameters(), lr=config.lr)

    def log_ratio(self, model, chosen, rejected):
        if self.separately:
            return model(chosen) - model(rejected)
        good, bad = model(torch.cat([chosen, rejected])).chunk(2)
        return good - bad

    def step(self, chosen, rejected):
        with torch.no_grad():
            reference = self.log_ratio(self.reference, chosen, rejected)
        margin = self.log_ratio(self.policy, chosen, rejected) - reference
        loss = -F.logsigmoid(self.config.beta * margin).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def preferences(count, generator):
    """Answers that go on counting are preferred to those that repeat themselves."""
    prompt = torch.randint(VOCAB, (count, 1), generator=generator) + torch.arange(PROMPT)
    following = prompt[:, -1:] + torch.arange(1, LENGTH - PROMPT + 1)
    chosen = torch.cat([prompt, following], 1) % VOCAB
    rejected = torch.cat([prompt, prompt[:, -1:].expand_as(following)], 1) % VOCAB
    return chosen, rejected


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "chosen-then-rejected"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    config = Config()
    trainer = DPOTrainer(config, separately=args.fault == "chosen-then-rejected")
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = [trainer.step(*preferences(config.pairs, generator)) for _ in range(config.steps)]
    if dist.get_rank() == 0:
        print("loss", " ".join(f"{loss:.3f}" for loss in losses))
    assert losses[-1] < 0.8 * losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
