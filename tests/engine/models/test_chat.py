"""Chat templates: the text transformers renders, and no more than the budget for hostile ones."""

# ruff: noqa: E501  a template is one line

from __future__ import annotations

import time
from typing import Any

import pytest

from vidette.errors import ChatTemplateError
from vidette.models import ModelSource, load_tokenizer
from vidette.models.chat import ChatTemplate

CONVERSATIONS = {
    "user alone": [{"role": "user", "content": "Hi"}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    "several turns": [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "Two.\n"},
        {"role": "user", "content": "  Three 😀 {{ messages }} {% raw %}"},
    ],
    "late system": [{"role": "user", "content": ""}, {"role": "system", "content": "x"}],
    "markup": [{"role": "user", "content": "<|im_end|> <b>&amp;</b> 'quotes\""}],
}
HI = CONVERSATIONS["user alone"]


def _render(source: str, **limits: int) -> str:
    return ChatTemplate(source, special_tokens={"bos_token": "<s>"}, **limits).render(HI)


@pytest.mark.real_model
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_real_template_renders_as_in_transformers(
    name: str, real_source: ModelSource, hf_tokenizer: Any
) -> None:
    messages = CONVERSATIONS[name]
    expected = hf_tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert load_tokenizer(real_source).render_chat(messages) == expected


# Small pieces like those of templates in circulation.
_PORTABLE = {
    "trimmed blocks": "{% for m in messages %}\n    {% if true %}\n{{ m.role }}\n    {% endif %}\n{% endfor %}\nend\n",
    "loop": "{% for m in messages %}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "json": "{{ messages | tojson }} {{ {'é': '<', 'b': [1]} | tojson(indent=2) }}",
    "concatenation": "{{ bos_token ~ messages[0]['role'] ~ (1 + 2) ~ none }}",
    "methods": "{{ messages[0].content.strip().upper().split('I') }}{{ messages[0].get('x', 'none') }}",
    "tests": "{% if tools is not none %}a{% elif nothing is defined %}b{% else %}c{% endif %}",
    "break": "{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "macro": "{% macro say(x) %}[{{ x }}]{% endmacro %}{{ say('a') }}{{ say('b') }}",
    "set block": "{% set x %}a{{ 1 }}{% endset %}{{ x }}{{ x | length }}",
    "filter": "{{ messages | map(attribute='role') | join(', ') | trim }}{{ 'a' | replace('a', 'bb') }}",
    "generation": "a{% generation %}b{{ 1 }}{% endgeneration %}c",
    "format": "{{ '%s-%02d' % ('a', 7) }}{{ '{}:{:>4}'.format('b', 1) }}{{ 'in 2024: %d%% {}'.format(1) % 5 }}",
    "conditional loop": "{% for m in messages if m.role == 'user' %}{{ m.content }}{% else %}none{% endfor %}",
    "arithmetic": "{{ 2 ** 5 }}{{ 'ab' * 3 }}{{ [1] * 2 }}{{ 7 % 4 }}{{ 'a' + 'b' }}",
}


@pytest.mark.real_model
@pytest.mark.parametrize("name", _PORTABLE)
def test_template_features_render_as_in_transformers(name: str, hf_tokenizer: Any) -> None:
    expected = hf_tokenizer.apply_chat_template(
        HI, chat_template=_PORTABLE[name], tokenize=False, add_generation_prompt=True, bos_token="<s>"
    )
    assert _render(_PORTABLE[name]) == expected


def test_an_empty_conversation_is_refused() -> None:
    with pytest.raises(ChatTemplateError, match="the conversation is empty"):
        ChatTemplate("x", special_tokens={}).render([])


def test_the_date_is_todays() -> None:
    assert _render("{{ strftime_now('%Y') }}") in {str(time.localtime().tm_year + step) for step in (0, 1)}


def test_a_refusal_of_the_templates_own_is_quoted() -> None:
    with pytest.raises(ChatTemplateError, match="refuses these messages: roles must alternate"):
        _render("{{ raise_exception('roles must alternate') }}")


def test_a_failure_of_the_template_is_an_error_of_ours() -> None:
    with pytest.raises(ChatTemplateError, match=r"fails on these messages: TypeError"):
        _render("{{ messages[0].content + 1 }}")
    with pytest.raises(ChatTemplateError, match="fails on these messages: ZeroDivisionError"):
        _render("{{ 1 / 0 }}")


def test_messages_of_the_caller_are_not_changed() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    with pytest.raises(ChatTemplateError):
        ChatTemplate("{{ messages.append(1) }}", special_tokens={}).render(messages)
    assert messages == [{"role": "user", "content": "Hi"}]


