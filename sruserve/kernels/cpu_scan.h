/* The element-wise recurrences over time, in the vectors of one instruction set. */
/* Neighbouring vectors over all steps, with c in registers; `last`: channels in the last one. */
TARGET INLINE void NAME(steps)(const struct walk *w, int64_t channel, int vectors, int64_t last,
                               int bfloat16) {
    const int64_t size = bfloat16 ? 2 : 4, stride = LANES * size;
    const vf fold = NAME(all)(-LOG2_E); /* into u, weights and biases: sigmoid(x) = 1 / (1 + 2^y) */
    vf c[VECTORS], w_f[VECTORS], w_r[VECTORS], b_f[VECTORS], b_r[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
        const int64_t count = v + 1 < vectors ? LANES : last, at = channel + v * LANES;
        w_f[v] = NAME(load)((const char *)(w->weight_c + at), count, 0) * fold;
        w_r[v] = NAME(load)((const char *)(w->weight_c + w->width + at), count, 0) * fold;
        b_f[v] = NAME(load)((const char *)(w->bias + at), count, 0) * fold;
        b_r[v] = NAME(load)((const char *)(w->bias + w->width + at), count, 0) * fold;
        c[v] = w->start ? NAME(load)((const char *)(w->start + at), count, 0) : (vf){0};
    }
    const char *u = w->u + channel * size, *x = w->x ? w->x + channel * size : 0;
    char *h = w->h + channel * size;
    for (int64_t t = 0; t < w->steps; ++t) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) {
            const int64_t count = v + 1 < vectors ? LANES : last, at = v * stride;
            const uintptr_t ahead = (uintptr_t)u + at + AHEAD * w->u_step;
            __builtin_prefetch((const void *)ahead);
            __builtin_prefetch((const void *)(ahead + w->plane));
            __builtin_prefetch((const void *)(ahead + 2 * w->plane));
            if (x) __builtin_prefetch((const void *)((uintptr_t)x + at + AHEAD * w->x_step));
            const vf z = NAME(load)(u + at, count, bfloat16);
            const vf u_f = NAME(load)(u + w->plane + at, count, bfloat16);
            const vf u_r = NAME(load)(u + 2 * w->plane + at, count, bfloat16);
            const vf f = NAME(sigmoid)(FMA(w_f[v], c[v], FMA(u_f, fold, b_f[v])));
            const vf previous = c[v];
            c[v] = FMA(previous - z, f, z);
            const vf read = w->updated_reset ? c[v] : previous;
            const vf r = NAME(sigmoid)(FMA(w_r[v], read, FMA(u_r, fold, b_r[v])));
            const vf g = w->tanh ? NAME(tanh)(c[v]) : c[v];
            vf out = g * r;
            if (x) {
                const vf skip = NAME(load)(x + at, count, bfloat16) * w->scale;
                out = FMA(g - skip, r, skip);
            }
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

TARGET INLINE void NAME(run)(const struct walk *w, int bfloat16) {
    int64_t channel = 0;
    for (; channel + VECTORS * LANES <= w->channels; channel += VECTORS * LANES)
        NAME(steps)(w, channel, VECTORS, LANES, bfloat16);
    if (channel + 2 * LANES <= w->channels) {
        NAME(steps)(w, channel, 2, LANES, bfloat16);
        channel += 2 * LANES;
    }
    if (channel + LANES <= w->channels) {
        NAME(steps)(w, channel, 1, LANES, bfloat16);
        channel += LANES;
    }
    if (channel < w->channels) NAME(steps)(w, channel, 1, w->channels - channel, bfloat16);
}

TARGET static void NAME(float32)(struct walk walk) { NAME(run)(&walk, 0); }
TARGET static void NAME(bfloat16)(struct walk walk) { NAME(run)(&walk, 1); }
