"""`Prompt`: a conversation and options, as sent to a model."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Self, Unpack

from chatclient._internal.checks import check_type
from chatclient.chat.messages import (
    Message,
    SystemMessage,
    ToolResponseMessage,
    UserMessage,
    as_messages,
    flat_messages,
    last_user_message,
)
from chatclient.chat.options import NO_OPTIONS, ChatOptions, OptionValues
from chatclient.chat.parts import new_text
from chatclient.errors import UsageError


@dataclass(frozen=True, slots=True, init=False)
class Prompt:
    """A conversation and the options for the model.

    Args:
        messages: The conversation; a text is one user message.
        options: The options.

    Raises:
        WrongTypeError: Something in *messages* is not a message, or *options* is not a ChatOptions.
    """

    messages: tuple[Message, ...]
    options: ChatOptions

    def __init__(
        self, messages: str | Message | Iterable[Message], options: ChatOptions = NO_OPTIONS
    ) -> None:
        if isinstance(messages, str):
            messages = (UserMessage(messages),)
        check_type("options", options, ChatOptions, "write ChatOptions(temperature=0.2)")
        object.__setattr__(self, "messages", as_messages(messages))
        object.__setattr__(self, "options", options)

    @classmethod
    def of(cls, messages: tuple[Message, ...], options: ChatOptions) -> Self:
        """Return a prompt of *messages* without checking their types."""
        prompt = object.__new__(cls)
        object.__setattr__(prompt, "messages", messages)
        object.__setattr__(prompt, "options", options)
        return prompt

    def append(self, *messages: Message | Iterable[Message]) -> Self:
        """Return this prompt with *messages*, single ones or collections, at its end.

        Raises:
            WrongTypeError: One of them is not a message, but a text for example.
        """
        return self.of((*self.messages, *flat_messages(messages)), self.options)

    def with_messages(self, messages: Message | Iterable[Message]) -> Self:
        """Return this prompt with other messages.

        Raises:
            WrongTypeError: One of them is not a message, but a text for example.
        """
        return self.of(as_messages(messages), self.options)

    def with_options(self, options: ChatOptions) -> Self:
        """Return this prompt with all options replaced, including tools; see `mutate_options`."""
        return self.of(self.messages, options)

    def mutate_options(self, **values: Unpack[OptionValues]) -> Self:
        """Return this prompt with the given options replaced; tools and other options are kept.

        Raises:
            UsageError: There is no such option.
        """
        return self.of(self.messages, self.options.mutate(**values))

    @property
    def contents(self) -> str:
        """The texts of all messages, joined with line breaks."""
        return "\n".join(message.text for message in self.messages if message.text)

    @property
    def system_message(self) -> SystemMessage | None:
        """The first system message, or None."""
        return next((m for m in self.messages if isinstance(m, SystemMessage)), None)

    @property
    def user_message(self) -> UserMessage | None:
        """The last user message, or None."""
        return last_user_message(self.messages)

    @property
    def last_user_or_tool_response_message(self) -> UserMessage | ToolResponseMessage | None:
        """The last message of these two types, or None."""
        for message in reversed(self.messages):
            if isinstance(message, UserMessage | ToolResponseMessage):
                return message
        return None

    def augment_system_message(self, change: str | Callable[[str], str]) -> Self:
        """Return this prompt with another text in its first system message, or with a new one.

        Args:
            change: The new text, or a function of the old text (empty without a system message).

        Raises:
            WrongTypeError: The new text is not a text, but None for example.
        """
        for at, message in enumerate(self.messages):
            if isinstance(message, SystemMessage):
                return self._with(at, message.mutate(text=new_text(change, message.text)))
        return self.of((SystemMessage(new_text(change, "")), *self.messages), self.options)

    def augment_user_message(self, change: str | Callable[[str], str]) -> Self:
        """Return this prompt with another text in its last user message.

        Args:
            change: The new text, or a function of the old text.

        Raises:
            UsageError: There is no user message, or the new text is not a text.
        """
        for at in reversed(range(len(self.messages))):
            message = self.messages[at]
            if isinstance(message, UserMessage):
                return self._with(at, message.mutate(text=new_text(change, message.text)))
        msg = "the prompt has no user message to change"
        raise UsageError(msg)

    def _with(self, at: int, message: Message) -> Self:
        before, after = self.messages[:at], self.messages[at + 1 :]
        return self.of((*before, message, *after), self.options)


def as_prompt(prompt: str | Message | Iterable[Message] | Prompt) -> Prompt:
    """Return *prompt* as a `Prompt`.

    Raises:
        UsageError: It has no messages, or only a blank one.
        WrongTypeError: Something in it is not a message.
    """
    if not isinstance(prompt, Prompt):
        prompt = Prompt(prompt)
    if not prompt.messages or (len(prompt.messages) == 1 and is_blank(prompt.messages[0])):
        msg = "the prompt is blank: give it a text or messages"
        raise UsageError(msg)
    return prompt


def is_blank(message: Message) -> bool:
    """Return whether *message* is a user message without text and media."""
    return (
        isinstance(message, UserMessage)
        and not message.text.strip()
        and all(isinstance(part, str) for part in message.parts)
    )


def with_default_options(prompt: Prompt, defaults: ChatOptions) -> Prompt:
    """Return *prompt* with *defaults* for the options that it does not set."""
    return prompt.with_options(defaults.merge(prompt.options))
