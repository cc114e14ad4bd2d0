"""Train the reference library's SRU on a CPU several times faster.

`sru` 2.6.0 trains on a CPU through a Python loop over time steps. `install()` replaces that loop
with a compiled forward and backward pass, after checking both against the loop it replaces. The
modules, their parameters and the checkpoints stay the library's own.

    from examples import fast_training

    fast_training.install()
"""

import warnings
from collections.abc import Callable
from typing import Any

import sru.modules
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.cpp_extension import load_inline

FLAGS = ["-O3", "-march=native", "-ffast-math", "-mprefer-vector-width=512", "-fopenmp"]
Recurrence = Callable[..., tuple[Tensor, Tensor]]

# U (steps, batch, width, k) is float32, or bfloat16 under autocast; everything else is float32.
# One thread owns whole sequences; the inner loops over the width become vector instructions.
SOURCE = r"""
#include <torch/extension.h>
#include <ATen/Parallel.h>
#include <cmath>
#include <vector>
using at::Tensor;

static inline float sigmoid(float a) { return 1.0f / (1.0f + expf(-a)); }

template <typename T, int K>
void forward(const T* u, const float* x, const float* w, const float* bias, const float* mask,
             float scale, float* c, float* h, int64_t steps, int64_t batch, int64_t d) {
  at::parallel_for(0, batch, 1, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; b++)
      for (int64_t t = 0; t < steps; t++) {
        const int64_t at = (t * batch + b) * d, next = at + batch * d;
        #pragma GCC ivdep
        for (int64_t j = 0; j < d; j++) {
          const T* uj = u + (at + j) * K;
          const float z = uj[0], before = c[at + j];
          const float xj = K == 4 ? float(uj[K - 1]) : x[at + j] * scale;
          const float f = sigmoid(float(uj[1]) + bias[j] + w[j] * before);
          const float r = sigmoid(float(uj[2]) + bias[d + j] + w[d + j] * before);
          const float now = z + (before - z) * f;
          c[next + j] = now;
          h[at + j] = xj + (now - xj) * r * mask[b * d + j];
        }
      }
  });
}

template <typename T, int K>
void backward(const T* u, const float* x, const float* w, const float* bias, const float* mask,
              float scale, const float* c, const float* dh, T* du, float* dx, float* dc,
              float* dw, float* dbias, int64_t steps, int64_t batch, int64_t d) {
  at::parallel_for(0, batch, 1, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; b++)
      for (int64_t t = steps - 1; t >= 0; t--) {
        const int64_t at = (t * batch + b) * d, row = b * d;
        #pragma GCC ivdep
        for (int64_t j = 0; j < d; j++) {
          const T* uj = u + (at + j) * K;
          const float z = uj[0], before = c[at + j], now = c[at + batch * d + j];
          const float xj = K == 4 ? float(uj[K - 1]) : x[at + j] * scale;
          const float f = sigmoid(float(uj[1]) + bias[j] + w[j] * before);
          const float r = sigmoid(float(uj[2]) + bias[d + j] + w[d + j] * before);
          const float m = mask[row + j], g = dh[at + j], gc = dc[row + j] + g * r * m;
          const float gf = gc * (before - z) * f * (1 - f);
          const float gr = g * (now - xj) * m * r * (1 - r);
          const float gx = g * (1 - r * m);
          T* duj = du + (at + j) * K;
          duj[0] = gc * (1 - f);
          duj[1] = gf;
          duj[2] = gr;
          if (K == 4) duj[K - 1] = gx; else dx[at + j] = gx * scale;
          dc[row + j] = gc * f + gf * w[j] + gr * w[d + j];
          dw[2 * row + j] += gf * before;
          dw[2 * row + d + j] += gr * before;
          dbias[2 * row + j] += gf;
          dbias[2 * row + d + j] += gr;
        }
      }
  });
}

template <typename T, typename F>
void with_k(int64_t k, F f) {
  if (k == 3) f(T(0), std::integral_constant<int, 3>());
  else f(T(0), std::integral_constant<int, 4>());
}

// Calls CALL with T the type of U and N its number of matrices.
#define DISPATCH(U, K, CALL)                                             \
  auto body = [&](auto zero, auto k) {                                   \
    using T = decltype(zero);                                            \
    constexpr int N = decltype(k)::value;                                \
    CALL;                                                                \
  };                                                                     \
  if (U.scalar_type() == at::kBFloat16) with_k<c10::BFloat16>(K, body);  \
  else with_k<float>(K, body);

float* p(const Tensor& t) { return t.data_ptr<float>(); }

void sru_forward(Tensor u, Tensor x, Tensor w, Tensor bias, Tensor mask, double scale, Tensor c,
                 Tensor h) {
  DISPATCH(u, u.size(3), (forward<T, N>(u.data_ptr<T>(), p(x), p(w), p(bias), p(mask), scale, p(c),
      p(h), x.size(0), x.size(1), h.size(2))))
}

void sru_backward(Tensor u, Tensor x, Tensor w, Tensor bias, Tensor mask, double scale, Tensor c,
                  Tensor dh, Tensor du, Tensor dx, Tensor dc, Tensor dw, Tensor dbias) {
  DISPATCH(u, u.size(3), (backward<T, N>(u.data_ptr<T>(), p(x), p(w), p(bias), p(mask), scale, p(c),
      p(dh), du.data_ptr<T>(), p(dx), p(dc), p(dw), p(dbias), x.size(0), x.size(1), dh.size(2))))
}
"""


