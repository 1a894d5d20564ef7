"""In CI nothing is skipped on the quiet: a skipped test fails there, unless it is marked `gpu`.

A test that skips itself where a tool is missing is a courtesy to people; in CI it would hide that nothing was tested.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

ADVICE = "skipped in CI, where only tests marked `gpu` may be: "


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("true", "1", "yes")


def reason(longrepr: object) -> str:
    """The text behind a skip, which pytest keeps as (file, line, reason)."""
    return str(longrepr[2] if isinstance(longrepr, tuple) else longrepr)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, object, object]:
    report = yield
    expected_failure = hasattr(report, "wasxfail")
    if report.skipped and in_ci() and not expected_failure and item.get_closest_marker("gpu") is None:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid}: {ADVICE}{reason(report.longrepr)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, object, object]:
    """The same for a whole file that skips itself while it is imported."""
    report = yield
    if report.outcome == "skipped" and in_ci():
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid}: {ADVICE}{reason(report.longrepr)}"
    return report
