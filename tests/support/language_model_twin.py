"""Training of a small language model by the formulas of texts, in float64 NumPy and without pyattn.

`nn.TransformerLM` after each part a norm, with relu and sines, without dropout; AdamW, clipping and a cosine.
"""

from __future__ import annotations

import numpy as np


class Twin:
    """Parameters by their names in a state_dict; each part returns its output and the way back through it."""

    def __init__(self, parameters, heads):
        self.parameters = {name: np.array(x, np.float64) for name, x in parameters.items()}
        self.heads = heads
        self.layers = 1 + max(int(name.split(".")[2]) for name in parameters if name.startswith("encoder.layers."))
        self.moments = {name: (np.zeros_like(x), np.zeros_like(x)) for name, x in self.parameters.items()}
        self.steps = 0

    def linear(self, x, weight, bias):
        w = self.parameters[weight]

        def back(grad):
            self.grads[weight] = (grad.swapaxes(1, 2) @ x).sum(0)
            self.grads[bias] = grad.sum((0, 1))
            return grad @ w

        return x @ w.T + self.parameters[bias], back

    def norm(self, x, name):
        weight = self.parameters[f"{name}.weight"]
        deviation = np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        normalised = (x - x.mean(-1, keepdims=True)) / deviation

        def back(grad):
            self.grads[f"{name}.weight"] = (grad * normalised).sum((0, 1))
            self.grads[f"{name}.bias"] = grad.sum((0, 1))
            grad = grad * weight
            projected = normalised * (grad * normalised).mean(-1, keepdims=True)
            return (grad - grad.mean(-1, keepdims=True) - projected) / deviation

        return normalised * weight + self.parameters[f"{name}.bias"], back

    def attention(self, x, name):
        count, length, width = x.shape
        projected, back_in = self.linear(x, f"{name}.in_proj_weight", f"{name}.in_proj_bias")
        q, k, v = projected.reshape(count, length, 3, self.heads, -1).transpose(2, 0, 3, 1, 4)
        scale = (width / self.heads) ** -0.5
        scores = np.where(np.tri(length, dtype=bool), scale * q @ k.swapaxes(-1, -2), -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        joined = (weights @ v).swapaxes(1, 2).reshape(x.shape)
        output, back_out = self.linear(joined, f"{name}.out_proj.weight", f"{name}.out_proj.bias")

        def back(grad):
            grad = back_out(grad).reshape(count, length, self.heads, -1).swapaxes(1, 2)
            grad_weights = grad @ v.swapaxes(-1, -2)
            grad_scores = weights * (grad_weights - (weights * grad_weights).sum(-1, keepdims=True)) * scale
            parts = grad_scores @ k, grad_scores.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ grad
            return back_in(np.stack(parts).transpose(1, 3, 0, 2, 4).reshape(count, length, 3 * width))

        return output, back

    def feed_forward(self, x, name):
        hidden, back_1 = self.linear(x, f"{name}.linear1.weight", f"{name}.linear1.bias")
        output, back_2 = self.linear(np.maximum(hidden, 0), f"{name}.linear2.weight", f"{name}.linear2.bias")
        return output, lambda grad: back_1(back_2(grad) * (hidden > 0))

    def forward(self, ids):
        """Return logits, and the way back, which leaves the gradients in `grads`."""
        self.grads, ways = {}, []
        table = self.parameters["embedding.weight"]
        width = table.shape[1]
        angles = np.arange(ids.shape[1])[:, None] / 10000 ** (np.arange(0, width, 2) / width)
        x = table[ids] * width**0.5 + np.stack([np.sin(angles), np.cos(angles)], -1).reshape(-1, width)
        for n in range(self.layers):
            name = f"encoder.layers.{n}"
            parts = (self.attention, f"{name}.self_attn"), (self.feed_forward, name)
            for number, (part, part_name) in enumerate(parts, 1):
                y, back_part = part(x, part_name)
                x, back_norm = self.norm(x + y, f"{name}.norm{number}")
                ways.append((back_part, back_norm))
        logits, back_generator = self.linear(x, "generator.weight", "generator.bias")

        def back(grad):
            grad = back_generator(grad)
            for back_part, back_norm in reversed(ways):
                grad = back_norm(grad)
                grad = grad + back_part(grad)
            total = np.zeros_like(table)
            np.add.at(total, ids, grad * width**0.5)
            self.grads["embedding.weight"] = total

        return logits, back

    @staticmethod
    def cross_entropy(logits, target, ignored=-100):
        """Return the mean loss of the ids that count, and its gradient."""
        counted = target != ignored
        ids = np.where(counted, target, 0)[..., None]
        shifted = logits - logits.max(-1, keepdims=True)
        logs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        loss = -np.take_along_axis(logs, ids, -1)[..., 0][counted].mean()
        grad = np.exp(logs)
        np.put_along_axis(grad, ids, np.take_along_axis(grad, ids, -1) - 1, -1)
        return loss, grad * counted[..., None] / counted.sum()

    def clip(self, most):
        """Return the norm of all gradients before they are scaled to at most this."""
        norm = np.sqrt(sum((grad**2).sum() for grad in self.grads.values()))
        self.grads = {name: grad * min(1, most / (norm + 1e-6)) for name, grad in self.grads.items()}
        return norm

    def adamw(self, lr, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01):
        self.steps += 1
        for name, grad in self.grads.items():
            first, second = self.moments[name]
            first[...] = beta1 * first + (1 - beta1) * grad
            second[...] = beta2 * second + (1 - beta2) * grad**2
            root = np.sqrt(second / (1 - beta2**self.steps)) + eps
            parameter = self.parameters[name]
            parameter *= 1 - lr * weight_decay
            parameter -= lr / (1 - beta1**self.steps) * first / root


def cosine_rate(n, peak, warmup, total):
    """Return the learning rate of step n = 0, 1, 2 ..."""
    return peak * (n / warmup if n < warmup else (1 + np.cos(np.pi * (n - warmup) / (total - warmup))) / 2)
