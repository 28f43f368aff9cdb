"""The training step of LlamaForCausalLM in JAX, for the peer `jax` of scripts/peers: the formulas
of the transformers package, one jit with donated buffers, weights of a torch model.

Shapes: B batch, S sequence, D hidden, H heads, K key-value heads, V vocabulary.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
from transformers import LlamaConfig, PreTrainedModel

from tinyllama_tools.proofs.oracle import head_dim_of, rotary_tables

Arrays = dict[str, jax.Array]
# torch.optim.AdamW's defaults, and the learning rate of the other peers
RATE, BETA_1, BETA_2, EPS, DECAY = 1e-3, 0.9, 0.999, 1e-8, 0.01


def start_threads() -> None:
    """As many as PJRT_NPROC says, on the processors that this thread has."""
    jax.devices()


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """The same values in the same type: numpy has no bfloat16."""
    array = jnp.asarray(tensor.detach().float().numpy())
    return array.astype(jnp.bfloat16) if tensor.dtype is torch.bfloat16 else array


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a b^T by JAX."""
    return torch.tensor(jax.jit(lambda x, y: x @ y.T)(to_jax(a), to_jax(b)).tolist())


def loss_of(
    weights: Arrays,
    tokens: jax.Array,
    rotary: tuple[jax.Array, ...],
    config: LlamaConfig,
    narrow: bool,
) -> jax.Array:
    """Mean cross-entropy of the S - 1 next tokens. `tokens` [B, S]; `rotary`: cos and sin, float32
    [S, D / H]; `narrow`: GEMMs and attention compute in bfloat16 whatever the weights are, as under
    autocast."""

    def narrowed(x: jax.Array) -> jax.Array:
        return x.astype(jnp.bfloat16) if narrow else x

    def linear(x: jax.Array, name: str) -> jax.Array:
        return narrowed(x) @ narrowed(weights[f"{name}.weight"]).T

    def norm(x: jax.Array, name: str) -> jax.Array:
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + config.rms_norm_eps)
        return weights[f"{name}.weight"] * (wide * scale).astype(x.dtype)

    def turned(x: jax.Array) -> jax.Array:
        cos, sin = (table.astype(x.dtype)[:, None] for table in rotary)
        first, second = jnp.split(x, 2, axis=-1)
        return x * cos + jnp.concatenate((-second, first), axis=-1) * sin

    def attended(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        # G query heads a key-value head; on a CPU faster than jax.nn.dot_product_attention
        batch, seq, heads, size = k.shape
        q = q.reshape(batch, seq, heads, -1, size).transpose(0, 2, 3, 1, 4)
        k, v = (x.transpose(0, 2, 1, 3) for x in (k, v))
        scores = jnp.einsum("bkgqd,bksd->bkgqs", q, k, preferred_element_type=jnp.float32)
        is_seen = jnp.tril(jnp.ones((seq, seq), dtype=bool))
        scores = jnp.where(is_seen, scores * size**-0.5, -jnp.inf)
        shares = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
        mixed = jnp.einsum("bkgqs,bksd->bkgqd", shares, v, preferred_element_type=v.dtype)
        return mixed.transpose(0, 3, 1, 2, 4).reshape(batch, seq, -1)

    hidden = weights["model.embed_tokens.weight"][tokens]
    for layer in range(config.num_hidden_layers):
        at = f"model.layers.{layer}"
        x = norm(hidden, f"{at}.input_layernorm")
        q, k, v = (
            linear(x, f"{at}.self_attn.{name}_proj").reshape(*tokens.shape, -1, head_dim_of(config))
            for name in "qkv"
        )
        hidden += linear(attended(turned(q), turned(k), v), f"{at}.self_attn.o_proj")
        x = norm(hidden, f"{at}.post_attention_layernorm")
        gate, up = (linear(x, f"{at}.mlp.{name}_proj") for name in ("gate", "up"))
        hidden += linear(jax.nn.silu(gate) * up, f"{at}.mlp.down_proj")
    logits = linear(norm(hidden, "model.norm"), "lm_head").astype(jnp.float32)[:, :-1]
    right = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - right)


def updated(weight: jax.Array, moments: jax.Array, gradient: jax.Array, step: jax.Array) -> tuple:
    """A weight and its moments after AdamW's update, computed in float32 as torch's fused one."""
    g, (m, v) = gradient.astype(jnp.float32), moments
    m = BETA_1 * m.astype(jnp.float32) + (1 - BETA_1) * g
    v = BETA_2 * v.astype(jnp.float32) + (1 - BETA_2) * g * g
    root = jnp.sqrt(v / (1 - BETA_2**step)) + EPS
    wide = weight.astype(jnp.float32) * (1 - RATE * DECAY) - RATE / (1 - BETA_1**step) * m / root
    return wide.astype(weight.dtype), (m.astype(weight.dtype), v.astype(weight.dtype))


class JaxStep:
    """Trains a copy of the model's weights on `tokens` [B, S]; a call is one step."""

    def __init__(self, model: PreTrainedModel, tokens: torch.Tensor, narrow: bool) -> None:
        config = model.config
        weights = {name: to_jax(value) for name, value in model.named_parameters()}
        moments = {name: (jnp.zeros_like(w), jnp.zeros_like(w)) for name, w in weights.items()}
        rotary = tuple(to_jax(table) for table in rotary_tables(config, tokens.shape[1]))

        def step(weights: Arrays, moments: dict, count: jax.Array, tokens: jax.Array) -> tuple:
            loss, gradients = jax.value_and_grad(loss_of)(weights, tokens, rotary, config, narrow)
            new = {n: updated(w, moments[n], gradients[n], count) for n, w in weights.items()}
            return (
                {n: w for n, (w, _) in new.items()},
                {n: m for n, (_, m) in new.items()},
                count + 1,
                loss,
            )

        self._step = jax.jit(step, donate_argnums=(0, 1, 2))
        self._state = (weights, moments, jnp.float32(1))
        self._tokens = jnp.asarray(tokens.numpy())

    def clear(self) -> None:
        """Gradients live inside a step."""

    def __call__(self) -> jax.Array:
        """The loss before the update, once all of the step is done."""
        *state, loss = jax.block_until_ready(self._step(*self._state, self._tokens))
        self._state = tuple(state)
        return loss
