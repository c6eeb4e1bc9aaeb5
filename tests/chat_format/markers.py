"""The markers of a chat template, found without knowing the template: what would be single tokens in the model's vocabulary."""

from __future__ import annotations

import re
from contextlib import suppress

from tests.chat_format.oracle import Message, Oracle, Refused
from tests.zoo.vocabulary_model import MarkedVocabulary

_MARKER = re.compile(
    r"""<[^<>\s'"{}()=]{1,80}>"""  # <|im_start|>, <think>, <turn|>, with DeepSeek's wide bars
    r"|〈\|[A-Z_]+\|〉"
    r"|\[/?(?:gMASK|[A-Z][A-Z_]*)\]"  # [INST], [/SYSTEM_PROMPT]
    r"|\]~!?b[\[\]]|\[e~\["  # MiniMax
)
_BOS = re.compile(
    r"begin[_▁]of[_▁](text|sentence|document)|startoftext|start[_▁]of[_▁]sentence|bos\b|^<s>$|gMASK|〈\|EOS|^\]~!b\[$"
)
_EOS = re.compile(r"end[_▁]of[_▁](text|sentence)|endoftext|eos\b|^</s>$|^\[e~\[$")


def marked_vocabulary(template: str, *, adds_bos: bool = False, merging: bool = False) -> MarkedVocabulary:
    """A vocabulary in which every marker of the template is a token, with a BOS and an EOS that fit the template."""
    texts = [template, *_renderings(Oracle(template, "<s>", "</s>"))]
    markers = tuple(dict.fromkeys(marker for text in texts for marker in _MARKER.findall(text)))
    bos = "<s>" if "bos_token" in template else next(filter(_BOS.search, markers), "<s>")
    eos = "</s>" if "eos_token" in template else next(filter(_EOS.search, markers), "</s>")
    return MarkedVocabulary(markers, bos, eos, adds_bos=adds_bos, merging=merging)


def _renderings(oracle: Oracle) -> list[str]:
    """Texts that show markers which the template puts together, such as ``'<|' + role + '|>'``."""
    system, user, assistant = Message("system", "s"), Message("user", "u"), Message("assistant", "a", "r")
    found = []
    for chat in ((user,), (system, user), (user, assistant, user), (user, assistant), (user, assistant, system, user)):
        for generate in (False, True):
            with suppress(Refused):
                found.append(oracle.render(*chat, generate=generate))
    return found
