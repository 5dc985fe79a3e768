"""Requests that another scheduler had begun: said again from the beginning, and gone on with."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.scheduler.conftest import VOCAB, Driver, foretell, request

from vidette.models.toy import make_toy_model
from vidette.scheduler.loop import ABORTED, Effects, StepLoop
from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.messages import (
    AbortReq,
    BatchTokenIDOutput,
    FinishReason,
    SchedulerLedger,
    TokenizedGenerateReqInput,
)
