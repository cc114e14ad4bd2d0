/* The element-wise recurrences over time, with the vectors of one instruction set. */

TARGET INLINE vf NAME(activate)(vf c, int activation) {
    if (activation == TANH) return NAME(tanh)(c);
    if (activation == RELU) return NAME(pick)(c < 0.0f, (vf){0}, c);
    if (activation == SELU) {
        const vf below = SELU_ALPHA * (NAME(exp2)(c * LOG2_E) - 1.0f);
        return SELU_SCALE * NAME(pick)(c > 0.0f, c, below);
    }
    return c;
}

/* Run adjacent vectors over all steps, with the state c in registers. last: channels in the last
 * vector. kind: known at compile time. */
TARGET INLINE void NAME(steps)(const struct walk *w, int64_t channel, int vectors, int64_t last,
                               int bfloat16, enum kind kind) {
    const int64_t size = bfloat16 ? 2 : 4, stride = LANES * size;
    const int planes = kind == SRU || kind == LRN        ? 3
                       : kind == QRNN                    ? w->planes
                       : kind == MAX_OF || kind == DECAY ? 2
                                                         : 1;
    const int activation = w->activation, updated_reset = w->updated_reset;
    const vf fold = NAME(all)(-LOG2_E); /* into u, weights and biases: sigmoid(x) = 1 / (1 + 2^y) */
    vf c[VECTORS], w_f[VECTORS], w_r[VECTORS], b_f[VECTORS], b_r[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
        const int64_t count = v + 1 < vectors ? LANES : last, at = channel + v * LANES;
        c[v] = w->start ? NAME(load)((const char *)(w->start + at), count, 0) : (vf){0};
        if (kind != SRU) continue;
        w_f[v] = NAME(load)((const char *)(w->weight_c + at), count, 0) * fold;
        w_r[v] = NAME(load)((const char *)(w->weight_c + w->width + at), count, 0) * fold;
        b_f[v] = NAME(load)((const char *)(w->bias + at), count, 0) * fold;
        b_r[v] = NAME(load)((const char *)(w->bias + w->width + at), count, 0) * fold;
    }
    const char *u = w->u + channel * size, *x = w->x ? w->x + channel * size : 0;
    char *h = w->h + channel * size;
    for (int64_t t = 0; t < w->steps; ++t) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) {
            const int64_t count = v + 1 < vectors ? LANES : last, at = v * stride;
            const uintptr_t ahead = (uintptr_t)u + at + AHEAD * w->u_step;
            __builtin_prefetch((const void *)ahead);
            if (planes > 1) __builtin_prefetch((const void *)(ahead + w->plane));
            if (planes > 2) __builtin_prefetch((const void *)(ahead + 2 * w->plane));
            if (x) __builtin_prefetch((const void *)((uintptr_t)x + at + AHEAD * w->x_step));
            const vf first = NAME(load)(u + at, count, bfloat16);
            const vf second = planes > 1 ? NAME(load)(u + w->plane + at, count, bfloat16) : first;
            const vf third =
                planes > 2 ? NAME(load)(u + 2 * w->plane + at, count, bfloat16) : second;
            const vf more = x ? NAME(load)(x + at, count, bfloat16) * w->scale : first;
            const vf previous = c[v];
            vf out, gate = first; /* the gate of a highway between `out` and `more` */
            if (kind == SRU) {
                const vf f = NAME(sigmoid)(FMA(w_f[v], previous, FMA(second, fold, b_f[v])));
                c[v] = FMA(previous - first, f, first);
                const vf read = updated_reset ? c[v] : previous;
                gate = NAME(sigmoid)(FMA(w_r[v], read, FMA(third, fold, b_r[v])));
                out = NAME(activate)(c[v], activation);
            } else if (kind == LRN) {
                /* One division for both gates; no gate is below 2^-63, so nothing overflows. */
                const vf i = 1.0f + NAME(exp2_up_to)(63.0f, (first + previous) * fold);
                const vf f = 1.0f + NAME(exp2_up_to)(63.0f, (second - previous) * fold);
                const vf value = FMA(previous, i, third * f) / (i * f);
                c[v] = NAME(activate)(value, activation);
                if (x) c[v] *= NAME(sigmoid)((more - c[v]) * fold);
                out = c[v];
            } else if (kind == QRNN) {
                const vf f = NAME(sigmoid)(second * fold) * w->keep;
                c[v] = FMA(f, NAME(tanh)(first) - previous, previous);
                if (planes > 2) gate = NAME(sigmoid)(third * fold);
                out = c[v];
            } else if (kind == SUM) {
                out = c[v] = previous + first;
            } else if (kind == MAX_OF) {
                const vi stays = (second != 0.0f) & ((previous > first) | (previous != previous));
                out = c[v] = NAME(pick)(stays, previous, first);
            } else if (kind == DECAY) {
                out = c[v] = FMA(second, previous, first);
            } else {
                out = previous;
                c[v] = first;
            }
            if (kind == SRU || (kind == QRNN && planes > 2))
                out = x ? FMA(out - more, gate, more) : out * gate;
            NAME(store)(h + at, out, count, bfloat16);
        }
        u += w->u_step;
        h += w->h_step;
        if (x) x += w->x_step;
    }
    if (w->end)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) {
            const int64_t count = v + 1 < vectors ? LANES : last;
            NAME(store)((char *)(w->end + channel + v * LANES), c[v], count, 0);
        }
}

TARGET INLINE void NAME(run)(const struct walk *w, int bfloat16, enum kind kind) {
    int64_t channel = 0;
    for (; channel + VECTORS * LANES <= w->channels; channel += VECTORS * LANES)
        NAME(steps)(w, channel, VECTORS, LANES, bfloat16, kind);
    const int gated = kind == SRU || kind == LRN || kind == QRNN; /* others have no long chain */
    if (gated && channel + 2 * LANES <= w->channels) {
        NAME(steps)(w, channel, 2, LANES, bfloat16, kind);
        channel += 2 * LANES;
    }
    for (; channel < w->channels; channel += LANES) {
        const int64_t left = w->channels - channel;
        NAME(steps)(w, channel, 1, left < LANES ? left : LANES, bfloat16, kind);
    }
}

#define EACH_DTYPE(kind)                                                                     \
    TARGET static void NAME(kind##_float32)(struct walk walk) { NAME(run)(&walk, 0, kind); } \
    TARGET static void NAME(kind##_bfloat16)(struct walk walk) { NAME(run)(&walk, 1, kind); }
EACH_KIND(EACH_DTYPE)
#undef EACH_DTYPE
