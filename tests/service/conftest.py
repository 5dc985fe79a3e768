"""One engine with the toy model in this process for each module and backend, and the app over it."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from starlette.applications import Starlette

import vidette
from vidette.service import build_app


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Run every async test on both backends."""
    backend: str = request.param
    return backend


@pytest.fixture(scope="module")
async def engine(anyio_backend: object) -> AsyncGenerator[vidette.Engine]:
    async with vidette.open_engine("toy") as engine:
        yield engine


@pytest.fixture
def app(engine: vidette.Engine) -> Starlette:
    return build_app(engine)
