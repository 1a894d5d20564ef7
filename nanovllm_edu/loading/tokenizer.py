"""Text to token ids and back, and the chat template.

Driven by the `tokenizers` package and jinja2 alone: importing transformers would double the time of a start. Only a
folder without `tokenizer.json` goes through transformers.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ModelLoadError, RequestError

_TEMPLATE_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
REPLACEMENT = "\ufffd"  # what bytes decode to that are not (yet) a whole UTF-8 character


class Tokenizer:
    """The tokenizer of a checkpoint folder. Raises ModelLoadError when the folder has none."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._fast = _load(self.folder)
        self._config = _json(self.folder / "tokenizer_config.json")
        self._template: Any = None
        self.vocab_size: int = self._fast.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; with the model's own start token, if it has one and `add_special_tokens`."""
        return self._fast.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids. Bytes that are no whole UTF-8 character become U+FFFD."""
        return self._fast.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def token_id(self, token: str) -> int | None:
        """Id of a token given by its exact string, or None."""
        return self._fast.token_to_id(token)

    @property
    def eos_token_id(self) -> int | None:
        """Id of the end-of-sequence token that tokenizer_config.json names, or None."""
        token = _token_text(self._config.get("eos_token"))
        return None if token is None else self.token_id(token)

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True,
                            **variables: Any) -> list[int]:
        """Token ids of a conversation, ready for the model's answer.

        messages: dicts with 'role' and 'content'. variables: passed to the template (such as enable_thinking).
        Raises RequestError when the messages are malformed, or the model has no chat template.
        """
        text = self.render_chat(messages, add_generation_prompt, **variables)
        return self.encode(text, add_special_tokens=False)  # the template writes the special tokens itself

    def render_chat(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True,
                    **variables: Any) -> str:
        """The text that the chat template makes of a conversation. Raises RequestError, as `apply_chat_template`."""
        messages = check_messages(messages)
        special = {key: _token_text(self._config.get(key)) for key in _TEMPLATE_TOKENS}
        from jinja2 import TemplateError

        try:
            return self._compiled_template().render(
                messages=messages, add_generation_prompt=add_generation_prompt,
                **{key: value for key, value in special.items() if value is not None}, **variables)
        except TemplateError as error:
            raise RequestError(f"the model's chat template refuses the conversation: {error}") from error

    def _compiled_template(self) -> Any:
        if self._template is None:
            self._template = _environment().from_string(self._template_source())
        return self._template

    def _template_source(self) -> str:
        file = self.folder / "chat_template.jinja"
        if file.is_file():
            return file.read_text("utf-8")
        source = self._config.get("chat_template")
        if isinstance(source, list):  # several named templates
            source = next((item["template"] for item in source if item.get("name") == "default"), None)
        if not isinstance(source, str):
            raise RequestError("this model has no chat template (a base model?): use generate(prompt) instead of chat")
        return source


class Detokenizer:
    """Turns tokens into text as they come, never splitting a character.

    A token may hold part of a UTF-8 character, and a token's text may depend on its neighbour. So a small window of
    tokens is decoded with and without the newest ones; their difference is new text, held back while it ends in an
    incomplete character. The idea is the one of text-generation-inference's `decode_token`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._start = 0  # first token of the window
        self._shown = 0  # tokens before this have been turned into text
        self.text = ""

    def push(self, token_ids: Iterable[int]) -> str:
        """Add tokens; return the text that became certain ('' when none did)."""
        self._ids.extend(token_ids)
        return self._advance(final=False)

    def finish(self) -> str:
        """Return what was held back."""
        return self._advance(final=True)

    def _advance(self, final: bool) -> str:
        before = self._tokenizer.decode(self._ids[self._start:self._shown])
        after = self._tokenizer.decode(self._ids[self._start:])
        if len(after) <= len(before) or (after.endswith(REPLACEMENT) and not final):
            return ""
        self._start, self._shown = self._shown, len(self._ids)
        piece = after[len(before):]
        self.text += piece
        return piece


def check_messages(messages: Any) -> list[Mapping[str, Any]]:
    """The conversation as a list. Raises RequestError, naming the message and what is wrong with it."""
    example = "[{'role': 'user', 'content': 'Hello'}]"
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Iterable):
        raise RequestError(f"a conversation is a list of messages such as {example}, not {type(messages).__name__}")
    messages = list(messages)
    if not messages:
        raise RequestError(f"the conversation is empty: give at least one message, such as {example}")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
            raise RequestError(f"message {i} is {message!r}: it must have 'role' and 'content', as in {example}")
    return messages


def _load(folder: Path) -> Any:
    from tokenizers import Tokenizer as FastTokenizer

    file = folder / "tokenizer.json"
    if file.is_file():
        try:
            return FastTokenizer.from_file(str(file))
        except Exception as error:  # the package raises bare Exceptions
            raise ModelLoadError(f"{file} is damaged ({error}); fetch the checkpoint again") from error
    try:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(folder).backend_tokenizer
    except Exception as error:  # transformers raises many kinds
        raise ModelLoadError(f"{folder} holds no tokenizer.json, and transformers cannot make one: {error}") from error


def _environment() -> Any:
    """Chat templates expect these settings and functions; transformers' `chat_template_utils` documents them."""
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment


def _token_text(token: Any) -> str | None:
    return token.get("content") if isinstance(token, dict) else token


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise ModelLoadError(f"{path} is not valid JSON ({error})") from error
    return value if isinstance(value, dict) else {}
