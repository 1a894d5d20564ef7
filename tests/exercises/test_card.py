"""The form: shows what the desk says, obeys messages, never loses an error, and is safe with any text."""

from __future__ import annotations

import html
from html.parser import HTMLParser

import pytest

from nanovllm_edu.exercises import CATALOGUE, exercise
from nanovllm_edu.exercises.grading import Result


@pytest.fixture(params=list(CATALOGUE))
def card(request):
    made = exercise(request.param).widget()
    yield made
    made.close()


def say(card, **message):
    card._on_message(card, message, [])
    return card.view


def test_it_starts_with_the_question_and_no_verdict(card):
    view = card.view
    assert view["paragraphs"] == list(card.desk.question.paragraphs)
    assert view["lines"] == [] and view["hints"] == [] and view["hints_left"] == 3
    assert not view["solved"] and not view["may_reveal"]


def test_check_hint_reveal_reset(card):
    right = card.desk.exercise.answer(card.desk.params)
    empty = say(card, action="check", answer="")
    assert empty["outcome"] == "not_attempted"
    wrong = say(card, action="check", answer=next(iter(
        answers[0] for answers in _wrong(card.desk).values())))
    assert wrong["outcome"] == "wrong" and wrong["attempts"] == 1
    hinted = say(card, action="hint")
    assert hinted["hints"] == [card.desk.exercise.hints[0]]
    assert hinted["lines"] == wrong["lines"], "a hint leaves the verdict where it is"
    solved = say(card, action="check", answer=right)
    assert solved["outcome"] == "correct" and solved["solved"] and solved["may_reveal"]
    assert "The answer:" in say(card, action="reveal")["lines"][0]
    anew = say(card, action="reset")
    assert anew["key"] != solved["key"] and not anew["solved"] and anew["answer"] is None
    serials = [view["serial"] for view in (empty, wrong, hinted, solved, anew)]
    assert serials == sorted(set(serials))


def _wrong(desk):
    from nanovllm_edu.exercises.exercise import wrong_answers

    return wrong_answers(desk.exercise, desk.params)


def test_after_a_restart_the_form_shows_the_last_answer_and_its_verdict(card):
    right = card.desk.exercise.answer(card.desk.params)
    before = say(card, action="check", answer=right)
    again = exercise(card.desk.exercise.id).widget()
    assert again.view["answer"] == right
    assert (again.view["outcome"], again.view["lines"]) == ("correct", before["lines"])
    again.close()


@pytest.mark.parametrize("message", [{}, {"action": "nonsense"}, None, "text"])
def test_an_unknown_message_is_shown_and_not_raised(card, message):
    card._on_message(card, message, [])
    assert card.view["outcome"] == "crashed" and card.view["lines"]


def test_an_error_lands_in_the_form(card, monkeypatch):
    monkeypatch.setattr(card.desk, "check", lambda answer: 1 / 0)
    assert "ZeroDivisionError" in say(card, action="check", answer="1")["lines"][0]


def test_nothing_is_printed(card, capsys):
    say(card, action="check", answer=object())
    say(card, action="hint")
    assert capsys.readouterr() == ("", "")


class Balanced(HTMLParser):
    VOID = {"br", "hr", "img", "input"}

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_without_a_kernel_there_is_still_the_question(card):
    data, _ = card._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    for paragraph in card.desk.question.paragraphs:
        assert html.escape(paragraph) in data["text/html"] and paragraph in data["text/plain"]
    parser = Balanced()
    parser.feed(data["text/html"])
    assert parser.open == []


def test_a_verdict_in_a_cell_is_escaped_and_has_text():
    result = Result("wrong", "<img src=x onerror=alert(1)>", notice="<b>")
    assert "<img" not in result._repr_html_() and "<b>" not in result._repr_html_()
    assert "<img" in str(result) and repr(result) == str(result)
