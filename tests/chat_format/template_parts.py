"""Chat templates put together from parts: the ways in which the templates of real models differ, in any combination."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Bos(Enum):
    """Where BOS is written."""

    NONE = "nowhere"
    FIRST = "first"
    LATER = "behind a line feed"
    EACH_QUESTION = "in front of each question"


class System(Enum):
    """Where a system text goes."""

    TURN = "turn"
    BARE = "between BOS and the first question"
    BEHIND_TEXT = "behind a fixed text, in one turn"
    BEFORE_TEXT = "in front of a fixed text, in one turn"
    BEHIND_BLOCK = "behind a block that is always there"
    BEFORE_BLOCK = "in front of a block that is always there"
    FIRST_QUESTION = "first question"
    LAST_QUESTION = "last question"
    REFUSED = "refused"
    DROPPED = "dropped"


class Default(Enum):
    """What stands in the system turn when no text is given."""

    NONE = "no turn"
    EMPTY = "empty turn"
    FIXED = "fixed text"
    MARKED = "fixed text with a marker in it"
    DATED = "dated text"
    SPACED = "fixed text, closed otherwise than a given one"


class MidChat(Enum):
    """What becomes of a system text between two turns."""

    TURN = "turn"
    OTHER_OPENING = "turn that opens otherwise than the first"
    REFUSED = "refused"
    DROPPED = "dropped"
    MOVED = "moved to the front"


class Closing(Enum):
    """How turns close."""

    ALIKE = "alike"
    LAST_OTHERWISE = "the last answer otherwise"
    LAST_NOT = "the last answer not at all"
    ANSWERS_ONLY = "answers with EOS, questions not"
    INST = "answers with EOS, questions with [/INST]"
    EOS_AT_END = "EOS at the end of a chat that asks for nothing"
    LATE = "by what follows"
    NOTHING = "not at all"


class Trim(Enum):
    """Whose texts lose white space around them."""

    NOBODY = "nobody's"
    ALL = "all"
    QUESTIONS = "questions"
    ANSWERS_LEFT = "answers, on the left"
    SYSTEM_RIGHT = "the system text, on the right"


class Prompt(Enum):
    """The generation prompt beside what opens an earlier answer."""

    ALIKE = "alike"
    NONE = "none, answers open with nothing"
    ALWAYS = "alike, asked for or not"
    SHORTER = "shorter: the model writes the rest of the opening"
    THINKS = "longer: it opens the thoughts"
    THOUGHT = "longer: it closes thoughts that are none"
    OTHER = "other: the history closes thoughts that the prompt opens"


class Reasoning(Enum):
    """What becomes of ``<think>`` in answers."""

    KEPT = "kept"
    STRIPPED = "stripped"
    STRIPPED_EARLIER = "stripped once another question follows"


@dataclass(frozen=True)
class Parts:
    """One way to be a chat template."""

    bos: Bos = Bos.FIRST
    system: System = System.TURN
    default: Default = Default.NONE
    mid_chat: MidChat = MidChat.TURN
    closing: Closing = Closing.ALIKE
    trim: Trim = Trim.NOBODY
    prompt: Prompt = Prompt.ALIKE
    reasoning: Reasoning = Reasoning.KEPT
    alternates: bool = False
    spaced: bool = True
    generation_tag: bool = False
    loops_over_tools: bool = False
    merges_questions: bool = False

    def __str__(self) -> str:
        told = [f"{name}={getattr(value, 'value', value)}" for name, value in vars(self).items()]
        return (
            ", ".join(text for text, default in zip(told, _told_defaults(), strict=True) if text != default) or "ChatML"
        )

    def template(self) -> str:
        """The template as jinja2 text."""
        return "".join([self._tools(), self._rules(), self._head(), self._turns(), self._end()])

    @property
    def _gap(self) -> str:
        return "\\n" if self.spaced else ""

    def _tools(self) -> str:
        return (
            "{% if tools is defined %}{% for tool in tools %}{{ tool }}{% endfor %}{% endif %}"
            if self.loops_over_tools
            else ""
        )

    def _rules(self) -> str:
        """Which messages are taken, and what is known of them before the first is written."""
        refused = "{{ raise_exception('no system texts') }}"
        first = "{% set first = messages[0].role == 'system' %}{% set rest = messages[1:] if first else messages %}"
        if self.system is System.REFUSED:
            first = "{% if messages[0].role == 'system' %}" + refused + "{% endif %}" + first
        mid = ""
        if self.mid_chat is MidChat.REFUSED:
            mid = "{% for m in rest %}{% if m.role == 'system' %}" + refused + "{% endif %}{% endfor %}"
        moved = ""
        if self.mid_chat is MidChat.MOVED:
            moved = "{% for m in rest if m.role == 'system' %}{% set ns.moved = ns.moved + m.content %}{% endfor %}"
        order = ""
        if self.alternates:
            order = (
                "{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
                "{{ raise_exception('turns must alternate') }}{% endif %}{% endfor %}"
            )
        asked = "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
        return "{% set ns = namespace(last=-1, moved='') %}" + first + asked + mid + moved + order

    def _head(self) -> str:
        bos = {Bos.FIRST: "{{ bos_token }}", Bos.LATER: "{{ '\\n' + bos_token }}"}.get(self.bos, "")
        text = "messages[0].content" + (" | trim" if self.trim is Trim.ALL else "")
        if self.trim is Trim.SYSTEM_RIGHT:
            text = "messages[0].content.rstrip()"
        opening, closing = (
            f"'<|system|>{self._gap}'",
            "''" if self.closing is Closing.NOTHING else f"'<|end|>{self._gap}'",
        )
        given = f"{{{{ {opening} + ({text}) + {closing} }}}}"
        default = {
            Default.EMPTY: f"{{{{ {opening} + {closing} }}}}",
            Default.FIXED: f"{{{{ {opening} + 'You help.' + {closing} }}}}",
            Default.MARKED: f"{{{{ {opening} + 'Put <think> first.' + {closing} }}}}",
            Default.DATED: f"{{{{ {opening} + 'Today is ' + strftime_now('%d %b %Y') + {closing} }}}}",
            Default.SPACED: f"{{{{ {opening} + 'You help.<|end|>\\n\\n' }}}}",
        }.get(self.default, "")
        fixed = "'Today is ' + strftime_now('%d %b %Y')" if self.default is Default.DATED else "'Be kind.'"
        block = f"{{{{ '<|developer|>' + {fixed} + '<|end|>' }}}}"
        pick = "{% if first %}" + given + "{% else %}" + default + "{% endif %}"
        written = {
            System.BARE: f"{{% if first %}}{{{{ {text} }}}}{{% endif %}}",
            System.BEHIND_TEXT: f"{{{{ {opening} + {fixed} }}}}{{% if first %}}{{{{ '\\n' + ({text}) }}}}{{% endif %}}"
            f"{{{{ {closing} }}}}",
            System.BEFORE_TEXT: f"{{{{ {opening} }}}}{{% if first %}}{{{{ ({text}) + '\\n' }}}}{{% endif %}}"
            f"{{{{ {fixed} + {closing} }}}}",
            System.BEHIND_BLOCK: block + pick,
            System.BEFORE_BLOCK: pick + block,
            System.TURN: pick,
        }.get(self.system, "" if self.system is not System.DROPPED else default)
        moved = "{{ ns.moved }}" if self.mid_chat is MidChat.MOVED else ""
        return bos + written + moved

    def _turns(self) -> str:
        user = self._question()
        parts = [
            "{% for m in rest %}{% set at = loop.index0 + (1 if first else 0) %}",
            "{% if m.role == 'user' %}",
            user,
            "{% elif m.role == 'assistant' %}",
            self._answer(),
            "{% elif m.role == 'system' %}",
            self._mid_chat(),
            "{% endif %}{% endfor %}",
        ]
        return "".join(parts)

    def _question(self) -> str:
        text = "m.content" + (" | trim" if self.trim in (Trim.ALL, Trim.QUESTIONS) else "")
        bos = "bos_token + " if self.bos is Bos.EACH_QUESTION else ""
        inside = ""
        if self.system is System.FIRST_QUESTION:
            inside = "(messages[0].content + '\\n\\n' if first and loop.first else '') + "
        elif self.system is System.LAST_QUESTION:
            inside = "(messages[0].content + '\\n\\n' if first and at == ns.last else '') + "
        unclosed = self.closing in (Closing.ANSWERS_ONLY, Closing.LATE, Closing.NOTHING)
        closing = "" if unclosed else f" + '<|end|>{self._gap}'"
        if self.closing is Closing.INST:
            closing = " + '[/INST]'"
        opening = f"{bos}'<|user|>{self._gap}'"
        if self.closing is Closing.LATE:
            opening = f"('<|end|>' if not loop.first else '') + {opening}"
        if self.merges_questions:
            opening = f"('\\n\\n' if not loop.first and loop.previtem.role == 'user' else {opening})"
        return "{{ " + f"{opening} + {inside}({text}){closing} " + "}}"

    def _answer(self) -> str:
        text = "m.content"
        if self.reasoning is Reasoning.STRIPPED:
            text = "m.content.split('</think>')[-1].lstrip('\\n')"
        elif self.reasoning is Reasoning.STRIPPED_EARLIER:
            text = "(m.content.split('</think>')[-1].lstrip('\\n') if at < ns.last else m.content)"
        if self.trim is Trim.ALL:
            text = f"({text}) | trim"
        elif self.trim is Trim.ANSWERS_LEFT:
            text = f"({text}).lstrip()"
        closing = f"'<|end|>{self._gap}'"
        if self.closing is Closing.LAST_OTHERWISE:
            closing = f"('<|return|>' if loop.last else {closing})"
        elif self.closing is Closing.LAST_NOT:
            closing = f"('' if loop.last else {closing})"
        elif self.closing in (Closing.ANSWERS_ONLY, Closing.INST):
            closing = "eos_token"
        elif self.closing in (Closing.LATE, Closing.NOTHING):
            closing = "''"
        opening = "''" if self.prompt is Prompt.NONE else f"'{self._opening(history=True)}'"
        body = f"{{{{ ({text}) + {closing} }}}}"
        if self.generation_tag:
            body = "{% generation %}" + body + "{% endgeneration %}"
        late = "{{ '<|end|>' }}" if self.closing is Closing.LATE else ""
        return late + f"{{{{ {opening} }}}}" + body

    def _opening(self, *, history: bool) -> str:
        opening = f"<|assistant|>{self._gap}"
        if self.prompt is Prompt.SHORTER:
            return "<|assistant|><|channel|>final<|message|>" if history else "<|assistant|>"
        if self.prompt is Prompt.OTHER:
            return opening + ("</think>" if history else "<think>")
        if not history:
            return opening + {Prompt.THINKS: "<think>\\n", Prompt.THOUGHT: "<think>\\n\\n</think>\\n\\n"}.get(
                self.prompt, ""
            )
        return opening

    def _mid_chat(self) -> str:
        if self.mid_chat not in (MidChat.TURN, MidChat.OTHER_OPENING):
            return ""
        gap = "\\n\\n" if self.mid_chat is MidChat.OTHER_OPENING else self._gap
        late = "{{ '<|end|>' }}" if self.closing is Closing.LATE else ""
        text = "m.content" + (" | trim" if self.trim is Trim.ALL else "")
        closing = "" if self.closing in (Closing.LATE, Closing.NOTHING) else f" + '<|end|>{self._gap}'"
        return late + f"{{{{ '<|system|>{gap}' + ({text}){closing} }}}}"

    def _end(self) -> str:
        late = "{{ '<|end|>' }}" if self.closing is Closing.LATE else ""
        prompt = "" if self.prompt is Prompt.NONE else f"{{{{ '{self._opening(history=False)}' }}}}"
        if self.prompt is Prompt.ALWAYS:
            return late + prompt
        at_end = "{{ eos_token }}" if self.closing is Closing.EOS_AT_END else ""
        return f"{{% if add_generation_prompt %}}{late}{prompt}{{% else %}}{at_end}{{% endif %}}"


def _told_defaults() -> list[str]:
    return [f"{name}={getattr(value, 'value', value)}" for name, value in vars(Parts()).items()]
