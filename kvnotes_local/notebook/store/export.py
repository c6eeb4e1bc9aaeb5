"""A stored chat as Markdown or JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from kvnotes_local.notebook.segment import Kind
from kvnotes_local.notebook.store.records import Chat

_HEADINGS = {
    Kind.SYSTEM: "System",
    Kind.USER: "User",
    Kind.ASSISTANT: "Assistant",
    Kind.SKILL: "Skill",
    Kind.ERRATUM: "Correction",
}


def chat_document(chat: Chat) -> dict[str, Any]:
    """Everything of a chat but its token numbers, for JSON."""
    summary = chat.summary
    return {
        "chat_id": summary.id,
        "title": summary.title,
        "model": summary.model_name,
        "parent": summary.parent,
        "parent_segments": summary.parent_segments,
        "params": asdict(chat.params),
        "segments": [
            {
                "kind": segment.kind.value,
                "name": segment.name,
                "text": segment.text,
                "reasoning": segment.reasoning,
                "tokens": segment.n_tokens,
                "freshness": segment.freshness.value,
                "fields": {span.name: span.value for span in segment.fields},
                "stopped": segment.stopped,
                "proof": asdict(segment.proof) if segment.proof else None,
            }
            for segment in chat.segments
        ],
    }


def chat_json(chat: Chat) -> str:
    return json.dumps(chat_document(chat), ensure_ascii=False, indent=2) + "\n"


def chat_markdown(chat: Chat) -> str:
    """One heading a segment; reasoning is folded."""
    lines = [f"# {chat.summary.title or chat.summary.id}", "", f"Model: {chat.summary.model_name}", ""]
    for segment in chat.segments:
        if not segment.text and not segment.reasoning:
            continue
        name = f": {segment.name}" if segment.name else ""
        lines += [f"## {_HEADINGS[segment.kind]}{name}{' (stopped)' if segment.stopped else ''}", ""]
        if segment.reasoning:
            lines += ["<details><summary>Reasoning</summary>", "", segment.reasoning, "", "</details>", ""]
        lines += [segment.text, ""]
    return "\n".join(lines)
