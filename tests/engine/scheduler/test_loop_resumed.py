"""Requests that another scheduler had begun: said again from the beginning, and gone on with."""

from __future__ import annotations
