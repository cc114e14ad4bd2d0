/* The call of a stack, whose threads may take slices of it: whole sequences, of `slice` rows
 * together, or a longer one. A slice goes through all layers in the cache of one core, so nobody
 * waits for other threads between two layers, and they share the norms, too.
 */

enum { MAX_SLICE = 256 }; /* sequences */

struct slices {
    const struct stack *stack;
    int64_t work; /* floats of each thread */
    _Atomic int64_t next, arrived;
};

/* The end of the slice that begins with a sequence. */
static int64_t end_of_slice(const struct stack *s, int64_t first) {
    const int64_t most = s->offsets[first] + s->slice;
    int64_t end = first + 1;
    while (end < s->sequences && end - first < MAX_SLICE && s->offsets[end + 1] <= most) ++end;
    return end;
}

static void run_slice(const struct stack *s, int64_t first, int64_t end, float *work) {
    const int64_t row = s->offsets[first];
    int64_t offsets[MAX_SLICE + 1];
    for (int64_t i = first; i <= end; ++i) offsets[i - first] = s->offsets[i] - row;
    struct stack slice = *s;
    if (s->x) slice.x += row * s->inputs;
    else slice.ids += row;
    slice.out += row * s->layers[s->count - 1].width;
    slice.offsets = offsets;
    slice.source += first;
    slice.target += first;
    slice.work = work;
    slice.rows = offsets[end - first];
    slice.sequences = end - first;
    slice.threads = 1;
    run_layers(&slice);
}

static void take_slices(void *data) {
    struct slices *slices = data;
    const struct stack *s = slices->stack;
    float *work = s->work + atomic_fetch_add(&slices->arrived, 1) * slices->work;
    int64_t first = atomic_load(&slices->next);
    while (first < s->sequences) {
        const int64_t end = end_of_slice(s, first);
        if (!atomic_compare_exchange_weak(&slices->next, &first, end)) continue;
        run_slice(s, first, end, work);
        first = atomic_load(&slices->next);
    }
}

/* Floats of work memory that a layer needs for so many rows. */
static int64_t work_of(const struct stack *s, const struct layer *l, int64_t rows) {
    const int64_t last = l->projection.numbers ? l->projected : l->inputs;
    int64_t bytes = l->weight.scale ? integer_work(rows, last) : 0;
    const int64_t first = l->projection.scale ? integer_work(rows, l->inputs) : 0;
    if (first > bytes) bytes = first;
    return rows * (4 * s->widest + s->columns) + bytes;
}

/* Rows that one thread computes at a time, at most. */
static int64_t rows_at_a_time(const struct stack *s) {
    if (!s->slice) return s->rows;
    int64_t rows = s->slice;
    for (int64_t i = 0; i < s->sequences; ++i)
        if (rows < s->offsets[i + 1] - s->offsets[i]) rows = s->offsets[i + 1] - s->offsets[i];
    return rows;
}

static int check_stack(const struct stack *s) {
    for (int64_t i = 0; i < s->count; ++i) {
        const struct scan scan = scan_of(s, &s->layers[i]);
        const int bad = check(&scan);
        if (bad) return bad;
    }
    const int64_t rows = rows_at_a_time(s), work = s->work_size / (s->slice ? s->threads : 1);
    for (int64_t i = 0; i < s->count; ++i)
        if (work_of(s, &s->layers[i], rows) > work) return BAD_WORK;
    if (!s->x)
        for (int64_t row = 0; row < s->rows; ++row)
            if (s->ids[row] < 0 || s->ids[row] >= s->vocabulary) return BAD_ID;
    return OK;
}

/* Run all layers. Writes nothing unless it returns OK. */
EXPORT int sru_stack(const struct stack *s) {
    const int bad = check_stack(s);
    if (bad) return bad;
    struct slices slices = {.stack = s, .work = s->work_size / s->threads};
    if (!s->slice) run_layers(s);
    else if (s->threads < 2 || !run_parallel) take_slices(&slices);
    else run_parallel(take_slices, &slices, (unsigned)s->threads, 0);
    return OK;
}

/* Project the rows of `x` by the first layer into `out`, (rows, columns): what a stack picks from by
 * id instead of projecting a row each time it is read. Writes nothing unless it returns OK.
 */
EXPORT int sru_project(const struct stack *s) {
    if (work_of(s, s->layers, s->rows) > s->work_size) return BAD_WORK;
    project(s, s->layers, s->x, s->out);
    return OK;
}
