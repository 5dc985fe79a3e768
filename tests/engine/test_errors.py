"""What the engine raises: whose fault each is, what HTTP says of it, and what it carries."""

from __future__ import annotations

import pytest

from vidette import errors
from vidette.errors import (
    ChatTemplateError,
    DuplicateRequest,
    EngineBroken,
    EngineClosed,
    EngineDraining,
    Error,
    KernelError,
    ModelError,
    Overloaded,
    PromptTimeout,
    RequestAborted,
    RequestError,
    RequestReplaced,
    UsageError,
)

TREE: dict[type[Error], tuple[type[Exception], int, str]] = {
    Error: (Exception, 500, "internal_error"),
    UsageError: (Error, 400, "invalid_request_error"),
    ChatTemplateError: (UsageError, 400, "invalid_request_error"),
    DuplicateRequest: (UsageError, 409, "invalid_request_error"),
    Overloaded: (Error, 429, "rate_limit_error"),
    RequestError: (Error, 500, "internal_error"),
    PromptTimeout: (RequestError, 504, "timeout_error"),
    RequestReplaced: (RequestError, 409, "invalid_request_error"),
    RequestAborted: (RequestError, 503, "service_unavailable"),
    KernelError: (Error, 500, "internal_error"),
    ModelError: (Error, 500, "internal_error"),
    EngineClosed: (Error, 503, "service_unavailable"),
    EngineDraining: (EngineClosed, 503, "service_unavailable"),
    EngineBroken: (Error, 503, "service_unavailable"),
}


def descendants(cls: type[Error]) -> set[type[Error]]:
    return {cls}.union(*map(descendants, cls.__subclasses__()))


@pytest.mark.parametrize("cls", TREE)
def test_each_has_its_parent_its_status_and_its_kind(cls: type[Error]) -> None:
    parent, status, kind = TREE[cls]
    assert cls.__bases__[0] is parent
    assert (cls.status, cls.kind) == (status, kind)


def test_the_tree_is_whole_and_drawn_at_the_top_of_its_module() -> None:
    assert {cls for cls in descendants(Error) if cls.__module__ == errors.__name__} == set(TREE)
    drawing = errors.__doc__ or ""
    assert all(cls.__name__ in drawing for cls in TREE)


def test_one_that_failed_has_the_status_it_was_given() -> None:
    plain = RequestError("no")
    assert (plain.status, plain.kind, plain.code) == (500, "internal_error", None)
    for status, kind in (
        (400, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "internal_error"),
        (503, "service_unavailable"),
        (504, "timeout_error"),
    ):
        error = RequestError("no", status=status, code="why")
        assert (error.status, error.kind, error.code) == (status, kind, "why")
    for status in (0, 200, 399, 600, 1 << 40):  # it comes from another process, and is no error's
        assert RequestError("no", status=status).status == 500
    assert RequestReplaced("mine").status == 409


def test_a_usage_error_is_a_value_error_that_names_the_field() -> None:
    error = UsageError("top_k is 0", param="top_k", code="bad")
    assert isinstance(error, ValueError)
    assert (str(error), error.param, error.code) == ("top_k is 0", "top_k", "bad")
    assert (UsageError("no").param, UsageError("no").code) == (None, None)


def test_one_that_was_aborted_with_all_others_says_why() -> None:
    assert str(RequestAborted("mine")) == "request 'mine' was ended, as all requests were"
    assert (
        str(RequestAborted("mine", "it is late"))
        == "request 'mine' was ended, as all requests were: it is late"
    )


def test_one_that_drains_says_when_to_try_again() -> None:
    assert EngineDraining("no").retry_after == 1.0
    assert EngineDraining("no", retry_after=7.5).retry_after == 7.5


def test_a_duplicate_names_the_rid() -> None:
    error = DuplicateRequest("mine")
    assert "'mine'" in str(error)
    assert (error.rid, error.param, error.code) == ("mine", "rid", "duplicate_request")


def test_an_overload_says_when_to_come_back() -> None:
    assert Overloaded("full").retry_after == 1.0
    assert Overloaded("full", retry_after=3.5).retry_after == 3.5


def test_a_broken_engine_says_who_and_how() -> None:
    error = EngineBroken("gone", role="scheduler", exit_status=-9)
    assert (str(error), error.role, error.exit_status) == ("gone", "scheduler", -9)
    assert (EngineBroken("gone").role, EngineBroken("gone").exit_status) == (None, None)
