"""A byte-level SentencePiece vocabulary with ChatML turns, so that any text can be tokenized by a random model."""

from __future__ import annotations

from dataclasses import dataclass

_UNKNOWN, _NORMAL, _CONTROL, _BYTE = 2, 1, 3, 6

CHATML_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Vocabulary:
    """Token texts, SentencePiece scores and token types, index by token id."""

    tokens: tuple[str, ...]
    scores: tuple[float, ...]
    types: tuple[int, ...]

    def id_of(self, token: str) -> int:
        return self.tokens.index(token)


def byte_vocabulary() -> Vocabulary:
    """``<unk> <s> </s>``, 256 bytes, the printable ASCII characters and blank, and the ChatML control tokens."""
    entries = [("<unk>", 0.0, _UNKNOWN), ("<s>", 0.0, _CONTROL), ("</s>", 0.0, _CONTROL)]
    entries += [(f"<0x{byte:02X}>", -1000.0, _BYTE) for byte in range(256)]
    # Characters of their own: byte tokens alone would turn the blank into three bytes and print it as U+2581.
    entries += [(char, -float(rank), _NORMAL) for rank, char in enumerate(["\u2581", *map(chr, range(0x21, 0x7F))])]
    entries += [(word, 0.0, _CONTROL) for word in ("<|im_start|>", "<|im_end|>", "<|pad|>", "<|endoftext|>")]
    tokens, scores, types = zip(*entries, strict=True)
    return Vocabulary(tokens, scores, types)
