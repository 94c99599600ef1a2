"""The Muon optimizer: momentum whose step is orthogonalised, for weight matrices.

Every matrix gets an update with all singular values near 1, found by a Newton-Schulz iteration. Matrices of one shape are
orthogonalised in one batch.
"""

import torch

ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # quintic that pulls singular values from (0, 1] to about 1 in five rounds


def orthogonalise(batch):
    """batch [n, rows, columns] → the same shape, singular values near 1."""
    tall = batch.shape[1] > batch.shape[2]
    x = batch.transpose(1, 2) if tall else batch
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.transpose(1, 2)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.transpose(1, 2) if tall else x


class Muon(torch.optim.Optimizer):
    """Parameters are matrices, or stacks of matrices with the stack dimension first."""

    def __init__(self, parameters, lr, momentum=0.95, weight_decay=0.01):
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            by_shape = {}
            for parameter in group["params"]:
                by_shape.setdefault(parameter.shape[-2:], []).append(parameter)
            for shape, parameters in by_shape.items():
                directions = []
                for parameter in parameters:
                    buffer = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                    buffer.lerp_(parameter.grad, 1 - group["momentum"])
                    directions.append(parameter.grad.lerp(buffer, group["momentum"]).view(-1, *shape))
                updates = orthogonalise(torch.cat(directions)).split([len(d) for d in directions])
                size = max(1.0, shape[0] / shape[1]) ** 0.5
                for parameter, update in zip(parameters, updates):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(update.reshape(parameter.shape), alpha=-group["lr"] * size)
