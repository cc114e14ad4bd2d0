/* The gates of a gated layer's step, with the vectors of one instruction set. */

TARGET INLINE vf NAME(gate)(vf x) { return NAME(sigmoid)(x * -LOG2_E); }

/* The memory of one sequence's channels in this step, each from the part's first channel on. */
struct NAME(places) {
    const float *sums;   /* gate g starts at g * apart */
    const char *u;       /* gate g starts at g * plane */
    const float *before; /* h of the previous step */
    float *after, *cell, *between;
    char *h;
    int64_t apart, plane;
};

TARGET INLINE void NAME(point)(const struct NAME(places) *p, int64_t at, int64_t count, int kind,
                               int second, int bfloat16) {
    const int64_t size = bfloat16 ? 2 : 4;
#define SUM(g) ((vf)*(const loose *)(p->sums + (g) * p->apart + at))
#define U(g) NAME(load)(p->u + (g) * p->plane + at * size, count, bfloat16)
#define READ(from) NAME(load)((const char *)((from) + at), count, 0)
#define WRITE(to, value) NAME(store)((char *)((to) + at), value, count, 0)
    vf h;
    if (kind == LSTM && second) {
        h = SUM(0);
    } else if (kind == LSTM) {
        const vf i = NAME(gate)(U(0) + SUM(0)), f = NAME(gate)(U(1) + SUM(1));
        const vf g = NAME(tanh)(U(2) + SUM(2)), o = NAME(gate)(U(3) + SUM(3));
        const vf c = FMA(f, READ(p->cell), i * g);
        WRITE(p->cell, c);
        h = o * NAME(tanh)(c);
        if (p->between) {
            WRITE(p->between, h);
            return;
        }
    } else if (kind == GRU) {
        const vf r = NAME(gate)(U(0) + SUM(0)), z = NAME(gate)(U(1) + SUM(1));
        const vf n = NAME(tanh)(FMA(r, SUM(2), U(2)));
        h = FMA(z, READ(p->before) - n, n);
    } else if (kind == GRU_RESET_BEFORE && !second) {
        const vf r = NAME(gate)(U(0) + SUM(0));
        WRITE(p->cell, NAME(gate)(U(1) + SUM(1)));
        WRITE(p->between, r * READ(p->before));
        return;
    } else if (kind == GRU_RESET_BEFORE) {
        const vf n = NAME(tanh)(U(2) + SUM(0));
        h = FMA(READ(p->cell), READ(p->before) - n, n);
    } else if (kind == RNN_TANH) {
        h = NAME(tanh)(U(0) + SUM(0));
    } else if (kind == RNN_RELU) {
        h = MAX(NAME(all)(0.0f), U(0) + SUM(0)); /* NaN stays NaN */
    } else {
        const vf x = U(0), i = NAME(gate)(x + SUM(0)), f = NAME(gate)(x - SUM(0));
        h = FMA(f, READ(p->before), i * x);
        if (kind == ATR_TANH) h = NAME(tanh)(h);
    }
    WRITE(p->after, h);
    NAME(store)(p->h + at * size, h, count, bfloat16);
#undef SUM
#undef U
#undef READ
#undef WRITE
}

/* Dtype and tail are run-time arguments, because the gates take little time next to the product. */
TARGET INLINE void NAME(points)(const struct NAME(places) *p, int64_t channels, int kind,
                                int second, int bfloat16) {
    for (int64_t at = 0; at < channels; at += LANES)
        NAME(point)(p, at, channels - at, kind, second, bfloat16);
}

#define KIND(kind, second) \
    case 2 * kind + second: NAME(points)(&places, channels, kind, second, bfloat16); break

TARGET static void NAME(gated)(const struct progress *now, const struct part *part) {
    _Alignas(64) float sums[MAX_SEQUENCES * 4 * GROUP];
    const struct gated *call = now->call;
    const struct product *product = &now->products[part->product];
    const int second = part->product == 1, bfloat16 = call->bfloat16 != 0;
    const int64_t size = bfloat16 ? 2 : 4, panel = product->groups * GROUP;
    const int64_t from = part->panel * product->channels, left = product->outputs - from;
    const int64_t channels = left < product->channels ? left : product->channels;
    const float *before = now->hidden[part->step & 1];
    float *after = now->hidden[(part->step + 1) & 1];
    const float *in = second ? now->between : before;
    const int64_t stride = second ? now->cell_stride : now->hidden_stride;
    in += part->first * stride;
    if (bfloat16)
        NAME(multiply)(product, part->panel, in, stride, part->count, sums, panel, panel, 1);
    else
        NAME(multiply)(product, part->panel, in, stride, part->count, sums, panel, panel, 0);
    for (int64_t i = 0; i < part->count; ++i) {
        const int64_t place = part->first + i, sequence = call->order[place];
        const int64_t row = call->backward ? call->offsets[sequence + 1] - 1 - part->step
                                           : call->offsets[sequence] + part->step;
        const int64_t mine = place * now->hidden_stride + from, c = place * now->cell_stride + from;
        const struct NAME(places) places = {
            .sums = sums + i * panel,
            .u = call->u + (row * call->u_stride + from) * size,
            .before = before + mine,
            .after = after + mine,
            .cell = now->cell + c,
            .between = now->between ? now->between + c : 0,
            .h = call->h + (row * call->h_stride + from) * size,
            .apart = product->channels,
            .plane = call->width * size,
        };
        switch (2 * call->kind + second) {
            KIND(LSTM, 0); KIND(LSTM, 1); KIND(GRU, 0);
            KIND(GRU_RESET_BEFORE, 0); KIND(GRU_RESET_BEFORE, 1);
            KIND(RNN_TANH, 0); KIND(RNN_RELU, 0); KIND(ATR_TANH, 0); KIND(ATR_IDENTITY, 0);
        }
    }
}

#undef KIND
