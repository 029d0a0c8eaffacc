"""A real browser: chromium, headless, with its own profile; tests are skipped if it is not installed."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
AXE = Path(os.environ.get("ANISOSCOPE_AXE", Path(__file__).parents[2] / ".bench" / "axe" / "package" / "axe.min.js"))
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
)


def start_browser(profile: Path, downloads: Path | None = None) -> Any:
    """Start chromium with a profile of its own; its log is kept, and files are saved to a folder if one is given."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = str(CHROMIUM)
    for option in (*OPTIONS, f"--user-data-dir={profile}"):
        options.add_argument(option)
    if downloads is not None:
        options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(DRIVER))


@pytest.fixture(scope="session")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory, downloads: Path) -> Iterator[Any]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("needs Debian's packages chromium and chromium-driver")
    driver = start_browser(tmp_path_factory.mktemp("profile"), downloads)
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture
def until(browser: Any) -> Callable[..., Any]:
    """Wait until a script returns a true value, and return it; otherwise fail with the script."""
    from selenium.webdriver.support.ui import WebDriverWait

    def wait(script: str, *values: Any, seconds: float = 30) -> Any:
        return WebDriverWait(browser, seconds, poll_frequency=0.05).until(
            lambda driver: driver.execute_script(script, *values), message=script
        )

    return wait


@pytest.fixture
def set_view(browser: Any) -> Callable[..., None]:
    """Set the width of the window and whether the system prefers dark pages."""

    def set_window(width: int, dark: bool = False) -> None:
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    set_window(1280)
    return set_window


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """The address of an app served on loopback, on a socket that is bound already, so the port is free."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1, lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 60
        while not server.started:
            assert time.monotonic() < deadline, "the server did not start within 60 seconds"
            time.sleep(0.02)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        server.should_exit = True
        thread.join(10)


def problems(browser: Any) -> list[str]:
    """The problems in the console since the last call."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def barriers(browser: Any) -> list[tuple[str, list[str]]]:
    """The serious violations that axe-core finds on the page that is open; without axe-core the test is skipped."""
    if not AXE.exists():
        pytest.skip(f"needs axe-core at {AXE}: make axe fetches it")
    browser.execute_script(AXE.read_text())
    browser.set_script_timeout(120)
    run = "axe.run().then(arguments[0], (error) => arguments[0]({ error: String(error) }))"
    found = browser.execute_async_script(run)
    assert "error" not in found
    return [
        (each["id"], [node["html"][:200] for node in each["nodes"]][:3])
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]


def shot(browser: Any, path: Path) -> Any:
    """A screenshot as an image."""
    from PIL import Image

    browser.save_screenshot(str(path))
    return Image.open(path).convert("RGB")
