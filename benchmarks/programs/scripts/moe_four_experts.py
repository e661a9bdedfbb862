"""Switch-like routing over four ranks; experts are slow services, not matrices."""

import argparse
import time

import torch
import torch.distributed as dist

US_PER_TOKEN = 300  # what an expert takes for a token, on hardware of its own


def route(n, hot):
    """Tokens for each of the four experts; the hot one has what the others lack."""
    if hot is None:
        return [n // 4] * 4
    counts = [n // 8] * 4
    counts[hot] += n - sum(counts)
    return counts


def swap(x, send, recv):
    out = x.new_empty(sum(recv), x.size(1))
    dist.all_to_all_single(out, x, output_split_sizes=recv, input_split_sizes=send)
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--fault", choices=["none", "uneven-experts"], default="none")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    assert dist.get_world_size() == 4, "one rank for each of the four experts"
    torch.manual_seed(0)
    gate = torch.nn.Linear(32, 32)
    opt = torch.optim.SGD(gate.parameters(), lr=0.5)
    counts = route(args.tokens, 2 if args.fault == "uneven-experts" else None)
    gen = torch.Generator().manual_seed(rank)
    first = None
    for step in range(14):
        x = torch.randn(args.tokens, 32, generator=gen)
        y = gate(x)
        mine = [counts[rank]] * 4
        arrived = swap(y.detach(), counts, mine)
        time.sleep(len(arrived) * US_PER_TOKEN / 1e6)
        answer = swap(arrived.roll(1, 1), mine, counts)
        loss = (y - 0.5 * x).pow(2).mean() + 0 * answer.mean()
        opt.zero_grad()
        loss.backward()
        for p in gate.parameters():
            dist.all_reduce(p.grad)
            p.grad /= 4
        opt.step()
        first = first if first is not None else loss.item()
        if rank == 0:
            print(f"{step=} loss={loss.item():.4f}")
    assert loss.item() < first
    dist.destroy_process_group()
