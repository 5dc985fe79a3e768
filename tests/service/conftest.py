"""An engine with the toy model in this process, and the app over it, on both backends."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from starlette.applications import Starlette

import vidette
from vidette.service import build_app


@pytest.fixture
async def engine() -> AsyncGenerator[vidette.Engine]:
    async with vidette.open_engine("toy") as engine:
        yield engine


@pytest.fixture
def app(engine: vidette.Engine) -> Starlette:
    return build_app(engine)
