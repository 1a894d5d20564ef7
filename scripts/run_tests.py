"""Run every layer of tests, quick ones first: style, the views' JavaScript (node), Python (pytest, with a browser).

    make test                       all of it
    make quick                      style, ledger, trace and JavaScript: no model, no browser, seconds
    make test ARGS="-k preempt -x"  arguments for pytest

In CI (`CI=true`) a missing tool fails the run; elsewhere its tests are skipped, and a line says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
QUICK = ["tests/ledger", "tests/trace", "tests/render"]
TOOLS = {
    "node": (["node"], "the tests of the views' JavaScript", "Node.js 18 or newer (Debian: apt install nodejs)"),
    "chromium": (
        ["chromium", "chromium-browser", "google-chrome", "chrome"],
        "the tests in a real JupyterLab",
        "Debian: apt install chromium; elsewhere: .venv/bin/playwright install chromium",
    ),
    "dot": (["dot"], "the tests of graphs drawn by Graphviz", "Debian: apt install graphviz"),
}


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("true", "1", "yes")


def playwright_has_browser() -> bool:
    """Whether Playwright downloaded a Chromium of its own."""
    try:
        from playwright.sync_api import sync_playwright

        with sync_playwright() as playwright:
            return Path(playwright.chromium.executable_path).exists()
    except Exception:  # whatever is wrong with it, it is no browser to test with
        return False


def missing_tools(names: list[str]) -> list[str]:
    """One line for each of these tools that is not here: what is skipped without it and how to get it."""
    lines = []
    for name in names:
        commands, use, remedy = TOOLS[name]
        if any(shutil.which(command) for command in commands) or (name == "chromium" and playwright_has_browser()):
            continue
        lines.append(f"{name} is missing, so {use} cannot run. To get it: {remedy}.")
    return lines


def run(title: str, command: list[str]) -> bool:
    """Run one layer in the project's root; whether it passed."""
    print(f"\n── {title}: {' '.join(command)}", flush=True)
    return subprocess.run(command, cwd=ROOT).returncode == 0


def main(arguments: list[str]) -> int:
    quick = "--quick" in arguments
    extra = [argument for argument in arguments if argument != "--quick"]
    missing = missing_tools(["node"] if quick else list(TOOLS))
    for line in missing:
        print(f"!! {line}", file=sys.stderr, flush=True)
    if missing and in_ci():
        print("!! In CI every layer must run.", file=sys.stderr)
        return 1

    failed = []
    if not run("style", [sys.executable, "-m", "ruff", "check", "."]):
        failed.append("style")
    scripts = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "js").rglob("*.test.*js"))
    if scripts and shutil.which("node") and not run("JavaScript", ["node", "--test", *scripts]):
        failed.append("JavaScript")
    folders = [folder for folder in QUICK if (ROOT / folder).is_dir()] if quick else []
    if not run("Python", [sys.executable, "-m", "pytest", *folders, *extra]):
        failed.append("Python")

    if failed:
        print(f"\nFailed: {', '.join(failed)}.", file=sys.stderr)
        return 1
    for line in missing:
        print(f"!! Not run: {line}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
