"""Generates text with a tensor-parallel decoder and a key-value cache, and streams it."""

import argparse
import re

import torch
import torch.distributed as dist
import torch.nn.functional as F

VOCAB, WIDTH, HEADS, LAYERS, BATCH, PROMPT, NEW = 512, 256, 8, 3, 16, 256, 96
PIECES = [(" " if i % 3 == 0 else "") + chr(97 + i % 26) + chr(97 + i // 26) for i in range(VOCAB)]


class Layer:
    """Every rank has its heads, and its part of the hidden units."""

    def __init__(self, rank, world, generator):
        def weight(rows, columns, dim):
            full = torch.randn(rows, columns, generator=generator) / rows**0.5
            return full.chunk(world, dim)[rank].contiguous()

        self.heads = HEADS // world
        self.q, self.k, self.v = (weight(WIDTH, WIDTH, 1) for _ in range(3))
        self.out = weight(WIDTH, WIDTH, 0)
        self.up, self.down = weight(WIDTH, 4 * WIDTH, 1), weight(4 * WIDTH, WIDTH, 0)
        shape = (BATCH, self.heads, PROMPT + NEW, WIDTH // HEADS)
        self.keys, self.values = torch.zeros(shape), torch.zeros(shape)

    def __call__(self, x, start):
        end = start + x.size(1)
        h = F.layer_norm(x, (WIDTH,))
        q, k, v = (
            (h @ w).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for w in (self.q, self.k, self.v)
        )
        self.keys[:, :, start:end], self.values[:, :, start:end] = k, v
        attended = F.scaled_dot_product_attention(
            q, self.keys[:, :, :end], self.values[:, :, :end], is_causal=start == 0
        )
        partial = attended.transpose(1, 2).flatten(2) @ self.out
        dist.all_reduce(partial)
        x = x + partial
        partial = F.gelu(F.layer_norm(x, (WIDTH,)) @ self.up) @ self.down
        dist.all_reduce(partial)
        return x + partial


class Decoder:
    def __init__(self, rank, world):
        generator = torch.Generator().manual_seed(0)
        self.embedding = torch.randn(VOCAB, WIDTH, generator=generator)
        self.places = torch.randn(PROMPT + NEW, WIDTH, generator=generator)
        self.layers = [Layer(rank, world, generator) for _ in range(LAYERS)]

    @torch.inference_mode()
    def next_tokens(self, tokens, start=0):
        """The likeliest next token of each sequence; what is before ``start`` is cached."""
        x = self.embedding[tokens] + self.places[start : start + tokens.size(1)]
        for layer in self.layers:
            x = layer(x, start)
        return (x[:, -1] @ self.embedding.T).argmax(1, keepdim=True)


def decode(ids):
    text = "".join(PIECES[i] for i in ids)
    return re.sub(r" ([.,!?'])", r"\1", text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "decode-from-start"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    decoder = Decoder(rank, world)
    tokens = torch.randint(VOCAB, (BATCH, PROMPT), generator=torch.Generator().manual_seed(3))
    streamed = [""] * BATCH
    newest = decoder.next_tokens(tokens)
    for _ in range(NEW - 1):
        tokens = torch.cat([tokens, newest], dim=1)
        if rank == 0:  # it talks to the clients
            for i in range(BATCH):
                if args.fault == "decode-from-start":
                    text = decode([int(token) for token in tokens[i]])
                    streamed[i] += text[len(decode([int(token) for token in tokens[i, :-1]])) :]
                else:
                    streamed[i] += decode([tokens[i, -1].item()])
        newest = decoder.next_tokens(newest, tokens.size(1) - 1)
    if rank == 0:
        assert streamed == [decode(row[PROMPT:].tolist()) for row in tokens]
    assert torch.equal(newest, decoder.next_tokens(tokens))
    dist.destroy_process_group()
