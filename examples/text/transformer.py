"""A tiny transformer for characters, and a metric of its predictions per passage."""

from collections.abc import Mapping
from typing import Any

import torch
from alice import CHARACTERS, LENGTH
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from endoscope.runners.metric import BaseMetric
from endoscope.runs.scores import Direction


class Block(nn.Module):
    """Attention to this character and those before it, then a small network for each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.register_buffer("later", torch.ones(LENGTH, LENGTH).triu(1).bool(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        later = self.later[: x.shape[1], : x.shape[1]]
        # The weights are what the debugger looks at, of each head.
        y, _ = self.attention(y, y, y, attn_mask=later, need_weights=True, average_attn_weights=False)
        x = x + y
        y = self.mlp(self.norm2(x))
        return x + y


class Transformer(nn.Module):
    def __init__(self, width: int = 64, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(CHARACTERS), width)
        self.places = nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(CHARACTERS))

    def forward(self, codes: Tensor) -> Tensor:
        """Logits of the next character at each position: (B, L) to (B, L, characters)."""
        x = self.characters(codes) + self.places.weight[: codes.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def next_character_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(outputs.transpose(1, 2), labels)


class NextCharacterMetric(BaseMetric):
    """For each passage the mean loss in nats per character, and the fraction of characters predicted correctly.

    ``perplexity`` is over all passages: among how many equally likely characters the model still wavers.
    """

    DIRECTIONS: Mapping[str, Direction] = {"loss": "lower", "accuracy": "higher"}
    AGGREGATED: Mapping[str, Direction] = {"perplexity": "lower"}

    def __call__(self, datapoint: Mapping[str, Any]) -> dict[str, Tensor]:
        outputs, labels = datapoint["outputs"].detach(), datapoint["labels"]
        return {
            "loss": cross_entropy(outputs.transpose(1, 2), labels, reduction="none").mean(1),
            "accuracy": (outputs.argmax(2) == labels).float().mean(1),
        }

    def aggregate(
        self, scores: Mapping[str, Tensor], evidence: Mapping[str, Tensor], sums: Mapping[str, Tensor]
    ) -> dict[str, float]:
        means = super().aggregate(scores, evidence, sums)
        return {**means, "perplexity": float(scores["loss"].mean().exp())}