_ESCAPES = {
    "class": "{{ ''.__class__ }}{{ ''.__class__.__mro__ }}",
    "subclasses": "{{ ().__class__.__base__.__subclasses__() }}",
    "attr filter": "{{ ''|attr('__class__')|attr('__mro__') }}",
    "item": "{{ messages['__class__']['__init__'] }}",
    "globals of a function": "{{ raise_exception.__globals__ }}",
    "environment of a global": "{{ namespace.__init__.__globals__ }}",
    "format": "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "format_map": "{{ '{x.__class__}'.format_map({'x': 1}) }}",
    "joined format": "{{ ['{0.__class__}'] | map('format', 1) | list }}",
    "namespace": "{% set ns = namespace(__class__=1) %}{{ ns }}",
    "namespace item": "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns.__class__.x }}",
    "mutation": "{{ messages.clear() }}",
    "import": "{% import 'os' as os %}",
    "include": "{% include '/etc/passwd' %}",
    "extends": "{% extends 'base' %}",
    "lipsum": "{{ lipsum.__globals__ }}",
    "cycler": "{{ cycler.__init__.__globals__ }}",
    "self": "{{ self.__init__.__globals__ }}",
    "loop": "{% for m in messages %}{{ loop.__init__.__globals__ }}{% endfor %}",
    "generator": "{{ (messages | map('upper')).gi_frame.f_globals }}",
    "code": "{% macro f() %}{% endmacro %}{{ f._func.__code__ }}",
}


@pytest.mark.parametrize("name", _ESCAPES)
def test_an_escape_from_the_sandbox_leads_nowhere(name: str) -> None:
    # Refused, or there is nothing there: an undefined value, which prints as nothing.
    try:
        shown = _render(_ESCAPES[name])
    except ChatTemplateError:
        return
    assert shown == ""


_FLOODS = {
    "huge range": "{% for i in range(10 ** 9) %}x{% endfor %}",
    "nested ranges": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "silent loop": "{% for i in range(99999) %}{% for j in 'ab' * 99999 %}{% set x = j %}{% endfor %}{% endfor %}",
    "much output": "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    "product": "{{ 'x' * 10 ** 12 }}",
    "product reversed": "{{ 10 ** 12 * 'x' }}",
    "list product": "{{ [0] * 10 ** 12 }}",
    "power": "{{ 9 ** 99999999 }}",
    "fractional power": "{{ 10 ** 99999999.5 }}",
    "squaring": "{% set ns = namespace(n=9) %}{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "doubling +": "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "doubling ~": "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "doubling set": "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}"
    "{% endfor %}",
    "doubling macro": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "deep macro": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "recursive loop": "{% for m in [1] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "percent width": "{{ '%999999999d' % 1 }}",
    "percent name and width": "{{ '%(x)999999999d' % {'x': 1} }}",
    "percent star": "{{ '%*d' % (999999999, 1) }}",
    "format width": "{{ '{:>999999999}'.format(1) }}",
    "format nested width": "{{ '{:>{}}'.format(1, 999999999) }}",
    "format filter": "{{ '%999999999d' | format(1) }}",
    "replace": "{{ ('x' * 99999).replace('x', 'y' * 999) }}",
    "replace filter": "{{ ('x' * 99999) | replace('x', 'y' * 999) }}",
    "join": "{{ ('y' * 999).join('x' * 99999) }}",
    "join filter": "{{ ('x' * 99999) | join('y' * 999) }}",
    "translate": "{{ ('x' * 99999).translate({120: 'y' * 999}) }}",
    "indent": "{{ 'x' | indent(300000000, true) }}",
    "slice": "{{ [1] | slice(20000000) | list }}",
    "batch": "{{ [1] | batch(30000000, 'x') | list }}",
    "center": "{{ 'x' | center(999999999) }}",
    "ljust": "{{ 'x'.ljust(999999999) }}",
    "zfill": "{{ 'x'['zfill'](999999999) }}",
    "json indent": "{{ [1] | tojson(indent=999999999) }}",
    "date": "{{ strftime_now('%999999999Y') }}",
}


@pytest.mark.parametrize("name", _FLOODS)
def test_a_template_without_end_is_stopped(name: str) -> None:
    with pytest.raises(ChatTemplateError):
        _render(_FLOODS[name])


def test_what_templates_do_with_texts_works() -> None:
    """What is bounded is no less what it was."""
    source = (
        "{{ 'a-b-c'.replace('-', '+', 1) }} {{ ', '.join(['x', 'y']) }} {{ messages | join('|', 'content') }}"
    )
    assert _render(source) == "a+b-c x, y " + "|".join(message["content"] for message in HI)


def test_the_bounds_are_the_ones_asked_for() -> None:
    # Twelve steps: the call of range, the loop, its ten rounds.
    assert _render("{% for i in range(10) %}x{% endfor %}", max_steps=12, max_output_chars=10) == "x" * 10
    with pytest.raises(ChatTemplateError, match="takes more than 11 steps"):
        _render("{% for i in range(10) %}x{% endfor %}", max_steps=11)
    with pytest.raises(ChatTemplateError, match="writes more than 9 characters"):
        _render("{% for i in range(10) %}x{% endfor %}", max_output_chars=9)


def test_each_rendering_has_a_budget_of_its_own() -> None:
    template = ChatTemplate("{% for i in range(9) %}x{% endfor %}", special_tokens={}, max_steps=11)
    assert [template.render(HI) for _ in range(3)] == ["x" * 9] * 3
