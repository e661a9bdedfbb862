"""IMPALA-style training: rank 0 learns, rank 1 acts in a vectorised GPU environment with last round's policy."""
import argparse, json, os, time
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist

SMALL = os.environ.get("SMALL") == "1"
OBS, ACT, HID, ENVS, T = (16, 4, 64, 32, 4) if SMALL else (64, 8, 2048, 2048, 32)
ROUNDS = 34 if SMALL else 60
LEARNER, ACTOR = 0, 1


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(OBS, HID), nn.ReLU(), nn.Linear(HID, HID), nn.ReLU(),
                                  nn.Linear(HID, HID), nn.ReLU())
        self.pi, self.v = nn.Linear(HID, ACT), nn.Linear(HID, 1)

    def forward(self, obs):
        h = self.body(obs)
        return self.pi(h), self.v(h)[..., 0]


class Arena:
    """Point masses pushed around a box; reward for being near the goal, reset on leaving."""
    def __init__(self, dev, fault):
        self.dev, self.fault = dev, fault
        self.pos = torch.zeros(ENVS, OBS, device=dev)
        self.push = torch.randn(ACT, OBS, device=dev) * 0.1

    def step(self, action):
        self.pos += self.push[action] + 0.02 * torch.randn_like(self.pos)
        r = self.pos.square().mean(-1)
        if self.fault == "python_env":
            reward, done = [], []
            for i, d in enumerate(r.tolist()):      # termination and shaping rules, one env at a time
                out = d > 4.0
                bonus = 0.1 if (i + int(d * 100)) % 7 == 0 else 0.0
                reward.append(-1.0 if out else bonus - d)
                done.append(out)
            reward = torch.tensor(reward, device=self.dev)
            done = torch.tensor(done, device=self.dev)
        else:
            done = r > 4.0
            reward = torch.where(done, torch.full_like(r, -1.0), -r)
        self.pos.masked_fill_(done[:, None], 0.0)
        return self.pos, reward, done.float()


@torch.no_grad()
def act(policy, env, dev):
    obs_b = torch.empty(T + 1, ENVS, OBS, device=dev)
    side = torch.empty(4, T, ENVS, device=dev)      # action, log-prob, reward, done
    obs = env.pos
    for t in range(T):
        obs_b[t] = obs
        logits, _ = policy(obs)
        logp = logits.log_softmax(-1)
        a = (logp - torch.log(-torch.log(torch.rand_like(logp).clamp_(1e-6, 1 - 1e-6)))).argmax(-1)
        side[0, t], side[1, t] = a, logp.gather(-1, a[:, None])[:, 0]
        obs, side[2, t], side[3, t] = env.step(a)
    obs_b[T] = obs
    return obs_b, side


def learn(policy, opt, obs, side):
    logits, value = policy(obs[:-1].flatten(0, 1))
    logp = logits.view(T, ENVS, ACT).log_softmax(-1)
    value = value.view(T, ENVS)
    a, old, reward, done = side
    new = logp.gather(-1, a.long()[..., None])[..., 0]
    with torch.no_grad():
        ret = torch.empty_like(reward)
        acc = value[-1].clone()
        for t in reversed(range(T)):
            acc = reward[t] + 0.99 * acc * (1 - done[t])
            ret[t] = acc
        rho = (new - old).exp().clamp(max=1.0)
    loss = -(rho * (ret - value.detach()) * new).mean() + 0.5 * F.mse_loss(value, ret) + 0.01 * (logp.exp() * logp).sum(-1).mean()
    loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=True)
    return loss.detach()


def ship(obs, side, rank, fault, dev):
    """Rollout from actor to learner."""
    if fault == "object_rollout":
        box = [{"obs": obs.cpu(), "side": side.cpu()} if rank == ACTOR else None]
        dist.broadcast_object_list(box, src=ACTOR)
        return box[0]["obs"].to(dev), box[0]["side"].to(dev)
    if rank == ACTOR:
        dist.send(obs, LEARNER)
        dist.send(side, LEARNER)
    else:
        dist.recv(obs, ACTOR)
        dist.recv(side, ACTOR)
    return obs, side


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", choices=["python_env", "object_rollout"])
    fault = ap.parse_args().fault
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dev = torch.device("cuda" if cuda else "cpu")
    torch.set_float32_matmul_precision("high")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    policy = Policy().to(dev)
    weights = torch.cat([p.detach().flatten() for p in policy.parameters()])
    dist.broadcast(weights, LEARNER)
    opt = torch.optim.Adam(policy.parameters(), lr=1e-4, fused=cuda) if rank == LEARNER else None
    env = Arena(dev, fault) if rank == ACTOR else None
    # the learner starts on an empty rollout and is one round behind the actor from then on
    obs, side = torch.zeros(T + 1, ENVS, OBS, device=dev), torch.zeros(4, T, ENVS, device=dev)
    for rnd in range(ROUNDS):
        if rnd == ROUNDS - 30:
            if cuda: torch.cuda.synchronize()
            t0 = time.perf_counter()
        if rank == ACTOR:
            obs, side = act(policy, env, dev)
        else:
            loss = learn(policy, opt, obs, side)
            weights = torch.cat([p.detach().flatten() for p in policy.parameters()])
        dist.broadcast(weights, LEARNER)
        obs, side = ship(obs, side, rank, fault, dev)
        if rank == ACTOR:
            nn.utils.vector_to_parameters(weights, policy.parameters())
        elif rnd % 20 == 19:
            print(f"round {rnd + 1} loss {loss.item():.4f}", flush=True)
    if cuda: torch.cuda.synchronize()
    if rank == 0:
        print(json.dumps({"step_ms": (time.perf_counter() - t0) / 30 * 1e3}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
