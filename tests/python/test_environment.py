# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""What importing and running the library does to the process around it, and what the environment does to it."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anabranch as ab
from anabranch import _register, engine

ROOT = pathlib.Path(__file__).resolve().parents[2]
ISAS = ["generic", "avx2", "avx512", "avx512_bf16"]


def run_python(code: str, **environment: str) -> dict:
    """Runs `code` in a fresh interpreter; it prints one JSON object."""
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def operands(rows: int = 48, inner: int = 32, columns: int = 40, groups: int = 4):
    rng = np.random.default_rng(7)
    lhs = rng.standard_normal((rows, inner)).astype(np.float32)
    rhs = rng.standard_normal((groups, inner, columns)).astype(np.float32)
    return jnp.asarray(lhs), jnp.asarray(rhs), jnp.full(groups, rows // groups, jnp.int32)


def keeps_subnormals() -> bool:
    # Not constants: Python would fold them before anything can change the mode.
    wide, narrow = float("1e-310"), np.float32(1e-38)
    return wide / 10 == float("1e-311") and float(narrow * np.float32(0.01)) != 0.0


@jax.jit
def product_in_xla(x: jax.Array, y: jax.Array) -> jax.Array:
    return x * y


def xla_bits() -> bytes:
    """What XLA makes of subnormals on its own threads."""
    x = jnp.full(1 << 16, 1e-38, jnp.float32)
    return np.asarray(product_in_xla(x, jnp.full_like(x, 0.01))).tobytes()


def test_e4_import_leaves_the_floating_point_mode_alone():
    seen = run_python(
        "import json\n"
        "wide = float('1e-310')\n"
        "before = wide / 10\n"
        "import anabranch as ab, numpy as np\n"
        "from anabranch import _register\n"
        "_register.library()\n"
        "print(json.dumps({'before': before, 'after': wide / 10,"
        " 'single': float(np.float32(1e-38) * np.float32(0.01))}))"
    )
    assert seen["before"] == seen["after"] == 1e-311
    assert seen["single"] != 0.0


def test_e4_operations_and_errors_leave_the_floating_point_mode_alone():
    before = xla_bits()
    lhs, rhs, sizes = operands()
    jax.block_until_ready(jax.jit(ab.ragged_dot)(lhs, rhs, sizes))
    assert keeps_subnormals()
    with pytest.raises(Exception, match="group_sizes"):
        jax.block_until_ready(jax.jit(ab.ragged_dot)(lhs, rhs, sizes.at[1].set(-5)))
    assert keeps_subnormals()
    assert xla_bits() == before


def test_e4_a_second_thread_keeps_subnormals():
    seen = []
    lhs, rhs, sizes = operands()

    def work():
        jax.block_until_ready(jax.jit(ab.ragged_dot)(lhs, rhs, sizes))
        seen.append(keeps_subnormals())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True]
    assert keeps_subnormals()


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump (binutils)")
def test_e3_vector_instructions_only_in_symbols_named_after_them():
    result = subprocess.run(
        [ROOT / "scripts" / "check_isa_symbols.sh", _register.library_path()],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
def test_e6_affinity_is_never_changed():
    code = (
        "import json, os, pathlib\n"
        "def masks():\n"
        "    texts = [p.read_text() for p in pathlib.Path('/proc/self/task').glob('*/status')]\n"
        "    return sorted({line for t in texts for line in t.splitlines()"
        " if line.startswith('Cpus_allowed:')})\n"
        "first = masks(), sorted(os.sched_getaffinity(0))\n"
        "import anabranch as ab, jax, jax.numpy as jnp\n"
        "y = ab.ragged_dot(jnp.ones((64, 32)), jnp.ones((4, 32, 64)), jnp.full(4, 16, jnp.int32))\n"
        "jax.block_until_ready(y)\n"
        "last = masks(), sorted(os.sched_getaffinity(0))\n"
        "print(json.dumps({'first': first, 'last': last}))"
    )
    seen = run_python(code)
    assert seen["first"] == seen["last"]


def supported(isa: str) -> bool:
    flags = set(engine.cpu_features())
    needs = {
        "generic": set(),
        "avx2": {"avx2", "fma"},
        "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq"},
        "avx512_bf16": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16"},
    }
    return needs[isa] <= flags


# Prints the table in use and a product computed with it.
FORCED = (
    "import json, jax, jax.numpy as jnp, numpy as np, anabranch as ab\n"
    "from anabranch import engine\n"
    "rng = np.random.default_rng(3)\n"
    "x = jnp.asarray(rng.standard_normal((32, 128)), jnp.bfloat16)\n"
    "w = jnp.asarray(rng.standard_normal((2, 128, 64)), jnp.bfloat16)\n"
    "y = ab.ragged_dot(x, w, jnp.array([20, 12], jnp.int32), preferred_element_type=jnp.float32)\n"
    "print(json.dumps({'isa': engine.isa(), 'error': engine.forced_isa_error(),"
    " 'y': np.asarray(y).ravel().tolist()}))"
)


@pytest.mark.parametrize("isa", ISAS)
def test_force_isa_takes_effect(isa: str):
    if not supported(isa):
        pytest.skip(f"this CPU has no {isa}")
    seen = run_python(FORCED, ANABRANCH_FORCE_ISA=isa)
    assert seen["isa"] == isa
    assert seen["error"] == ""
    rng = np.random.default_rng(3)
    x = np.asarray(jnp.asarray(rng.standard_normal((32, 128)), jnp.bfloat16), np.float64)
    w = np.asarray(jnp.asarray(rng.standard_normal((2, 128, 64)), jnp.bfloat16), np.float64)
    want = np.concatenate([x[:20] @ w[0], x[20:] @ w[1]])
    size = np.concatenate([abs(x[:20]) @ abs(w[0]), abs(x[20:]) @ abs(w[1])])
    # 128 products of bf16 are exact in f32; each of 128 additions rounds once.
    got = np.asarray(seen["y"]).reshape(32, 64)
    assert np.all(np.abs(got - want) <= 128 * np.finfo(np.float32).eps * size)


def test_an_unknown_forced_isa_is_not_obeyed_and_explained():
    seen = run_python(FORCED, ANABRANCH_FORCE_ISA="avx1024")
    assert seen["isa"] in ISAS
    assert "ANABRANCH_FORCE_ISA=avx1024" in seen["error"]
