/* A gated layer over a ragged batch: the loop over time, and the threads that share each step.
 *
 * Any thread may process the parts of a step, in any order. A step's second product waits for all
 * parts of its first, and the next step for all parts of this one. Every thread has the same share
 * of the parts in every step, so that its panels stay in its cache. Then it takes parts that others
 * have not started, so no thread waits for one that has not arrived.
 */

enum { MIN_SHARED = 1 << 18 }; /* fewest multiplications in a step worth sharing (10 us) */
enum { SPINS = 4096 };         /* checks of the others' progress before a thread yields its core */
enum { MAX_THREADS = 64 };

static void (*const GATED[])(const struct progress *, const struct part *) = {
    gated_baseline,
#if defined(__x86_64__)
    gated_avx2,
    gated_avx512,
#endif
};

struct team {
    const struct progress *now;
    void (*run)(const struct progress *, const struct part *);
    int64_t members;
    _Atomic int64_t arrived;
    _Alignas(64) _Atomic int64_t done; /* finished parts of all phases */
    struct {
        _Alignas(64) _Atomic int64_t taken; /* phase << 32 | parts taken of it */
    } shares[MAX_THREADS];
};

static void relax(int64_t turn) {
    if (turn % SPINS == SPINS - 1) {
        sched_yield();
        return;
    }
#if defined(__x86_64__)
    _mm_pause();
#endif
}

/* Take the next part of a share in this phase; returns -1 if none is left. */
static int64_t take(_Atomic int64_t *taken, int64_t phase, int64_t parts) {
    int64_t seen = atomic_load_explicit(taken, memory_order_relaxed);
    for (;;) {
        if (seen >> 32 > phase) return -1;
        const int64_t next = seen >> 32 == phase ? seen & 0xffffffff : 0;
        if (next >= parts) return -1;
        if (atomic_compare_exchange_weak_explicit(taken, &seen, phase << 32 | (next + 1),
                                                  memory_order_relaxed, memory_order_relaxed))
            return next;
    }
}

static int64_t parts_of(const struct product *product, int64_t active) {
    return product->panels * ((active + MAX_SEQUENCES - 1) / MAX_SEQUENCES);
}

static void do_phase(struct team *team, int64_t me, int64_t phase, const struct part *of,
                     int64_t active) {
    const struct product *product = &team->now->products[of->product];
    const int64_t groups = (active + MAX_SEQUENCES - 1) / MAX_SEQUENCES;
    const int64_t parts = parts_of(product, active);
    for (int64_t i = 0; i < team->members; ++i) {
        const int64_t share = (me + i) % team->members;
        const int64_t first = parts * share / team->members;
        const int64_t count = parts * (share + 1) / team->members - first;
        for (;;) {
            const int64_t next = take(&team->shares[share].taken, phase, count);
            if (next < 0) break;
            struct part part = *of;
            part.panel = (first + next) / groups;
            part.first = (first + next) % groups * MAX_SEQUENCES;
            const int64_t left = active - part.first;
            part.count = left < MAX_SEQUENCES ? left : MAX_SEQUENCES;
            team->run(team->now, &part);
            atomic_fetch_add_explicit(&team->done, 1, memory_order_release);
        }
    }
}

static int64_t length(const struct gated *g, int64_t place) {
    return g->offsets[g->order[place] + 1] - g->offsets[g->order[place]];
}

static void join(void *data) {
    struct team *team = data;
    const struct gated *g = team->now->call;
    const int64_t me = atomic_fetch_add(&team->arrived, 1) % team->members;
    const int64_t steps = length(g, 0);
    int64_t active = g->sequences, before = 0, phase = 1;
    for (int64_t step = 0; step < steps; ++step) {
        while (length(g, active - 1) <= step) --active;
        for (int64_t p = 0; p < (g->second ? 2 : 1); ++p, ++phase) {
            for (int64_t turn = 0;
                 atomic_load_explicit(&team->done, memory_order_acquire) < before; ++turn)
                relax(turn);
            do_phase(team, me, phase, &(struct part){.step = step, .product = p}, active);
            before += parts_of(&team->now->products[p], active);
        }
    }
}

