"""Optimizers of a user's own."""

import torch


class ByHand(torch.optim.Optimizer):
    """Calls `update(p, state, group)` for each parameter; `state` has a mean of zeros and a `step`, counted from `first`."""

    def first(self):
        return 0

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"], state["mean"] = self.first(), torch.zeros_like(p)
                state["step"] += 1
                self.update(p, state, group)
