"""The live check: nothing to report where all rows are right, and the place where they are not."""

from __future__ import annotations

import pytest

from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.errors import UsageError
from kvnotes_local.evaluation.live_check import check_chat, live_answers
from kvnotes_local.notebook.edit import EditLevel
from kvnotes_local.notebook.notebook import Notebook
from kvnotes_local.notebook.segment import Kind
from tests.conftest import MakeEngine

SYSTEM = "The lamp is {{color|green}}. It hangs in the hall, and everybody likes it."


@pytest.fixture
def engines(tiny_engine: MakeEngine) -> tuple[LlamaEngine, LlamaEngine]:
    return tiny_engine("llama"), tiny_engine("llama")


def test_a_chat_that_was_read_shows_no_difference(engines: tuple[LlamaEngine, LlamaEngine]) -> None:
    live, spare = engines
    notebook = Notebook(live, system=SYSTEM)
    notebook.ask("What color?", max_tokens=8)
    notebook.ask("And now?", max_tokens=8)
    check = check_chat(notebook.segments, live_answers(notebook), spare)
    assert check.differences == ()
    assert check.n_changed == 0
    assert check.n_positions == sum(
        one.content_stop - one.content_start for one in notebook.segments if one.kind is Kind.ASSISTANT
    )
    assert check.kl_mean < 1e-6
    assert spare.new_sequence() == 0  # the sequence was given back


def test_answers_on_stale_rows_are_compared_with_the_chat_as_it_reads_now(
    engines: tuple[LlamaEngine, LlamaEngine],
) -> None:
    live, spare = engines
    notebook = Notebook(live, system=SYSTEM)
    notebook.read()
    notebook.set("color", "dark violet and red", level=EditLevel.FIELD)
    notebook.ask("What color?", max_tokens=8)
    stale = check_chat(notebook.segments, live_answers(notebook), spare)
    assert stale.kl_mean > 1e-4
    assert stale.n_changed > 0

    afresh = Notebook(live, system=SYSTEM, values={"color": "dark violet and red"})
    afresh.ask("What color?", max_tokens=8)
    assert check_chat(afresh.segments, live_answers(afresh), spare).kl_mean < 1e-6


def test_an_erratum_is_left_out_of_what_is_read(engines: tuple[LlamaEngine, LlamaEngine]) -> None:
    live, spare = engines
    notebook = Notebook(live, system=SYSTEM)
    notebook.read()
    notebook.set("color", "red", level=EditLevel.FIELD_ERRATUM)
    notebook.ask("What color?", max_tokens=8)
    check = check_chat(notebook.segments, live_answers(notebook, last=1), spare)
    assert len(check.answers) == 1
    assert all(notebook.segments[one.segment].kind is Kind.ASSISTANT for one in check.differences)


def test_a_chat_without_answers_has_nothing_to_compare(tiny_engine: MakeEngine) -> None:
    notebook = Notebook(tiny_engine("llama"))
    notebook.say("Hello", "Hello")
    with pytest.raises(UsageError, match="no answer"):
        live_answers(notebook)