static struct product laid_out(const char *weight, const float *bias, int64_t inputs,
                               int64_t outputs, int64_t gates) {
    struct product p = {weight, bias, inputs, outputs, gates, gates == 3 ? 3 : 4, 0, 0};
    p.channels = GROUP * p.groups / gates;
    p.panels = (outputs + p.channels - 1) / p.channels;
    return p;
}

/* Copy h and c of every sequence from its source row, or (`out`) to its target row at the end. */
static void move_states(const struct progress *now, int out) {
    const struct gated *g = now->call;
    for (int64_t place = 0; place < g->sequences; ++place) {
        const int64_t sequence = g->order[place], end = out ? length(g, place) & 1 : 0;
        const int64_t row = out ? g->target[sequence] : g->source[sequence];
        float *h = now->hidden[end] + place * now->hidden_stride;
        float *c = now->cell + place * now->cell_stride;
        float *state = g->states + row * g->state_width;
        const size_t h_bytes = g->inputs * sizeof *h, c_bytes = g->width * sizeof *c;
        if (out && row >= 0) {
            memcpy(state + g->column, h, h_bytes);
            if (g->kind == LSTM) memcpy(state + g->cell_column, c, c_bytes);
        } else if (!out && row >= 0) {
            memcpy(h, state + g->column, h_bytes);
            if (g->kind == LSTM) memcpy(c, state + g->cell_column, c_bytes);
        } else if (!out) {
            memset(h, 0, h_bytes);
            memset(c, 0, c_bytes);
        }
    }
}

static int check_gated(const struct gated *g, int64_t needed) {
    if (g->column < 0 || g->column + g->inputs > g->state_width) return BAD_COLUMN;
    if (g->kind == LSTM && (g->cell_column < 0 || g->cell_column + g->width > g->state_width))
        return BAD_COLUMN;
    if (g->offsets[0] != 0 || g->offsets[g->sequences] > g->rows) return BAD_OFFSETS;
    for (int64_t i = 0; i < g->sequences; ++i) {
        if (g->offsets[i + 1] < g->offsets[i]) return BAD_OFFSETS;
        if (g->source[i] < -1 || g->source[i] >= g->state_rows) return BAD_ROW;
        if (g->target[i] < -1 || g->target[i] >= g->state_rows) return BAD_ROW;
        if (g->order[i] < 0 || g->order[i] >= g->sequences) return BAD_OFFSETS;
        if (i && length(g, i) > length(g, i - 1)) return BAD_OFFSETS;
    }
    return needed > g->work_size ? BAD_WORK : OK;
}

/* Run one direction of a layer over a ragged batch. Writes nothing unless it returns OK. */
EXPORT int sru_gated(const struct gated *g) {
    static const int64_t gates[] = {4, 3, 2, 1, 1, 1, 1};
    const int64_t around = GROUP - 1, hidden = (g->inputs + around) / GROUP * GROUP;
    const int64_t cell = (g->width + around) / GROUP * GROUP, n = g->sequences;
    const int bad = check_gated(g, n * 2 * (hidden + cell));
    if (bad || !n) return bad;
    const struct progress now = {
        .call = g,
        .products = {laid_out(g->weight, g->bias, g->inputs, g->width, gates[g->kind]),
                     laid_out(g->second, g->second_bias, g->width, g->inputs, 1)},
        .hidden = {g->work, g->work + n * hidden},
        .cell = g->work + 2 * n * hidden,
        .between = g->second ? g->work + n * (2 * hidden + cell) : NULL,
        .hidden_stride = hidden,
        .cell_stride = cell,
    };
    struct team team = {.now = &now, .run = GATED[current()], .members = 1};
    move_states(&now, 0);
    const int64_t work = n * g->inputs * g->width * gates[g->kind];
    if (g->threads < 2 || !run_parallel || work < MIN_SHARED) {
        join(&team);
    } else {
        team.members = g->threads < MAX_THREADS ? g->threads : MAX_THREADS;
        run_parallel(join, &team, (unsigned)g->threads, 0);
    }
    move_states(&now, 1);
    return OK;
}
