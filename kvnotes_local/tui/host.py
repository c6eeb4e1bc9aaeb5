"""The app as its commands and screens see it: work for the workbench, settings, messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from textual.app import App
from textual.signal import Signal

from kvnotes_local.errors import UsageError
from kvnotes_local.notebook.edit import EditLevel
from kvnotes_local.tui.commands import Command, find_command
from kvnotes_local.tui.completion import complete
from kvnotes_local.tui.last_session import LastSession
from kvnotes_local.tui.mailbox import Mailbox
from kvnotes_local.tui.news import Busy, ChatOpened, Failure, LineBegun, ModelReady, News, Notice, SkillsChanged
from kvnotes_local.tui.settings import DEFAULT_THEME, SettingsError, SettingsFile
from kvnotes_local.tui.start import Start, welcome_text
from kvnotes_local.tui.state import SessionState
from kvnotes_local.tui.themes import DAY, NIGHT
from kvnotes_local.tui.widgets.composer import Completion
from kvnotes_local.tui.workbench.desk import ChatDefaults, EngineRequest, FileRequest
from kvnotes_local.tui.workbench.file_requests import ListModels, ListSkills, SaveSession
from kvnotes_local.tui.workbench.model_requests import LoadModel
from kvnotes_local.tui.workbench.workbench import Workbench


class EngineBusy(UsageError):
    """Something has to wait until the engine has done what it does."""


class Host(App[None]):
    """``start``: where things are, what to load, and how. ``commands``: what can be done by name. ``unknown_keys``: which of the
    settings' names of keys name nothing. ``app.KvnotesApp`` adds the screens, which know this class only."""

    def __init__(
        self, start: Start, commands: Sequence[Command[Host]], unknown_keys: Callable[[Collection[str]], Sequence[str]]
    ) -> None:
        super().__init__()
        self.start = start
        self._commands = commands
        self._unknown_keys = unknown_keys
        self.session = SessionState()
        self.news: Signal[News] = Signal(self, "news")
        self.settings_file = SettingsFile(start.places.settings)
        self.settings, self._file_problems = self.settings_file.load()
        self.settings_problems: list[str] = []
        self.params = start.params
        self.draft = start.draft
        self._loading: LoadModel | None = start.first_request()
        self._workbench: Workbench | None = None
        for theme in (NIGHT, DAY):
            self.register_theme(theme)

    # -- the workbench -----------------------------------------------------------------------------------------------------

    @property
    def workbench(self) -> Workbench:
        assert self._workbench is not None, "the app is not running"
        return self._workbench

    def on_mount(self) -> None:
        mailbox = Mailbox(asyncio.get_running_loop(), self._deliver)
        self._workbench = Workbench(self.start.places, mailbox.put, self.start.open_engine)
        self._use_settings()
        self.submit(ListSkills())
        self.submit(ListModels())
        if self._loading is not None:
            self.submit(self._loading)

    def _deliver(self, batch: Sequence[News]) -> None:
        for news in batch:
            self.session = self.session.after(news)
            self.news.publish(news)
            if isinstance(news, (ChatOpened, ModelReady)):
                self.submit(SaveSession(self._last_session()))
            elif isinstance(news, SkillsChanged):
                self.submit(ListSkills(self.session.info))

    def submit(self, request: EngineRequest | FileRequest) -> int:
        """Have something done by the workbench."""
        if isinstance(request, LoadModel):
            self._loading = request
        return self.workbench.submit(request)

    def submit_idle(self, request: EngineRequest) -> int:
        """The same for what needs a chat and makes no sense while the engine works. Raises UsageError then."""
        self.need_idle()
        self.need_chat()
        return self.submit(request)

    def try_idle(self, request: EngineRequest) -> None:
        """The same; what stands in the way is told on the line of messages."""
        self.attempt(lambda: self.submit_idle(request))

    def attempt(self, do: Callable[[], object]) -> bool:
        """Do something; a UsageError is told on the line of messages, and False returned."""
        try:
            do()
        except EngineBusy as error:
            self._deliver([Busy(str(error))])
            return False
        except UsageError as error:
            self.tell(str(error), failed=True)
            return False
        return True

    def need_idle(self) -> None:
        """Raises EngineBusy while the engine works."""
        if self.session.work is not None:
            raise EngineBusy(f"{self.session.work.what} is still under way; Esc stops it.")

    def need_chat(self) -> None:
        """Raises UsageError when no chat is open."""
        if self.session.chat is None:
            raise UsageError("No model is loaded. F5 shows which there are.")

    def tell(self, text: str, *, failed: bool = False) -> None:
        """Say something on the line of messages."""
        self._deliver([Failure("", text) if failed else Notice(text)])

    # -- commands -----------------------------------------------------------------------------------------------------------

    def run_command(self, line: str) -> None:
        """Carry out ``/name arguments``. Raises UsageError."""
        command, rest = find_command(line, self._commands)
        command.run(self, rest)

    def run_line(self, line: str) -> None:
        """The same, with what is wrong told on the line of messages."""
        self.attempt(lambda: self.run_command(line))

    def complete(self, line: str) -> Sequence[Completion]:
        """What a line that begins with a slash may become."""
        return complete(line, self._commands, self.session, list(self.settings.presets))

    def write_in_composer(self, text: str, at: int | None = None) -> None:
        """Begin a line in the composer, for the user to complete at column ``at`` (None: at its end)."""
        self.action_go("chat")
        self._deliver([LineBegun(text, at)])

    # -- what is loaded and copied -----------------------------------------------------------------------------------------

    def copy(self, text: str, what: str) -> None:
        """Put a text into the clipboard, through the terminal."""
        if not text:
            self.tell("There is nothing to copy.", failed=True)
            return
        self.copy_to_clipboard(text)
        self.tell(f"{what} was copied ({len(text):,} characters).")

    def start_model(self) -> None:
        """Load what the first screen offers."""
        request = self.offer()
        if request is not None and self.session.info is None and self.session.work is None:
            self.submit(request)

    def offer(self) -> LoadModel | None:
        """What Enter loads where no model is loaded: the one that was asked for before, else the embedded one."""
        if self._loading is not None:
            return replace(self._loading, chat=self.session.last_chat or self._loading.chat)
        return self.start.embedded_request()

    def welcome(self) -> tuple[str, str | None]:
        """What stands where no chat is yet, and what its button says."""
        return welcome_text(self.session, self.offer(), is_first=self._loading is None)

    # -- settings ----------------------------------------------------------------------------------------------------------

    def change_setting(self, keys: tuple[str, ...], value: str | float | bool) -> None:
        """Set one value, in the file and from now on."""
        try:
            self.settings_file.change(keys, value)
        except SettingsError as error:
            self.tell(str(error), failed=True)
            return
        self.settings, self._file_problems = self.settings_file.load()
        self._use_settings()

    def set_edit_level(self, level: EditLevel) -> None:
        """How far changes of fields go from now on."""
        self.change_setting(("edit_level",), level.value)
        self.tell(f"Edits go as far as: {level.value}.")

    def next_edit_level(self) -> None:
        levels = list(EditLevel)
        self.set_edit_level(levels[(levels.index(self.settings.edit_level) + 1) % len(levels)])

    def _use_settings(self) -> None:
        settings, problems = self.settings, list(self._file_problems)
        if settings.theme in self.available_themes:
            self.theme = settings.theme
        else:
            problems.append(
                f"{self.settings_file.path}: there is no theme {settings.theme!r}; the Settings screen lists them"
            )
            self.theme = DEFAULT_THEME
        problems += [
            f"{self.settings_file.path}: keys.{name} names nothing; the Help screen lists the names"
            for name in self._unknown_keys(settings.keys)
        ]
        self.set_keymap(dict(settings.keys))
        self.workbench.set_defaults(ChatDefaults(settings.sampling, settings.max_tokens))
        self.settings_problems = problems
        if problems:
            self.tell(" ".join(problems), failed=True)
        self.news.publish(News())  # what shows settings shows them anew

    # -- actions -----------------------------------------------------------------------------------------------------------

    def action_go(self, mode: str) -> None:
        if mode in self.MODES and len(self.screen_stack) == 1:
            self.switch_mode(mode)

    def action_stop(self) -> None:
        # Also where the news that work has begun is still under way; nothing is stopped that is asked for later.
        self.workbench.cancel()

    def action_restart_safer(self) -> None:
        """Load the model again with the setting that was offered after the engine died twice, and go on with the chat."""
        self.attempt(self.restart_safer)

    def restart_safer(self) -> None:
        """Raises UsageError where nothing is offered."""
        offer = self.session.safer
        if offer is None:
            raise UsageError("The engine has not died twice, so there is nothing safer to try.")
        self.need_idle()
        chat = self.session.chat
        self.params = offer.params
        open_chat = chat.id if chat is not None and chat.is_stored else self.session.last_chat
        self.submit(LoadModel(offer.path, offer.params, open_chat))

    async def leave(self) -> None:
        """Stop, keep everything, end."""
        self.submit(SaveSession(self._last_session()))
        self.tell("Saving the chat …")
        await asyncio.to_thread(self.workbench.close)
        self.exit()

    def _last_session(self) -> LastSession:
        loading = self._loading
        if loading is None:
            return LastSession(draft=self.draft)
        return LastSession(loading.path, loading.params, self.session.last_chat, self.draft)
