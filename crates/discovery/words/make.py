"""Makes `words.bin`: for each word of `vocabulary.txt`, the words with the nearest meaning. See README.md."""

import struct
from pathlib import Path

import numpy as np

from minilm import Model

HERE = Path(__file__).parent

# Words are related if the cosine of their vectors is at least this.
LEAST_COSINE = 0.5
# Related words of one word.
MOST_RELATED = 48
# Words that are compared with all others at once.
BATCH = 512


def stem(word: str) -> str:
    """The same rules as in `src/stem.rs`. A test compares the two."""
    if len(word) < 4 or not (word.isascii() and word.isalpha() and word.islower()):
        return word

    def undouble(word: str) -> str:
        double = len(word) > 2 and word[-1] == word[-2] and word[-1] not in "lszaeiou"
        return word[:-1] if double else word

    def has_vowel(word: str) -> bool:
        return any(letter in "aeiouy" for letter in word)

    if len(word) > 4 and word.endswith("ies"):
        word = word[:-3] + "y"
    elif word.endswith(("sses", "xes", "ches", "shes")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    if len(word) > 5 and word.endswith("ing") and has_vowel(word[:-3]):
        word = undouble(word[:-3])
    elif len(word) > 4 and word.endswith("ed") and not word.endswith("eed") and has_vowel(word[:-2]):
        word = undouble(word[:-2])
    if len(word) > 4 and word.endswith("e"):
        word = word[:-1]
    return word


def term(word: str) -> int:
    """The same function as `Term::of` in `src/words.rs`."""
    mask = (1 << 64) - 1
    value = 0xCBF29CE484222325
    for byte in word.encode():
        value = ((value ^ byte) * 0x100000001B3) & mask
    value = ((value ^ (value >> 33)) * 0xFF51AFD7ED558CCD) & mask
    return value ^ (value >> 33)


def main() -> None:
    # The first form of a word stands for all, since the file begins with the most frequent words.
    forms: dict[str, str] = {}
    for word in (HERE / "vocabulary.txt").read_text().split():
        forms.setdefault(stem(word), word)
    stems = sorted(forms, key=term)
    vectors = Model().embed([forms[stem_] for stem_ in stems])
    starts, related = [0], bytearray()
    for number in range(len(stems)):
        if number % BATCH == 0:
            cosines = vectors[number : number + BATCH] @ vectors.T
        row = cosines[number % BATCH]
        row[number] = -1
        near = np.flatnonzero(row >= LEAST_COSINE)
        for other in near[np.argsort(-row[near], kind="stable")][:MOST_RELATED]:
            share = (float(row[other]) - LEAST_COSINE) / (1 - LEAST_COSINE)
            related += struct.pack("<HB", other, min(255, round(share * 255)))
        starts.append(len(related) // 3)
    table = b"words\0\0\1" + struct.pack("<I", len(stems))
    table += b"".join(struct.pack("<Q", term(stem_)) for stem_ in stems)
    table += b"".join(struct.pack("<I", start) for start in starts)
    (HERE / "words.bin").write_bytes(table + related)
    print(f"{len(stems)} words, {starts[-1]} related words, {len(table) + len(related)} bytes")


if __name__ == "__main__":
    main()
