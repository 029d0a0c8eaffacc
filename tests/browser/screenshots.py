"""Write a picture of every kind of page, light and dark, on a laptop and a phone: `make screenshots`.

The pages of the tests show numbers from formulas. The pictures of the documentation show the sample pages of the
gallery: real models from the atlas, and a training and a tangent test that are run for it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from anisoscope.report.page import write_report
from tests.browser.conftest import CHROMIUM, DRIVER, start_browser
from tests.report_pages import KINDS

SIZES = {"laptop": (1280, 800), "phone": (400, 800)}
DOCS = {"model": "light", "two-models": "dark", "training": "light", "tangent": "light"}  # pictures of docs/report.md
ROOT = Path(__file__).parents[2]


def main() -> None:
    """Make the pages of six kinds of runs and photograph each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="Where to write the pictures.")
    parser.add_argument("--docs", type=Path, help="Where to write the pictures of the documentation.")
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    if CHROMIUM is None or DRIVER is None:
        raise SystemExit("Needs chromium and chromedriver; install Debian's packages chromium and chromium-driver.")
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        driver = start_browser(root / "profile")
        try:
            for kind, make in KINDS.items():
                (root / kind).mkdir()
                page = write_report(make(root / kind), root / f"{kind}.html")
                for device in SIZES:
                    for theme in ("light", "dark"):
                        _photograph(driver, page, folder / f"{kind}-{device}-{theme}.png", device, theme)
            if options.docs is not None:
                sys.path.insert(0, str(ROOT / "docs"))
                import_module("gallery").write_samples(root / "samples")
                for kind, theme in DOCS.items():
                    picture = root / f"{kind}.png"
                    _photograph(driver, root / "samples" / f"{kind}.html", picture, "laptop", theme)
                    _shrink(picture, options.docs / f"report-{kind}.png")
        finally:
            driver.quit()
            shutil.rmtree(root / "profile", ignore_errors=True)


def _shrink(picture: Path, target: Path) -> None:
    """Write the upper part of a picture at three quarters of its size."""
    from PIL import Image

    width, _ = SIZES["laptop"]
    top = Image.open(picture).convert("RGB").crop((0, 0, width, width * 9 // 16))
    small = top.resize((3 * top.width // 4, 3 * top.height // 4), Image.Resampling.LANCZOS)
    small.save(target, optimize=True)


def _photograph(driver: Any, page: Path, picture: Path, device: str, theme: str) -> None:
    width, height = SIZES[device]
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": device == "phone"}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": theme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    driver.get(page.as_uri())
    deadline = time.monotonic() + 60
    while not driver.execute_script("return document.documentElement.dataset.ready"):
        if time.monotonic() > deadline:
            raise SystemExit(f"{page.name} did not become ready within a minute.")
        time.sleep(0.1)
    driver.save_screenshot(str(picture))


if __name__ == "__main__":
    main()
