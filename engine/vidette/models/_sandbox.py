"""The Jinja environment of chat templates: what they may use, and how much of it.

A template comes with a model, so it is as trustworthy as the model's file. Jinja's immutable sandbox lets
it touch nothing but the values it is given. On top of that every loop round and every call is counted, and
every text it builds from others has a greatest length: a template without end becomes an error. What the
budget cannot see are single expressions of Jinja's own filters over values the template nested on purpose;
whoever serves files of strangers should bound the memory of the process too.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NoReturn

from jinja2 import Template, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from vidette.errors import ChatTemplateError

# What can pad or make up text out of nothing; chat templates do without.
_REMOVED_FILTERS: Final = (
    "batch",
    "center",
    "filesizeformat",
    "format",
    "indent",
    "pprint",
    "slice",
    "urlize",
    "wordwrap",
    "xmlattr",
)
_REMOVED_GLOBALS: Final = ("lipsum", "cycler", "joiner")
_REMOVED_STR_METHODS: Final = frozenset({"center", "expandtabs", "ljust", "rjust", "translate", "zfill"})
# In % formats and in those of `format`: a width of four or more digits, or one taken from the arguments.
_WIDE_FORMAT: Final = re.compile(
    r"%(?:\([^)]*\))?[^%A-Za-z(]*(?:\d{4}|\*) | \{[^{}]*(?::[^{}]*\d{4}|\{)", re.VERBOSE
)
_MAX_INDENT: Final = 16
_MAX_BITS: Final = 4096


def compile_template(source: str, *, max_chars: int, max_steps: int) -> Template:
    """Compile a chat template that counts what it does.

    Args:
        source: Jinja text.
        max_chars: greatest length of a text that the template builds.
        max_steps: most loop rounds and calls of one rendering.

    Raises:
        jinja2.TemplateError: the source does not compile.
    """
    environment = _Environment(max_chars=max_chars, max_steps=max_steps)
    tree = environment.parse(source)
    _CountWork().visit(tree)
    tree.set_environment(environment)
    return environment.from_string(tree)


class _Context(Context):
    """The variables of one rendering, and the number of its next step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.steps = itertools.count(1)

    def derived(self, locals: dict[str, Any] | None = None) -> Context:  # noqa: A002  Jinja's name
        context = super().derived(locals)
        assert isinstance(context, _Context)
        context.steps = self.steps
        return context


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox with a budget; one environment per template."""

    context_class = _Context
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, *, max_chars: int, max_steps: int) -> None:
        # Blocks are trimmed as transformers does it; templates are written for that.
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        self._max_chars = max_chars
        self._max_steps = max_steps
        for name in _REMOVED_FILTERS:
            del self.filters[name]
        for name in _REMOVED_GLOBALS:
            del self.globals[name]
        self.filters["tojson"] = _to_json
        self.filters["replace"] = self._replace
        self.filters["join"] = self._join
        self.globals["namespace"] = _Namespace
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def count_step(self, context: Context) -> None:
        assert isinstance(context, _Context)
        if next(context.steps) > self._max_steps:
            raise ChatTemplateError(f"the chat template takes more than {self._max_steps} steps")

    @pass_context
    def count_rounds(self, context: Context, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.count_step(context)
            yield item

    def concat(self, parts: Iterable[Any]) -> str:  # what Jinja joins the output of macros and blocks with
        texts = [str(part) for part in parts]
        self._check_length(sum(map(len, texts)))
        return "".join(texts)

    def join_operands(self, *parts: Any) -> str:
        return self.concat(parts)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.count_step(context)
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            # The two methods of a text that can make a longer one.
            if obj.__name__ == "replace":
                return self._replace(owner, *args, **kwargs)
            if obj.__name__ == "join" and len(args) == 1:
                return self._join(args[0], owner)
        return super().call(context, obj, *args, **kwargs)

    def _replace(self, s: object, old: str, new: str, count: int | None = None) -> str:
        text = str(s)
        grown = text.count(old) * max(0, len(new) - len(old))
        self._check_length(len(text) + grown)
        return text.replace(old, new, -1 if count is None else count)

    def _join(self, value: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
        items = value if attribute is None else (self.getitem(item, attribute) for item in value)
        texts = [str(item) for item in items]
        self._check_length(sum(map(len, texts)) + len(d) * len(texts))
        return d.join(texts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and _has_length(left) and _has_length(right):
            self._check_length(len(left) + len(right))
        elif operator == "*":
            for value, times in ((left, right), (right, left)):
                if _has_length(value) and isinstance(times, int):
                    self._check_length(len(value) * times)
            _check_bits(_bits(left) + _bits(right))
        elif operator == "**":
            _check_bits(_bits(left) * abs(right))
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr in _REMOVED_STR_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_format(value.__self__)
        return wrapped

    def _check_length(self, length: int) -> None:
        if length > self._max_chars:
            raise ChatTemplateError(
                f"the chat template builds a text of more than {self._max_chars} characters"
            )


class _CountWork(NodeTransformer):
    """Rewrites loops and `~` to go through the environment, where no template can reach."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802  Jinja's naming scheme
        if node.recursive:
            raise TemplateSyntaxError("recursive loops are not supported in chat templates", node.lineno)
        self.generic_visit(node)
        node.iter = _call_environment("count_rounds", [node.iter], node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call_environment("join_operands", node.nodes, node.lineno)


class _Generation(Extension):
    """`{% generation %}`, which marks the assistant's text for training: rendered as if it were not there."""

    tags = {"generation"}  # noqa: RUF012  Jinja's class attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(Namespace):
    """`namespace()` without names that begin with an underscore, which could reach Python's internals."""

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        attributes = dict(*args, **kwargs)
        for name in attributes:
            _check_name(name)
        super().__init__(attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _call_environment(method: str, args: Sequence[nodes.Node], lineno: int) -> nodes.Node:
    return nodes.Call(nodes.EnvironmentAttribute(method), list(args), [], None, None).set_lineno(lineno)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}")


def _check_format(text: str) -> None:
    if _WIDE_FORMAT.search(text):
        raise SecurityError(f"the format {text[:40]!r} asks for too much width")


def _has_length(value: Any) -> bool:
    return isinstance(value, str | list | tuple)


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 1


def _check_bits(bits: float) -> None:
    if bits > _MAX_BITS:
        raise SecurityError("a product or power of whole numbers is too large")


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    _check_format(pattern)
    # Templates mean the local date.
    return dt.datetime.now().strftime(pattern)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as transformers does: no HTML escapes, which Jinja's own filter adds."""
    if indent is not None and not 0 <= indent <= _MAX_INDENT:
        raise SecurityError(f"indent={indent!r} is not between 0 and {_MAX_INDENT}")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
