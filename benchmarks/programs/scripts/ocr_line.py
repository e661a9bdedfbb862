"""Reads scanned pages: rank 0 cuts them into lines, rank 1 recognises, rank 2 files the text."""

import argparse
import sqlite3
import time

import torch
import torch.distributed as dist
from torch import nn

PAGES, LINES, HEIGHT, WIDTH, LETTERS = 24, 16, 16, 96, 12
GLYPH = WIDTH // LETTERS


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def font():
    return (torch.rand(26, HEIGHT, GLYPH, generator=seeded(0)) > 0.5).float()


def text_of(page):
    return torch.randint(26, (LINES, LETTERS), generator=seeded(page))


class Scanner:
    def __init__(self, ms_per_page):
        self.ms_per_page = ms_per_page
        self.letters = font()

    def scan(self, page):
        time.sleep(self.ms_per_page / 1e3)
        glyphs = self.letters[text_of(page)].transpose(1, 2).reshape(LINES, HEIGHT, WIDTH)
        noise = torch.rand(glyphs.shape, generator=seeded(page))
        return (glyphs + 0.4 * noise).flatten(0, 1)


def cut(sheet):
    return (sheet.view(LINES, 1, HEIGHT, WIDTH) > 0.7).float()


class Recogniser(nn.Module):
    """Compares each letter with the font, at some places round where it should be."""

    def __init__(self):
        super().__init__()
        self.filters = nn.Conv2d(1, 26, (HEIGHT, GLYPH), bias=False)
        self.filters.weight.data = font()[:, None] - 0.5

    def forward(self, lines):
        scores = self.filters(nn.functional.pad(lines, (0, GLYPH - 1)))
        return scores[:, :, 0, ::GLYPH].argmax(1)


class Register:
    """Where each line was read first, among those of many years."""

    def __init__(self, indexed):
        self.connection = sqlite3.connect(":memory:")
        self.connection.execute("CREATE TABLE line (page INTEGER, text TEXT)")
        old = ((-number, f"{number:012}") for number in range(20_000))
        self.connection.executemany("INSERT INTO line VALUES (?, ?)", old)
        if indexed:
            self.connection.execute("CREATE INDEX by_text ON line (text)")
        self.connection.commit()

    def file(self, page, texts):
        with self.connection:
            for text in texts:
                known = self.connection.execute("SELECT page FROM line WHERE text = ?", (text,))
                if known.fetchone() is None:
                    self.connection.execute("INSERT INTO line VALUES (?, ?)", (page, text))


def scan():
    scanner = Scanner(ms_per_page=8)
    for page in range(PAGES):
        dist.send(cut(scanner.scan(page)), dst=1)


@torch.inference_mode()
def recognise():
    model = Recogniser().eval()
    lines = torch.empty(LINES, 1, HEIGHT, WIDTH)
    for _ in range(PAGES):
        dist.recv(lines, src=0)
        dist.send(model(lines), dst=2)


def file(indexed):
    read = torch.empty(LINES, LETTERS, dtype=torch.int64)
    right = 0.0
    register = Register(indexed)
    for page in range(PAGES):
        dist.recv(read, src=1)
        texts = ["".join(chr(97 + code) for code in line) for line in read.tolist()]
        register.file(page, texts)
        right += (read == text_of(page)).float().mean().item() / PAGES
    query = "SELECT count(*) FROM line WHERE page >= 0 AND text GLOB '[a-z]*'"
    assert register.connection.execute(query).fetchone() == (PAGES * LINES,)
    assert right > 0.9, right


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "no-index"], default="none")
    fault = parser.parse_args().fault
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        scan()
    elif dist.get_rank() == 1:
        recognise()
    else:
        file(indexed=fault != "no-index")
    dist.barrier()
    dist.destroy_process_group()
