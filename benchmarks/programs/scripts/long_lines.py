"""Translation with sentences of all lengths, padded to the longest of a batch, and cut."""

import argparse

import torch
import torch.distributed as dist
from torch import nn

VOCAB, DIM, PAD = 200, 160, 0


class Corpus(torch.utils.data.Dataset):
    def __init__(self, n=2000):
        gen = torch.Generator().manual_seed(11)
        lengths = torch.randint(6, 49, (n,), generator=gen)
        self.lines = [torch.randint(3, VOCAB, (int(k),), generator=gen) for k in lengths]

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, i):
        return self.lines[i]


class Collate:
    def __init__(self, longest):
        self.longest = longest

    def __call__(self, lines):
        cut = [line[: self.longest] for line in lines]
        return nn.utils.rnn.pad_sequence(cut, batch_first=True, padding_value=PAD)


class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM, padding_idx=PAD)
        self.net = nn.Transformer(DIM, 4, 2, 2, 4 * DIM, dropout=0.0, batch_first=True)
        self.out = nn.Linear(DIM, VOCAB)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.size(1))
        y = self.net(self.embed(source), self.embed(target), tgt_mask=mask)
        return self.out(y)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--fault", choices=["none", "untruncated"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    corpus = Corpus()
    indices = list(range(len(corpus)))[dist.get_rank() :: dist.get_world_size()]
    # one node has an older configuration
    longest = 1000 if args.fault == "untruncated" and dist.get_rank() == 1 else 28
    generator = torch.Generator().manual_seed(dist.get_rank())
    loader = torch.utils.data.DataLoader(
        torch.utils.data.Subset(corpus, indices), args.batch_size, shuffle=True,
        collate_fn=Collate(longest), generator=generator, drop_last=True,
    )  # fmt: skip
    torch.manual_seed(0)
    net = nn.parallel.DistributedDataParallel(Seq2Seq(), find_unused_parameters=True)
    opt = torch.optim.Adam(net.parameters(), lr=5e-4, betas=(0.9, 0.98))
    losses = []
    for _, source in zip(range(14), loader):
        target = source.clamp(max=60)
        shifted = nn.functional.pad(target, (1, -1), value=1)
        logits = net(source, shifted)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
