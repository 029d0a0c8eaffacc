"""The doctor says what works, and calls the program broken only where it is."""

from __future__ import annotations

import errno
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from anisoscope import __version__
from anisoscope import environment as doctor
from anisoscope.cli import app
from anisoscope.extras import EXTRAS

STATES = {"ok", "missing", "limited", "broken"}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials that all succeed, without starting a process."""

    def run(command: list[str]) -> tuple[str, str | None]:
        return json.dumps(dict.fromkeys(command[3:]) if "cpu" not in command else {}), None

    monkeypatch.setattr(doctor, "_run", run)


def results(thorough: bool = False) -> dict[str, doctor.Check]:
    return {check.what: check for check in doctor.checks(thorough)}


def test_the_core_works_and_every_dependency_is_checked() -> None:
    done = CliRunner().invoke(app, ["doctor", "--json"])
    assert done.exit_code == 0, done.stdout
    checks = {check["what"]: check for check in json.loads(done.stdout)}
    assert set(checks) >= {
        "torch",
        "transformers",
        "vl-convert-python",
        "ray",
        "wandb",
        "float32 on the CPU",
        "chromium",
    }
    assert {check["state"] for check in checks.values()} <= STATES
    assert checks["anisoscope"]["detail"].startswith(__version__)
    assert checks["float32 on the CPU"]["state"] == "ok"
    assert "GB free" in checks["this folder"]["detail"]


@pytest.mark.usefixtures("quick")
def test_the_result_comes_first_and_working_packages_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_requirements", lambda: ({"torch": ">=2", "numpy": ">=1"}, {}))
    done = CliRunner().invoke(app, ["doctor"])
    assert done.stdout.startswith("Everything needed works.")
    assert "packages" in done.stdout
    assert "numpy" not in done.stdout
    assert "numpy" in CliRunner().invoke(app, ["doctor", "--all"]).stdout
    monkeypatch.setattr(doctor, "_requirements", lambda: ({"numpy": ">=99", "not-a-package": ">=3"}, {}))
    assert CliRunner().invoke(app, ["doctor"]).stdout.startswith("Needed and not working: numpy, not-a-package.")


def test_packages_that_are_slow_to_import_are_left_to_a_thorough_check(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str]) -> tuple[str, str | None]:
        commands.append(command)
        return json.dumps(dict.fromkeys(command[3:]) if "cpu" not in command else {}), None

    monkeypatch.setattr(doctor, "_run", run)
    assert results()["peft"].state == "ok"
    assert all("peft" not in command for command in commands)
    assert sum("-c" in command for command in commands) == 2  # one process for imports, one for products
    results(thorough=True)
    assert any("peft" in command for command in commands)


@pytest.mark.usefixtures("quick")
def test_a_missing_dependency_is_broken_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_requirements", lambda: ({"torch": ">=2.9", "not-a-package": ">=3"}, {}))
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 1
    assert "pip install 'not-a-package>=3'" in done.stdout


@pytest.mark.usefixtures("quick")
def test_an_extra_that_is_not_installed_is_listed_once_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    present = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name in ("pillow", "peft") else present(name))
    checks = results()
    assert {name.removeprefix("extra ") for name in checks if name.startswith("extra ")} == set(EXTRAS)
    assert (checks["extra vision"].state, checks["extra hf"].state) == ("missing", "missing")
    assert checks["extra vision"].detail == "images: pip install 'anisoscope[vision]'"
    assert checks["extra audio"].state == "ok"
    assert "pillow" not in checks
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 0


@pytest.mark.usefixtures("quick")
def test_a_dependency_of_the_wrong_version_breaks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_requirements", lambda: ({"numpy": ">=99"}, {}))
    assert results()["numpy"].state == "broken"
    assert "is not >=99" in results()["numpy"].detail


def test_an_import_that_fails_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "scipy.py").write_text("raise ImportError('libfoo.so: no such file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(doctor, "_requirements", lambda: ({"scipy": ">=1"}, {}))
    monkeypatch.setattr(doctor, "_OPTIONAL", {})
    check = next(iter(doctor._packages(thorough=False)))
    assert check.state == "broken"
    assert "libfoo.so: no such file" in check.detail


def test_a_product_that_kills_its_process_does_not_kill_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_PRODUCT", "import os; os.kill(os.getpid(), 4)")
    check = next(iter(doctor._products()))
    assert (check.state, check.detail) == ("broken", "killed by signal 4")


def test_half_precision_that_fails_is_no_reason_to_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_run", lambda command: ("{}", "killed by signal 4" if "bfloat16" in command else None))
    checks = {check.what: check for check in doctor._products()}
    assert checks["float32 on the CPU"].state == "ok"
    assert checks["bfloat16 on the CPU"].state == "limited"
    assert "loaded as float32" in checks["bfloat16 on the CPU"].detail


@pytest.mark.usefixtures("quick")
def test_a_folder_that_cannot_be_written_is_reported_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(dir: Path, **_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)
    checks = results()
    assert checks["scratch folder"].state == "broken"
    assert "TMPDIR" in checks["scratch folder"].detail
    assert checks["this folder"].state == "limited"
    assert "Read-only file system" in checks["this folder"].detail
    assert "--out" in checks["this folder"].detail


@pytest.mark.usefixtures("quick")
def test_offline_mode_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert results()["Hugging Face hub"].state == "limited"
    assert "HF_HUB_OFFLINE" in results()["Hugging Face hub"].detail


@pytest.mark.usefixtures("quick")
def test_without_a_browser_nothing_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert results()["chromium"].state == "missing"
    assert "any browser" in results()["chromium"].detail
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 0


@pytest.mark.slow
def test_a_thorough_check_starts_browser_and_ray() -> None:
    checks = results(thorough=True)
    assert checks["ray, started"].state == "ok", checks["ray, started"]
    assert checks["chromium"].state in ("ok", "missing"), checks["chromium"]