class FastRecurrence(torch.autograd.Function):
    """The recurrence of one unidirectional SRU layer with a skip term and no activation.

    Takes `u` (steps, batch, width, k), `x` (steps, batch, in), `weight_c` and `bias` (2 * width),
    `c_init` and `mask` (batch, width); returns `h` (steps, batch, width) and the last `c`.
    """

    kernel: Any = None

    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        x: Tensor,
        weight_c: Tensor,
        bias: Tensor,
        c_init: Tensor,
        mask: Tensor,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        steps, batch, width, _ = u.shape
        h = x.new_empty(steps, batch, width)
        c = x.new_empty(steps + 1, batch, width)
        c[0] = c_init
        FastRecurrence.kernel.sru_forward(u, x, weight_c, bias, mask, scale, c, h)
        ctx.save_for_backward(u, x, weight_c, bias, mask, c)
        ctx.scale = scale
        return h, c[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_h: Tensor, grad_c: Tensor) -> tuple[Tensor | None, ...]:
        u, x, weight_c, bias, mask, c = ctx.saved_tensors
        batch, width = mask.shape
        grad_u, grad_x = torch.empty_like(u), torch.zeros_like(x)
        grad_c = grad_c.clone().contiguous()
        grad_w, grad_bias = x.new_zeros(2, batch, 2 * width)
        FastRecurrence.kernel.sru_backward(
            u, x, weight_c, bias, mask, ctx.scale, c, grad_h.contiguous(), grad_u, grad_x, grad_c,
            grad_w, grad_bias,
        )  # fmt: skip
        return grad_u, grad_x, grad_w.sum(0), grad_bias.sum(0), grad_c, None, None


def fast_recurrence(slow: Recurrence) -> Recurrence:
    """A stand-in for `slow`, which still gets every case that the kernel does not cover."""

    def recurrence(
        u: Tensor,
        x: Tensor,
        weight_c: Tensor,
        bias: Tensor,
        c_init: Tensor,
        activation_type: int,
        hidden_size: int,
        bidirectional: bool,
        has_skip_term: bool,
        scale_x: Tensor | None = None,
        dropout_mask: Tensor | None = None,
        mask_pad: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        plain = activation_type == 0 and not bidirectional and has_skip_term and x.dim() == 3
        if not (plain and mask_pad is None and weight_c.dim() == 1 and torch.is_grad_enabled()):
            return slow(
                u, x, weight_c, bias, c_init, activation_type, hidden_size, bidirectional,
                has_skip_term, scale_x, dropout_mask, mask_pad,
            )  # fmt: skip
        u = u.contiguous().view(x.size(0), x.size(1), hidden_size, -1)
        mask = torch.ones_like(c_init) if dropout_mask is None else dropout_mask
        scale = 1.0 if scale_x is None else scale_x.item()
        result: tuple[Tensor, Tensor] = FastRecurrence.apply(  # type: ignore[no-untyped-call]
            u, x.contiguous(), weight_c, bias, c_init, mask, scale
        )
        return result

    return recurrence


def largest_difference(fast: Recurrence, slow: Recurrence, k: int) -> float:
    """The largest difference in values and gradients on a random layer with `k` matrices."""
    steps, batch, width = 7, 5, 33
    tensors = [
        torch.randn(*shape)
        for shape in [(steps * batch, width * k), (steps, batch, width), (2 * width,), (2 * width,)]
    ]
    c_init, mask, weigh = torch.randn(3, batch, width)
    results = []
    for recurrence in (fast, slow):
        inputs = [tensor.clone().requires_grad_() for tensor in [*tensors, c_init]]
        h, c = recurrence(*inputs, 0, width, False, True, torch.tensor([1.2]), mask.abs(), None)
        loss = (h.cumsum(0) * weigh).sum() + (c * weigh).sum()
        grads = torch.autograd.grad(loss, inputs, allow_unused=True)
        results.append([h, c, *(grad for grad in grads if grad is not None and grad.any())])
    return max(float((a - b).abs().max()) for a, b in zip(*results, strict=True))


def install() -> None:
    """Compile the kernel, check it against the library's own loop, and put it in its place."""
    FastRecurrence.kernel = load_inline(  # type: ignore[no-untyped-call]
        name="sru_fast_training",
        cpp_sources=SOURCE,
        functions=["sru_forward", "sru_backward"],
        extra_cflags=FLAGS,
    )
    slow = sru.modules.elementwise_recurrence_naive
    fast = fast_recurrence(slow)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        difference = max(largest_difference(fast, slow, k) for k in (3, 4))
    if difference > 1e-3:
        raise RuntimeError(f"the compiled recurrence differs from the library's by {difference}")
    sru.modules.elementwise_recurrence_naive = fast
