"""The recurrences of the mixers, written as their papers write them: one position after the other.

Every state is that of one head, [d_k, d_v] as in the library's formulas. No chunks, no stabiliser,
no logarithms; for the tests and for `benchmarks/mixers.py`, which times them with autograd's own
backward pass.
"""

import torch


def gated_delta_rule(q, k, v, log_alpha, beta):
    """S = α (I - β k kᵀ) S + β k vᵀ, o = Sᵀ q."""
    q, k, v = (x.unbind(-2) for x in (q, k, v))
    alpha, beta = (x[..., None, None].unbind(-3) for x in (log_alpha.exp(), beta))
    state, out = _zeros(k[0], v[0]), []
    for t in range(len(q)):
        state = alpha[t] * state
        recalled = k[t].unsqueeze(-2) @ state
        state = state + k[t].unsqueeze(-1) * (beta[t] * (v[t].unsqueeze(-2) - recalled))
        out.append(q[t].unsqueeze(-2) @ state)
    return torch.cat(out, -2)


def wkv(r, log_w, k, v, a, b):
    """S = (diag(w) + b aᵀ) S + k vᵀ, o = Sᵀ r."""
    r, w, k, v, a, b = (x.unbind(-2) for x in (r, log_w.exp(), k, v, a, b))
    state, out = _zeros(k[0], v[0]), []
    for t in range(len(r)):
        read = a[t].unsqueeze(-2) @ state
        state = w[t].unsqueeze(-1) * state + b[t].unsqueeze(-1) * read
        state = state + k[t].unsqueeze(-1) * v[t].unsqueeze(-2)
        out.append(r[t].unsqueeze(-2) @ state)
    return torch.cat(out, -2)


def matrix_memory(q, k, v, log_i, log_f):
    """C = f C + i k vᵀ, n = f n + i k, h = Cᵀ q / max(|nᵀ q|, 1)."""
    q, k, v = (x.unbind(-2) for x in (q, k, v))
    i, f = (x.exp()[..., None].unbind(-2) for x in (log_i, log_f))
    memory, normaliser, out = _zeros(k[0], v[0]), torch.zeros_like(k[0]), []
    for t in range(len(q)):
        written = i[t] * k[t]
        memory = f[t].unsqueeze(-1) * memory + written.unsqueeze(-1) * v[t].unsqueeze(-2)
        normaliser = f[t] * normaliser + written
        size = (normaliser * q[t]).sum(-1, keepdim=True).abs().clamp_min(1)
        out.append((q[t].unsqueeze(-2) @ memory).squeeze(-2) / size)
    return torch.stack(out, -2)


def linear_scan(a, b):
    """h = a ⊙ h + b."""
    a, b = a.unbind(1), b.unbind(1)
    state, states = torch.zeros_like(b[0]), []
    for t in range(len(a)):
        state = a[t] * state + b[t]
        states.append(state)
    return torch.stack(states, 1)


def selective_scan(u, step, a, b, c):
    """h = exp(Δ A) ⊙ h + (Δ u) Bᵀ, y = h C."""
    u, step, b, c = (x.unbind(1) for x in (u, step, b, c))
    state, out = _zeros(u[0], b[0]), []
    for t in range(len(u)):
        decay = (step[t].unsqueeze(-1) * a).exp()
        state = decay * state + (step[t] * u[t]).unsqueeze(-1) * b[t].unsqueeze(-2)
        out.append((state @ c[t].unsqueeze(-1)).squeeze(-1))
    return torch.stack(out, 1)


def _zeros(k, v):
    return k.new_zeros(*k.shape, v.shape[-1])
