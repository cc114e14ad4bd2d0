/* A stack of element-wise layers over a ragged batch in one call: norms, products and recurrences
 * follow each other without Python, and without its lock, between them.
 */

/* A weight in panels of float32, or with a scale in groups of int8; NULL if there is none. */
struct layer_weight {
    const char *numbers;
    const float *bias, *scale;
    const int32_t *correction; /* with a scale */
};

/* The tensors and switches of a layer, as in `layer.py`. */
struct layer {
    struct layer_weight weight, projection;
    const float *weight_c, *gate_bias;
    struct norm before, inner, after;
    int64_t inputs, projected, blocks, width, column, backward_from;
    int64_t kind, activation, updated_reset, highway_is_input;
    double scale, keep;
};

/* The arguments of a call, in the order in which `stack.py` packs them. */
struct stack {
    const struct layer *layers;
    const float *x;     /* (rows, inputs), or NULL: rows of `table` by `ids` */
    const float *table; /* (vocabulary, inputs) */
    const int64_t *ids; /* (rows) */
    const float *projected; /* (vocabulary, the first layer's columns), `table` as `sru_project`
                             * computes it, or NULL */
    float *out;         /* (rows, the last layer's width) */
    float *states;
    const int64_t *offsets, *source, *target;
    float *work;
    int64_t count, rows, inputs, vocabulary;
    int64_t sequences, state_rows, state_width;
    int64_t widest, columns; /* of all rows between layers, and of all products */
    int64_t work_size;       /* floats */
    int64_t threads;
    int64_t slice; /* rows; see `slices.h`; 0: threads share each product */
};

_Static_assert(sizeof(struct layer) == 34 * 8, "Python packs 34 fields of 8 bytes");
_Static_assert(sizeof(struct stack) == 23 * 8, "Python packs 23 fields of 8 bytes");

static void (*const NORMALIZE[])(const struct norm *, const float *, float *, int64_t, int64_t) = {
    normalize_baseline,
#if defined(__x86_64__)
    normalize_avx2,
    normalize_avx512,
#endif
};

static void multiply_rows(const struct stack *s, const float *in, const struct layer_weight *w,
                          int64_t inputs, int64_t outputs, float *out) {
    if (w->scale) {
        const struct integer_weight weight = {(const int8_t *)w->numbers, w->scale, w->bias,
                                              w->correction, inputs, outputs};
        float *work = s->work + s->rows * (4 * s->widest + s->columns);
        multiply_integers(&weight, in, out, s->rows, work, s->threads);
        return;
    }
    const struct matrix m = {in, out, laid_out(w->numbers, w->bias, inputs, outputs, 1), s->rows};
    multiply_matrix(&m, s->threads);
}

static struct scan scan_of(const struct stack *s, const struct layer *l) {
    return (struct scan){
        .weight_c = l->weight_c,
        .bias = l->gate_bias,
        .states = s->states,
        .offsets = s->offsets,
        .source = s->source,
        .target = s->target,
        .rows = s->rows,
        .blocks = l->blocks,
        .width = l->width,
        .sequences = s->sequences,
        .state_rows = s->state_rows,
        .state_width = s->state_width,
        .column = l->column,
        .backward_from = l->backward_from,
        .kind = l->kind,
        .activation = l->activation,
        .updated_reset = l->updated_reset,
        .threads = s->threads,
        .scale = l->scale,
        .keep = l->keep,
    };
}

/* Compute everything of a layer that needs no earlier h: u (rows, columns). */
static void project(const struct stack *s, const struct layer *l, const float *in, float *u) {
    const int64_t columns = l->blocks * l->width, space = s->rows * s->widest;
    float *normed = s->work + 2 * space, *projected = normed + space;
    const float *z = in;
    if (l->before.weight) {
        NORMALIZE[current()](&l->before, z, normed, s->rows, l->inputs);
        z = normed;
    }
    if (l->projection.numbers) {
        multiply_rows(s, z, &l->projection, l->inputs, l->projected, projected);
        z = projected;
    }
    multiply_rows(s, z, &l->weight, l->projection.numbers ? l->projected : l->inputs, columns, u);
    if (l->inner.weight) NORMALIZE[current()](&l->inner, u, u, s->rows, columns);
}

/* Pick the row of each id from a table with rows of `width`. */
static void pick_rows(const struct stack *s, const float *table, int64_t width, float *rows) {
    for (int64_t row = 0; row < s->rows; ++row)
        memcpy(rows + row * width, table + s->ids[row] * width, width * sizeof *rows);
}

/* Run all layers of a stack that was checked. */
static void run_layers(const struct stack *s) {
    float *between[] = {s->work, s->work + s->rows * s->widest};
    float *u = s->work + 4 * s->rows * s->widest;
    const float *x = s->x;
    for (int64_t i = 0; i < s->count; ++i) {
        const struct layer *l = &s->layers[i];
        float *out = i + 1 < s->count ? between[(i + 1) & 1] : s->out;
        const int picked = !x && s->projected;
        if (picked) pick_rows(s, s->projected, l->blocks * l->width, u);
        if (!x && (!picked || l->highway_is_input)) {
            pick_rows(s, s->table, s->inputs, between[0]);
            x = between[0];
        }
        if (!picked) project(s, l, x, u);
        struct scan scan = scan_of(s, l);
        scan.u = (const char *)u;
        scan.residual = l->highway_is_input ? (const char *)x : NULL;
        scan.h = (char *)out;
        run_scan(&scan);
        if (l->after.weight) NORMALIZE[current()](&l->after, out, out, s->rows, l->width);
        x = out;
    }
}
