"""Tests of the `vidette` command."""
