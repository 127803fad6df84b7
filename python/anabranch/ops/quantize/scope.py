# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Which recipe the products of a layer follow while a training step is traced.

`run` names a recipe per layer, and each product of bf16 rows that is traced inside `layer(i)` takes it, with a
key of its own for stochastic rounding. Products outside of a layer (embedding, head), of f32 rows (the router) and
those that name a recipe themselves are left alone.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp

from anabranch.ops.quantize.keys import derive_key, key_words
from anabranch.ops.quantize.operands import STATISTICS
from anabranch.ops.quantize.products import OPERANDS
from anabranch.ops.quantize.recipe import Recipe

# Room for the products of one layer: 6 of attention, 3 of routed and 3 of shared experts, and some.
MAX_PRODUCTS = 16


class Product(NamedTuple):
    """What one product needs beside its operands: see `recipe_gemm`."""

    recipe: Recipe
    key: jax.Array
    probe: jax.Array


@dataclasses.dataclass
class _Layer:
    run: _Run
    index: int
    products: int = 0


@dataclasses.dataclass(frozen=True)
class _Run:
    recipes: tuple[Recipe | None, ...]
    key: jax.Array
    probes: jax.Array


_RUN: contextvars.ContextVar[_Run | None] = contextvars.ContextVar("low_precision", default=None)
_LAYER: contextvars.ContextVar[_Layer | None] = contextvars.ContextVar("layer", default=None)


def new_probes(num_layers: int) -> jax.Array:
    """Zeros f32 [layers, MAX_PRODUCTS, 6, 5]: differentiate by them to get the statistics."""
    return jnp.zeros((num_layers, MAX_PRODUCTS, len(OPERANDS), len(STATISTICS)), jnp.float32)


@contextlib.contextmanager
def run(recipes: tuple[Recipe | None, ...], key: jax.Array, probes: jax.Array) -> Iterator[None]:
    """Layers traced inside follow `recipes[layer]`; `key` uint32 [2] is the step's."""
    token = _RUN.set(_Run(recipes, key, probes))
    try:
        yield
    finally:
        _RUN.reset(token)


@contextlib.contextmanager
def layer(index: int) -> Iterator[None]:
    """What is traced inside belongs to layer `index` of the enclosing `run`, if there is one."""
    current = _RUN.get()
    recipe = None if current is None else current.recipes[index]
    token = _LAYER.set(None if recipe is None else _Layer(current, index))
    try:
        yield
    finally:
        _LAYER.reset(token)


def next_product(dtype: jnp.dtype) -> Product | None:
    """The recipe, key and probe of the next product of the enclosing layer; None for plain arithmetic."""
    current = _LAYER.get()
    if current is None or dtype != jnp.bfloat16:
        return None
    number = current.products
    if number >= MAX_PRODUCTS:
        raise ValueError(f"low precision: more than {MAX_PRODUCTS} products in a layer")
    current.products += 1
    of_run = current.run
    recipe = of_run.recipes[current.index]
    # Philox in the graph only where it is used.
    key = key_words(derive_key(of_run.key, current.index, number) if recipe.draws else None)
    return Product(recipe, key, of_run.probes[current.index, number])


def product_of(recipe: Recipe) -> Product:
    """A product on its own: no probe, and key 0."""
    return Product(recipe, key_words(0), jnp.zeros((len(OPERANDS), 0), jnp.float32))
