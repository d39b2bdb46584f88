"""Skills: instructions that a model reads on demand, with tools that belong to them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Annotated, Any, Self

from chatclient._internal.checks import check_type
from chatclient._internal.extras import needed_by
from chatclient._internal.frozen import EMPTY, freeze_fields
from chatclient.chat.messages import ToolResponseMessage
from chatclient.chat.tool import (
    ACTIVATED_SKILL,
    ToolCallback,
    ToolContext,
    ToolDefinition,
    ToolMetadata,
    ToolRequest,
    ToolResult,
)
from chatclient.errors import ToolError, UsageError
from chatclient.tools.duplicates import without_duplicates
from chatclient.tools.function.callback import FunctionToolCallback
from chatclient.tools.function.parameters import ToolParam
from chatclient.tools.function.signature import own_schema, read_arguments
from chatclient.tools.sources import ToolSource, tool_callbacks

ACTIVATE_SKILL = "activate_skill"
"""The name of the tool that returns the instructions of a skill."""

READ_SKILL_RESOURCE = "read_skill_resource"
"""The name of the tool that returns a file of a skill."""

_FILE = "SKILL.md"
_FENCE = "---"
_BEGINNING = 8192  # bytes that are checked for binary data first
_NOT_RESOURCES = "scripts"  # a folder of programs, which models do not read
_ALWAYS = ToolMetadata(effect="read", always_visible=True)


@dataclass(frozen=True, slots=True)
class Skill:
    """Instructions for one kind of task.

    Attributes:
        name: The name of the skill.
        description: Its purpose, which is always in the prompt.
        instructions: The instructions that the model reads on demand.
        resources: Texts that the instructions refer to, by relative path.
        tools: Tools that are offered after the model has read the instructions: functions,
            objects, callbacks, as for `.tools(...)`.

    Raises:
        UsageError: Name, description or instructions are empty.
    """

    name: str
    description: str
    instructions: str
    resources: Mapping[str, str] = EMPTY
    tools: tuple[ToolSource, ...] = ()

    def __post_init__(self) -> None:
        for field in ("name", "description", "instructions"):
            if not getattr(self, field).strip():
                msg = f"a skill needs a text for its {field}; that of {self.name!r} is empty"
                raise UsageError(msg)
        if self.resources is not EMPTY:
            freeze_fields(self, "resources")

    @classmethod
    def from_folder(cls, folder: str | Path, *, tools: Iterable[ToolSource] = ()) -> Self:
        """Return the skill in a folder.

        The instructions are in `SKILL.md`, with `name` and `description` as YAML between two lines
        of `---` at its top (agentskills.io). Other text files are resources, except those in a
        folder `scripts`, hidden, empty and binary files, and links to files outside of the folder.
        Needs the extra `skills`.

        Args:
            folder: The folder.
            tools: Tools that belong to the skill.

        Raises:
            UsageError: There is no such file, it has no name or description, or the extra is not
                installed.
        """
        folder = Path(folder)
        file = folder / _FILE
        if not file.is_file():
            msg = f"{folder} has no {_FILE}"
            raise UsageError(msg)
        about, instructions = _front_matter(file)
        missing = [key for key in ("name", "description") if not isinstance(about.get(key), str)]
        if missing:
            msg = f"{file} does not say its {' and '.join(missing)} between two lines of ---"
            raise UsageError(msg)
        found: dict[str, str] = {}
        root = folder.resolve()
        for file in sorted(folder.rglob("*")):
            path = file.relative_to(folder)
            inside = file.resolve().is_relative_to(root)
            # Such as .env, or all of .git.
            hidden = any(part.startswith(".") for part in path.parts)
            if path.parts[0] == _NOT_RESOURCES or path == Path(_FILE) or hidden or not inside:
                continue
            if file.is_file() and (text := _text_of(file)):
                found[path.as_posix()] = text
        return cls(about["name"], about["description"], instructions, found, tuple(tools))


class Skills:
    """Offers skills to a model: pass it to `.tools(...)` or `default_tools(...)`.

    Names and descriptions are in the definition of the tool `activate_skill`, which returns the
    instructions; `read_skill_resource` returns resources. The tools of a skill are offered from the
    next round on, as long as the instructions are in the conversation, so there is no state to
    store. A tool search always shows these tools.

    Args:
        *skills: The skills.

    Raises:
        UsageError: There is no skill, one is something else, or two have the same name.
        ToolDefinitionError: A tool of a skill cannot be built.
        DuplicateToolError: Different tools of the skills have the same name.
    """

    dynamic = True

    def __init__(self, *skills: Skill) -> None:
        for skill in skills:
            check_type("a skill", skill, Skill, "pass several one by one")
        self.skills: Mapping[str, Skill] = {skill.name: skill for skill in skills}
        if not skills or len(self.skills) < len(skills):
            names = [skill.name for skill in skills]
            msg = f"there must be at least one skill, and each needs a name of its own: {names}"
            raise UsageError(msg)
        description = (
            "Returns the full instructions for a skill. Call this before following any steps of "
            f"the skill. Skills:\n{self._lines()}"
        )
        always = [
            FunctionToolCallback(
                self._activate, name=ACTIVATE_SKILL, description=description, metadata=_ALWAYS
            )
        ]
        if any(skill.resources for skill in skills):
            always.append(
                FunctionToolCallback(
                    self._read,
                    name=READ_SKILL_RESOURCE,
                    description="Returns a file that the instructions of a skill refer to.",
                    metadata=_ALWAYS,
                )
            )
        self._always: tuple[ToolCallback, ...] = tuple(always)
        # Created once, because caches of serialised tools compare identities.
        self._scoped = {
            skill.name: tuple(map(_SkillTool, tool_callbacks(*skill.tools))) for skill in skills
        }
        scoped = [callback for callbacks in self._scoped.values() for callback in callbacks]
        self.tools_to_come = tuple(without_duplicates([*always, *scoped], "error"))[len(always) :]

    @classmethod
    def from_folder(cls, folder: str | Path) -> Self:
        """Return the skills in those subfolders of *folder* that contain a `SKILL.md`.

        Raises:
            UsageError: There is none, or one is no valid skill; see `Skill.from_folder`.
        """
        files = sorted(Path(folder).glob(f"*/{_FILE}"))
        if not files:
            msg = f"no folder in {folder} has a {_FILE}; one skill is Skill.from_folder(...)"
            raise UsageError(msg)
        return cls(*(Skill.from_folder(file.parent) for file in files))

    @property
    def listing(self) -> str:
        """All names and descriptions as XML, for a system text."""
        skills = "".join(
            f"<skill><name>{escape(skill.name, quote=False)}</name>"
            f"<description>{escape(skill.description, quote=False)}</description></skill>\n"
            for skill in self.skills.values()
        )
        return f"<available_skills>\n{skills}</available_skills>"

    def tool_callbacks(self, request: ToolRequest) -> list[ToolCallback]:
        """Return the tools to offer after the messages of *request*."""
        active = (
            str(response.metadata[ACTIVATED_SKILL])
            for message in request.messages
            if isinstance(message, ToolResponseMessage)
            for response in message.responses
            if ACTIVATED_SKILL in response.metadata
        )
        # The same tool of two skills is offered once.
        scoped = {
            callback.definition.name: callback
            for name in dict.fromkeys(active)
            for callback in self._scoped.get(name, ())
        }
        return [*self._always, *scoped.values()]

    def _activate(
        self, skill_name: Annotated[str, ToolParam(description="The name of the skill")]
    ) -> ToolResult:
        skill = self._named(skill_name)
        text = skill.instructions
        if skill.resources:
            files = "\n".join(f"- {path}" for path in skill.resources)
            text = f"{text}\n\nFiles, to be read with {READ_SKILL_RESOURCE}:\n{files}"
        return ToolResult(text, metadata={ACTIVATED_SKILL: skill.name})

    def _read(
        self,
        skill_name: Annotated[str, ToolParam(description="The name of the skill")],
        relative_path: Annotated[str, ToolParam(description="The file, as the skill writes it")],
    ) -> str:
        resources = self._named(skill_name).resources
        path = relative_path.strip().removeprefix("./")
        if path not in resources:
            known = ", ".join(resources) or "none"
            msg = f"The skill {skill_name!r} has no file {relative_path!r}; it has: {known}"
            raise ToolError(msg)
        return resources[path]

    def _named(self, name: str) -> Skill:
        stripped = name.strip()
        if stripped in self.skills:
            return self.skills[stripped]
        for skill in self.skills.values():
            if skill.name.casefold() == stripped.casefold():
                return skill
        msg = f"There is no skill {name!r}; available: {', '.join(self.skills)}"
        raise ToolError(msg)

    def _lines(self) -> str:
        return "\n".join(f"- {skill.name}: {skill.description}" for skill in self.skills.values())


class _SkillTool:
    """A tool of a skill, which is visible without a tool search."""

    def __init__(self, callback: ToolCallback) -> None:
        self.definition: ToolDefinition = callback.definition
        self.metadata: ToolMetadata = replace(callback.metadata, always_visible=True)
        self.function: Callable[..., Any] | ToolCallback = getattr(callback, "function", callback)
        self.delegate = callback

    @property
    def own_schema(self) -> Mapping[str, Any]:
        return own_schema(self.delegate)

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        return await self.delegate.invoke(arguments, context)

    def read_arguments(self, arguments: str) -> Mapping[str, Any]:
        return read_arguments(self.delegate, arguments)

    def is_same(self, other: object) -> bool:
        own = self.delegate
        twin = other.delegate if isinstance(other, _SkillTool) else other
        return own is twin or (isinstance(own, FunctionToolCallback) and own.is_same(twin))


def _front_matter(file: Path) -> tuple[Mapping[str, Any], str]:
    """Return the metadata at the top of a skill's file, and the rest of the file."""
    with needed_by("a skill in a folder"):
        import yaml  # noqa: PLC0415 - optional
    text = file.read_text(encoding="utf-8-sig")
    lines = text.splitlines(keepends=True)
    ends = [at for at, line in enumerate(lines) if line.strip() == _FENCE]
    if len(ends) < 2 or ends[0] != 0:  # noqa: PLR2004
        return {}, text
    try:
        about = yaml.safe_load("".join(lines[1 : ends[1]]))
    except yaml.YAMLError as error:
        msg = f"{file} has no valid YAML between the lines of ---: {error}"
        raise UsageError(msg) from error
    return about if isinstance(about, dict) else {}, "".join(lines[ends[1] + 1 :]).strip()


def _text_of(file: Path) -> str:
    """Return the text of a file; empty for a binary file."""
    with file.open("rb") as opened:
        if b"\0" in opened.read(_BEGINNING):  # such as a video, without reading all of it
            return ""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        return ""
    return "" if "\0" in text or not text.strip() else text
