"""Makes a model file for `discovery-model`. See README.md.

    make.py FILE          from all-MiniLM-L6-v2
    make.py --tiny FOLDER a random model of a few kilobytes with its results, for the tests
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "discovery" / "words"))
import minilm  # noqa: E402

# Longer texts are cut.
POSITIONS = 64


def rows(matrix: np.ndarray) -> bytes:
    """One byte per number, and a scale for each row."""
    scales = np.maximum(np.abs(matrix).max(1), 1e-9) / 127
    return np.rint(matrix / scales[:, None]).astype(np.int8).tobytes() + floats(scales)


def floats(numbers: np.ndarray) -> bytes:
    return np.ascontiguousarray(numbers, "<f4").tobytes()


def pack(model: minilm.Model, vocabulary: list[str]) -> bytes:
    weights = model.weights
    words = weights["embeddings.word_embeddings.weight"]
    positions = weights["embeddings.position_embeddings.weight"][:POSITIONS]
    positions = positions + weights["embeddings.token_type_embeddings.weight"][0]
    text = "".join(token + "\n" for token in vocabulary).encode()
    inner = len(weights["encoder.layer.0.intermediate.dense.bias"])
    sizes = (*words.shape, model.heads, model.layers, inner, len(positions), len(text))
    packed = b"sentence-model\0\1" + struct.pack("<7I", *sizes) + text + rows(words) + floats(positions)

    def norm(name: str) -> bytes:
        return floats(weights[name + ".weight"]) + floats(weights[name + ".bias"])

    def linear(name: str) -> bytes:
        return rows(weights[name + ".weight"]) + floats(weights[name + ".bias"])

    packed += norm("embeddings.LayerNorm")
    for number in range(model.layers):
        layer = f"encoder.layer.{number}."
        packed += b"".join(linear(f"{layer}attention.self.{part}") for part in ("query", "key", "value"))
        packed += linear(layer + "attention.output.dense") + norm(layer + "attention.output.LayerNorm")
        packed += linear(layer + "intermediate.dense") + linear(layer + "output.dense")
        packed += norm(layer + "output.LayerNorm")
    return packed


def tiny(folder: Path) -> None:
    """The vectors are those of the weights after rounding, so that the tests can compare them exactly."""
    texts = [
        "",
        "Send an e-mail to a person.",
        "Ärger über die Größe, señor!",
        "查询城市的天气",
        "unaffable ünaffable UNAFFABLE  un\taff\u00adable \u200b",
        "qqqqq " + "a" * 101 + " a.b,c(d)“e”…",
        "word " * 200,
        "# $5 + 3 = 8 ~ `x` ^ | <tag>",
    ]
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *("##" + letter for letter in letters if letter != "q")]
    vocabulary += [*"-.,!()#$+=~`^|<>", "“", "”", "…", "天", "气", "send", "mail", "person", "un", "##aff", "##able", "word"]
    model = minilm.Model(vocabulary)
    random = np.random.default_rng(1)
    width, inner = 8, 12
    model.heads, model.layers, model.width = 2, 2, width
    shapes = {"embeddings.word_embeddings.weight": (len(vocabulary), width)}
    shapes |= {"embeddings.position_embeddings.weight": (POSITIONS, width), "embeddings.token_type_embeddings.weight": (2, width)}
    norms = ["embeddings.LayerNorm"]
    for number in range(model.layers):
        layer = f"encoder.layer.{number}."
        norms += [layer + "attention.output.LayerNorm", layer + "output.LayerNorm"]
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            shapes |= {f"{layer}attention.{part}.weight": (width, width), f"{layer}attention.{part}.bias": (width,)}
        shapes |= {layer + "intermediate.dense.weight": (inner, width), layer + "intermediate.dense.bias": (inner,)}
        shapes |= {layer + "output.dense.weight": (width, inner), layer + "output.dense.bias": (width,)}
    for norm in norms:
        shapes |= {norm + ".weight": (width,), norm + ".bias": (width,)}
    model.weights = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    packed = pack(model, vocabulary)
    for name, matrix in model.weights.items():
        if matrix.ndim == 2 and "position" not in name and "token_type" not in name:
            scales = (np.maximum(np.abs(matrix).max(1), 1e-9) / 127).astype(np.float32)[:, None]
            model.weights[name] = np.rint(matrix / scales) * scales
    (folder / "tiny.model").write_bytes(packed)
    results = [
        {"text": text, "tokens": model.tokens([text], POSITIONS)[0], "vector": [round(float(x), 5) for x in model.embed([text], limit=POSITIONS)[0]]}
        for text in texts
    ]
    lines = ",\n".join(json.dumps(result, ensure_ascii=False) for result in results)
    (folder / "tiny.json").write_text(f"[\n{lines}\n]\n")


def main() -> None:
    if sys.argv[1] == "--tiny":
        tiny(Path(sys.argv[2]))
        return
    vocabulary = (minilm.folder() / "vocab.txt").read_text().split("\n")[:-1]
    packed = pack(minilm.Model(), vocabulary)
    Path(sys.argv[1]).write_bytes(packed)
    print(f"{len(packed)} bytes")


if __name__ == "__main__":
    main()
