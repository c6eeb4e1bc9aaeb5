"""A loaded model and its vocabulary."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import llama_cpp.llama_cpp as api

from kvnotes_local.contract.protocol import LoadProgress
from kvnotes_local.engine.llama import native
from kvnotes_local.engine.llama.pulse import PULSE
from kvnotes_local.errors import Cancelled, ModelError, UsageError
from kvnotes_local.models.gguf_reader import read_gguf_header
from kvnotes_local.models.parts import model_parts


class LlamaModel:
    """Owner of a ``llama_model *``. Raises ModelError when the file cannot be loaded."""

    def __init__(
        self,
        path: Path,
        *,
        n_gpu_layers: int = -1,
        extra_buffers: bool = True,
        progress: LoadProgress | None = None,
    ) -> None:
        self.path = Path(path)
        self.n_gpu_layers = n_gpu_layers
        self.on_gpu = n_gpu_layers != 0 and native.supports_gpu()
        header = read_gguf_header(self.path)
        parts = model_parts(self.path, header)
        self.header = replace(header, file_bytes=sum(part.stat().st_size for part in parts))
        native.start()
        params = api.llama_model_default_params()
        params.n_gpu_layers = n_gpu_layers
        params.use_extra_bufts = extra_buffers
        cancelled = False

        def on_progress(fraction: float, _: object) -> bool:
            nonlocal cancelled
            PULSE.advance()
            if progress is not None and not progress(fraction):
                cancelled = True
            return not cancelled

        callback = api.llama_progress_callback(on_progress)
        params.progress_callback = callback
        PULSE.model_bytes = self.header.file_bytes
        with native.quiet_stderr(), PULSE.piece("load"):
            self.pointer = api.llama_model_load_from_file(str(self.path).encode(), params)
        if not self.pointer:
            if cancelled:
                raise Cancelled(f"Loading {self.path.name} was cancelled.")
            reason = next(
                (line for line in reversed(native.recent_log()) if "error" in line.lower()), "no reason given"
            )
            raise ModelError(
                f"llama.cpp could not load {self.path}: {reason.strip()}. "
                "Check that the file is complete and that this llama.cpp knows its architecture."
            )
        self.vocab = api.llama_model_get_vocab(self.pointer)
        self._pieces: dict[int, bytes] = {}
        self._space_prefix = self._adds_space_prefix()

    def close(self) -> None:
        """Free the model; contexts made from it must be closed before."""
        if self.pointer:
            api.llama_model_free(self.pointer)
            self.pointer = None

    def metadata(self, key: str) -> str | None:
        """A scalar of the GGUF metadata as text, None where it is missing."""
        size = 1 << 12
        while True:
            buffer = ctypes.create_string_buffer(size)
            n = api.llama_model_meta_val_str(self.pointer, key.encode(), buffer, size)
            if n < 0:
                return None
            if n < size:
                return buffer.value.decode("utf-8", "replace")
            size = n + 1

    @property
    def arch(self) -> str:
        return self.metadata("general.architecture") or "unknown"

    @property
    def description(self) -> str:
        buffer = ctypes.create_string_buffer(256)
        api.llama_model_desc(self.pointer, buffer, 256)
        return buffer.value.decode("utf-8", "replace")

    @property
    def n_ctx_train(self) -> int:
        return int(api.llama_model_n_ctx_train(self.pointer))

    @property
    def n_layer(self) -> int:
        return int(api.llama_model_n_layer(self.pointer))

    @property
    def n_head(self) -> int:
        return int(api.llama_model_n_head(self.pointer))

    @property
    def n_embd(self) -> int:
        return int(api.llama_model_n_embd(self.pointer))

    @property
    def n_swa(self) -> int:
        """Sliding window in tokens, 0 for none."""
        return int(api.llama_model_n_swa(self.pointer))

    @property
    def n_vocab(self) -> int:
        return int(api.llama_vocab_n_tokens(self.vocab))

    @property
    def n_params(self) -> int:
        return int(api.llama_model_n_params(self.pointer))

    @property
    def n_bytes(self) -> int:
        return int(api.llama_model_size(self.pointer))

    @property
    def is_recurrent(self) -> bool:
        return bool(api.llama_model_is_recurrent(self.pointer))

    @property
    def is_hybrid(self) -> bool:
        return bool(api.llama_model_is_hybrid(self.pointer))

    @property
    def is_decoder(self) -> bool:
        return bool(api.llama_model_has_decoder(self.pointer)) and not bool(api.llama_model_has_encoder(self.pointer))

    @property
    def chat_template(self) -> str | None:
        text = api.llama_model_chat_template(self.pointer, None)
        return text.decode("utf-8", "replace") if text else None

    @property
    def bos(self) -> int | None:
        token = int(api.llama_vocab_bos(self.vocab))
        return token if token >= 0 else None

    @property
    def adds_bos(self) -> bool:
        return bool(api.llama_vocab_get_add_bos(self.vocab))

    @property
    def eos(self) -> int | None:
        token = int(api.llama_vocab_eos(self.vocab))
        return token if token >= 0 else None

    def is_end(self, token: int) -> bool:
        """Does this token end a generation?"""
        return bool(api.llama_vocab_is_eog(self.vocab, token))

    def token_text(self, token: int | None) -> str:
        """The vocabulary's own text of a token, as templates use it for BOS and EOS."""
        if token is None:
            return ""
        text = api.llama_vocab_get_text(self.vocab, token)
        return text.decode("utf-8", "replace") if text else ""

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Tokens of ``text`` without BOS; special tokens are recognised only where ``special`` is set."""
        if not text:
            return []
        if not self._space_prefix:
            return self._tokenize(text, special)
        # SentencePiece vocabularies put a space before a text. Turns are made of pieces that follow one another, so it is
        # kept out by tokenizing behind a newline, whose tokens are then cut off.
        guard = self._tokenize("\n", special)
        tokens = self._tokenize("\n" + text, special)
        if tokens[: len(guard)] == guard:
            return tokens[len(guard) :]
        return self._tokenize(text, special)

    def piece(self, token: int) -> bytes:
        """Bytes that a token stands for, special tokens included."""
        if token not in self._pieces:
            size = 64
            while True:
                buffer = ctypes.create_string_buffer(size)
                n = int(api.llama_token_to_piece(self.vocab, token, buffer, size, 0, True))
                if n >= 0:
                    self._pieces[token] = buffer.raw[:n]
                    break
                size = -n
        return self._pieces[token]

    def detokenize(self, tokens: Sequence[int]) -> str:
        return b"".join(self.piece(token) for token in tokens).decode("utf-8", "replace")

    def _tokenize(self, text: str, special: bool) -> list[int]:
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"The text holds half a character (number {error.start + 1:,} of it), so it cannot be read; it has to be UTF-8."
            ) from None
        size = len(data) + 8
        buffer = (api.llama_token * size)()
        n = int(api.llama_tokenize(self.vocab, data, len(data), buffer, size, False, special))
        if n < 0:
            size = -n
            buffer = (api.llama_token * size)()
            n = int(api.llama_tokenize(self.vocab, data, len(data), buffer, size, False, special))
        if n < 0:
            raise ModelError(f"{self.path.name} cannot tokenize a text of {len(text):,} characters.")
        return list(buffer[:n])

    def _adds_space_prefix(self) -> bool:
        a = self._tokenize("a", False)
        return bool(a) and self.piece(a[0]).startswith(b" ")
