"""How an answer is read, by kind of exercise. A learner's answer is anything at all, so reading it may fail."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .exercise import Question


class Malformed(ValueError):
    """The answer isn't of the asked form; the message says which form is."""


class Kind(Protocol):
    """A kind reads answers and tells the view which form to draw."""

    name: str
    how: str

    def parse(self, answer: Any, question: Question) -> Any:
        """The answer as a plain value. Raises Malformed."""

    def show(self, value: Any) -> str:
        """A plain value in words."""


def is_blank(answer: Any) -> bool:
    """Whether nothing was answered yet: None, ``...``, an empty text or an empty list."""
    return answer is None or answer is Ellipsis or (isinstance(answer, (str, list, tuple)) and len(answer) == 0) or (
        isinstance(answer, str) and not answer.strip(" .…"))


@dataclass(frozen=True)
class Numeric:
    """A whole number of something."""

    unit: str
    name: str = "numeric"

    @property
    def how(self) -> str:
        return f"a whole number of {self.unit}"

    def parse(self, answer: Any, question: Question) -> int:
        """An int from 32, "32", "32 tokens", 32.0 or a numpy number. Raises Malformed."""
        if isinstance(answer, str):
            match = re.fullmatch(rf"\s*([+-]?\d{{1,12}})\s*(?:{re.escape(self.unit)})?\s*", answer)
            if match:
                return int(match[1])
        elif not isinstance(answer, bool):
            try:
                number = operator.index(answer)
            except TypeError:
                number = int(answer) if isinstance(answer, float) and answer.is_integer() else None
            if number is not None and abs(number) < 10**12:
                return number
        raise Malformed(f"The answer is {self.how}, such as 5. This was {_seen(answer)}.")

    def show(self, value: Any) -> str:
        return f"{value} {self.unit}"


@dataclass(frozen=True)
class Order:
    """Block ids in the right order."""

    name: str = "order"
    how: str = "block ids in order, such as [7, 0, 2]"

    def parse(self, answer: Any, question: Question) -> list[int]:
        """A list of ints from [7, 0], (7, 0), "7, 0" or "#7 #0". Raises Malformed."""
        if isinstance(answer, str):
            words = [word for word in re.split(r"[\s,\[\]()]+", answer) if word]
            if not words or not all(re.fullmatch(r"#?\d{1,6}", word) for word in words):
                raise Malformed(f"The answer is {self.how}. This was {_seen(answer)}.")
            return self._known([int(word.removeprefix("#")) for word in words], question)
        if not isinstance(answer, Iterable) or isinstance(answer, (bytes, dict)):
            raise Malformed(f"The answer is {self.how}. This was {_seen(answer)}.")
        ids = []
        for item in answer:
            text = item.strip().removeprefix("#") if isinstance(item, str) else item
            try:
                ids.append(int(text) if isinstance(text, str) else operator.index(text))
            except (TypeError, ValueError):
                raise Malformed(f"The answer is {self.how}. In it was {_seen(item)}.") from None
            if len(ids) > 1000:
                raise Malformed(f"The answer is {self.how}. This one does not end.")
        return self._known(ids, question)

    def _known(self, ids: list[int], question: Question) -> list[int]:
        strange = [i for i in ids if i not in question.items]
        if strange:
            raise Malformed(f"There is no block {_seen(strange[0])} in this pool.")
        twice = [i for i in ids if ids.count(i) > 1]
        if twice:
            raise Malformed(f"Block #{twice[0]} stands in the answer more than once; a block has one place.")
        return ids

    def show(self, value: Any) -> str:
        return " ".join(f"#{i}" for i in value)


@dataclass(frozen=True)
class Choice:
    """One of several options, by its key."""

    name: str = "choice"
    how: str = "the name of one option"

    def parse(self, answer: Any, question: Question) -> str:
        """The key of an option, in any case, or the option's whole text. Raises Malformed."""
        if isinstance(answer, str):
            wanted = answer.strip().strip("[]()").casefold()
            for key, text in question.options:
                if wanted in (key.casefold(), text.casefold()):
                    return key
        keys = ", ".join(key for key, _ in question.options)
        raise Malformed(f"The answer is {self.how}: one of {keys}. This was {_seen(answer)}.")

    def show(self, value: Any) -> str:
        return str(value)


def _seen(answer: Any) -> str:
    """The answer as it came, cut short; its type where it can't be written down."""
    try:
        text = repr(answer)
    except Exception:
        text = f"a {type(answer).__name__}"
    return text if len(text) <= 40 else f"{text[:39]}…"
