"""Run the tests as other machines would: other BLAS kernels, other vector units, threads, a load.

    python scripts/test_elsewhere.py               # every setting that changes something here
    python scripts/test_elsewhere.py --list        # which those are; runs no test
    python scripts/test_elsewhere.py nehalem busy -- tests/adapt

What follows ``--`` goes to pytest.  A setting of the arithmetic counts only where it changes bits:
products, factors and convolutions are computed with and without it, and a setting that gives the
same bits on this processor is named and left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

ARITHMETIC = {
    "mkl-avx2": {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "mkl-sse": {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "mkl-compatible": {"MKL_CBWR": "COMPATIBLE"},
    "mkl-reproducible": {"MKL_CBWR": "AVX2"},
    "zen": {"OPENBLAS_CORETYPE": "Zen"},
    "haswell": {"OPENBLAS_CORETYPE": "Haswell"},
    "nehalem": {"OPENBLAS_CORETYPE": "Nehalem"},
    "aten-default": {"ATEN_CPU_CAPABILITY": "default"},
    "aten-avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "onednn-sse": {"ONEDNN_MAX_CPU_ISA": "SSE41"},
}
"""What another processor would do, by the libraries' own switches."""

AROUND = ("two-threads", "busy")
"""What another machine would be like: threads, and processes beside."""


def bits() -> dict[str, str]:
    """Digests of results that depend on the order of sums, by the operation that made them."""
    from hashlib import sha256

    import numpy as np
    import scipy.linalg
    import torch
    from torch.nn import functional as F

    draw = torch.Generator().manual_seed(0)
    single = torch.randn(67, 129, generator=draw)
    images = torch.randn(4, 3, 16, 16, generator=draw)
    filters = torch.randn(8, 3, 3, 3, generator=draw)
    double, table = single.double(), np.random.default_rng(0).normal(size=(67, 129))
    made = {
        "torch product, float32": single @ single.T,
        "torch product, float64": double @ double.T,
        "torch eigenvalues": torch.linalg.eigvalsh(double @ double.T),
        "torch convolution": F.conv2d(images, filters),
        "torch exponential": single.exp(),
        "torch sum": single.sum(),
        "numpy product": torch.from_numpy(table @ table.T),
        "numpy singular values": torch.from_numpy(np.linalg.svd(table, compute_uv=False)),
        "scipy Cholesky": torch.from_numpy(scipy.linalg.cholesky(table @ table.T + np.eye(67))),
    }
    return {
        name: sha256(value.contiguous().numpy().tobytes()).hexdigest()
        for name, value in made.items()
    }


def bits_with(setting: dict[str, str]) -> dict[str, str]:
    """The same in a process that starts with the setting; none if it cannot start."""
    done = subprocess.run(
        [sys.executable, __file__, "--bits"],
        env={**os.environ, **setting},
        capture_output=True,
        text=True,
        check=False,
    )
    found: dict[str, str] = json.loads(done.stdout) if done.returncode == 0 else {}
    return found


@contextmanager
def busy_processes(count: int):
    """So many that do nothing but take time."""
    spin = [sys.executable, "-c", "while True: pass"]
    started = [subprocess.Popen(spin) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def run_tests(name: str, words: list[str]) -> tuple[bool, str]:
    """Whether all passed, and pytest's last words."""
    setting = {"two-threads": {"OMP_NUM_THREADS": "2"}, **ARITHMETIC}.get(name, {})
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "-m", "not slow"]
    with ExitStack() as stack:
        if name == "busy":
            stack.enter_context(busy_processes(4))
        done = subprocess.run(
            [*command, *words],
            cwd=ROOT,
            env={**os.environ, **setting},
            capture_output=True,
            text=True,
            check=False,
        )
    lines = (done.stdout + done.stderr).splitlines()
    said = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return done.returncode == 0, "\n    ".join(
        [*said, lines[-1] if lines else "pytest said nothing"]
    )


def main() -> int:
    """Print a line for each setting; 1 if a test failed with any."""
    own = sys.argv[1 : sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    words = sys.argv[len(own) + 2 :]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*", choices=[[], *ARITHMETIC, *AROUND])
    parser.add_argument("--list", action="store_true", help="say which settings count; run no test")
    parser.add_argument("--bits", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(own)
    if args.bits:
        print(json.dumps(bits()))
        return 0
    plain, failed = bits_with({}), []
    for name in args.settings or [*ARITHMETIC, *AROUND]:
        if name in ARITHMETIC:
            found = bits_with(ARITHMETIC[name])
            changed = [what for what in plain if found.get(what) != plain[what]]
            if not found:
                print(f"{name}: this processor cannot do it", flush=True)
            elif not changed:
                print(f"{name}: changes no bit on this processor", flush=True)
            else:
                print(f"{name}: changes {', '.join(changed)}", flush=True)
            if not changed or not found:
                continue
        if args.list:
            continue
        began = time.monotonic()
        passed, said = run_tests(name, words)
        print(f"  {name}, {time.monotonic() - began:.0f} s: {said}", flush=True)
        failed += [] if passed else [name]
    if not args.list:
        print(f"failed: {', '.join(failed)}" if failed else "nothing failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
