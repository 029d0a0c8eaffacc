"""Check bfloat16 in a subprocess: on some CPUs it kills the process."""

from __future__ import annotations

import subprocess
import sys

from anisoscope.errors import InputError

_TRIAL = """
import torch
with torch.autocast({device!r}, torch.bfloat16):
    x = torch.randn(4, 64, 64, device={device!r}, requires_grad=True)
    y = torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True)
    loss = torch.nn.functional.linear(y, x[0]).float().square().mean()
loss.backward()
assert bool(torch.isfinite(loss))
"""


def require_bf16(device: str) -> None:
    """Try a small forward and backward pass in bfloat16 in another process.

    Raises:
        InputError: The trial failed.
    """
    done = subprocess.run([sys.executable, "-c", _TRIAL.format(device=device)], capture_output=True, check=False)
    if done.returncode == 0:
        return
    signal = -done.returncode
    reason = f"killed by signal {signal}" if signal > 0 else done.stderr.decode(errors="replace").strip()[-200:]
    raise InputError(
        f"bfloat16 does not work on this {device}: a trial in another process failed ({reason}). Set bf16=false."
    )
