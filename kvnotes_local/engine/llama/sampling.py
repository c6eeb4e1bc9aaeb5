"""llama.cpp's sampler chain for a set of parameters."""

from __future__ import annotations

import ctypes
from types import TracebackType

import llama_cpp.llama_cpp as api

from kvnotes_local.contract.generation import Sampling
from kvnotes_local.engine.llama.context import LlamaContext
from kvnotes_local.errors import EngineError


class SamplerChain:
    """Owner of a ``llama_sampler *`` chain: penalties, grammar, then greedy or top-k, top-p, min-p, temperature, draw."""

    def __init__(self, context: LlamaContext, sampling: Sampling) -> None:
        self._context = context
        self.pointer = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
        if sampling.repeat_penalty != 1.0:
            self._add(api.llama_sampler_init_penalties(sampling.repeat_last_n, sampling.repeat_penalty, 0.0, 0.0))
        if sampling.grammar:
            grammar = api.llama_sampler_init_grammar(context.model.vocab, sampling.grammar.encode(), b"root")
            if not grammar:
                self.close()
                raise EngineError("The grammar is not valid GBNF with a rule named root.")
            self._add(grammar)
        if sampling.temperature <= 0:
            self._add(api.llama_sampler_init_greedy())
        else:
            self._add(api.llama_sampler_init_top_k(sampling.top_k))
            self._add(api.llama_sampler_init_top_p(sampling.top_p, 1))
            self._add(api.llama_sampler_init_min_p(sampling.min_p, 1))
            self._add(api.llama_sampler_init_temp(sampling.temperature))
            self._add(api.llama_sampler_init_dist(sampling.seed & 0xFFFFFFFF))

    def sample(self) -> int:
        """Draw a token from the logits of the last decoded token and accept it. Raises EngineError where there are none."""
        self._context.require_logits()
        return int(api.llama_sampler_sample(self.pointer, self._context.pointer, -1))

    def close(self) -> None:
        if self.pointer:
            api.llama_sampler_free(self.pointer)
            self.pointer = None

    def __enter__(self) -> SamplerChain:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _add(self, sampler: ctypes.c_void_p) -> None:
        api.llama_sampler_chain_add(self.pointer, sampler)
