"""A Trainer in the manner of Hugging Face: arguments, logging, evaluation, checkpoints, clipping."""

import argparse
import dataclasses
import json
import pathlib
import tempfile
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@dataclasses.dataclass
class TrainingArguments:
    output_dir: str
    per_device_train_batch_size: int = 64
    learning_rate: float = 2e-3
    max_steps: int = 14
    logging_steps: int = 2
    save_steps: int = 50
    eval_steps: int = 50
    max_grad_norm: float = 1.0
    fault: str = "none"


class Trainer:
    def __init__(self, model, args, train_dataset, eval_dataset):
        self.args, self.eval_dataset = args, eval_dataset
        self.model = DistributedDataParallel(model)
        self.sampler = DistributedSampler(train_dataset)
        self.loader = DataLoader(
            train_dataset, args.per_device_train_batch_size, sampler=self.sampler
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.learning_rate)
        self.state = {"global_step": 0, "log_history": []}

    def training_step(self, inputs, labels):
        self.model.train()
        loss = torch.nn.functional.cross_entropy(self.model(inputs), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def train(self):
        epoch = 0
        while self.state["global_step"] < self.args.max_steps:
            self.sampler.set_epoch(epoch)
            for batch in self.loader:
                loss = self.training_step(*batch)
                self.state["global_step"] += 1
                self.maybe_log_save_evaluate(loss)
                if self.state["global_step"] >= self.args.max_steps:
                    break
            epoch += 1

    def maybe_log_save_evaluate(self, loss):
        step = self.state["global_step"]
        if step % self.args.logging_steps == 0:
            mean = loss.clone()
            dist.all_reduce(mean)
            self.state["log_history"].append({"step": step, "loss": mean.item() / 2})
            if dist.get_rank() == 0:
                print(self.state["log_history"][-1])
        if step % self.args.save_steps == 0:
            if dist.get_rank() == 0:
                self.save()
            dist.barrier()
        if step % self.args.eval_steps == 0 and dist.get_rank() == 0:
            self.evaluate()

    def save(self):
        folder = pathlib.Path(self.args.output_dir, f"checkpoint-{self.state['global_step']}")
        folder.mkdir(parents=True)
        torch.save(self.model.module.state_dict(), folder / "model.pt")
        (folder / "trainer_state.json").write_text(json.dumps(self.state))
        time.sleep(0.15)  # to an object store

    @torch.no_grad()
    def evaluate(self):
        """Nobody told the other ranks."""
        self.model.eval()
        until = time.perf_counter() + 0.15
        while time.perf_counter() < until:
            self.model.module(self.eval_dataset)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--max_steps", type=int, default=14)
    parser.add_argument("--fault", default="none", choices=["none", "checkpoint", "evaluation"])
    cli = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.randn(4000, 128)
    y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    net = torch.nn.Sequential(
        torch.nn.Linear(128, 768), torch.nn.GELU(), torch.nn.Linear(768, 768), torch.nn.GELU(),
        torch.nn.Linear(768, 4),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as tmp:
        targs = TrainingArguments(tmp, max_steps=cli.max_steps, fault=cli.fault)
        if cli.fault == "checkpoint":
            targs.save_steps = 6
        if cli.fault == "evaluation":
            targs.eval_steps = 3
        trainer = Trainer(net, targs, TensorDataset(x, y), x[:256])
        trainer.train()
    history = trainer.state["log_history"]
    assert history[-1]["loss"] < history[0]["loss"]
    dist.destroy_process_group()
