/* One time step of a gated layer: what its arithmetic and its threads share. */

enum { GROUP = 16 };       /* neighbouring columns of a panel that belong to one gate, at least */
enum { COMPANY = 48 };     /* most sequences that one visit to a panel serves */
enum { DEPTH = 128 };      /* inputs of a panel that stay in the L1 cache for all of a company */

enum { LSTM, GRU, GRU_RESET_BEFORE, RNN_TANH, RNN_RELU, ATR_TANH, ATR_IDENTITY };

/* The arguments of `reference_gated_scan`, as `cpu_gated.py` packs them. */
struct gated {
    const char *u;
    char *h;
    const char *weight, *second; /* in panels; second: NULL where a step is one product */
    const float *bias, *second_bias; /* or NULL */
    float *states;
    const int64_t *offsets, *source, *target;
    const int64_t *order; /* the sequences, longest first */
    float *work;
    int64_t work_size; /* floats */
    int64_t rows, sequences, state_rows, state_width, column, cell_column;
    int64_t width, inputs; /* inputs: of the product, and so of h */
    int64_t u_stride, h_stride; /* numbers from one row to the next */
    int64_t kind, backward, bfloat16, threads;
};

_Static_assert(sizeof(struct gated) == 27 * 8, "Python packs 27 fields of 8 bytes");

/* The product of a step, or its second one. Panels hold all gates of `channels` channels. */
struct product {
    const char *weight;
    const float *bias;
    int64_t inputs, outputs; /* outputs: channels, of `gates` columns each */
    int64_t gates, groups;   /* a panel is `groups` groups wide */
    int64_t channels, panels;
};

/* A call in progress. Sequences stand in the order of `order`; each has a row in every buffer. */
struct progress {
    const struct gated *call;
    struct product products[2];
    float *hidden[2]; /* h, by the parity of the step that reads it */
    float *cell;      /* c of an LSTM; z of a GRU that resets first */
    float *between;   /* what the second product reads */
    int64_t hidden_stride, cell_stride;
};

/* Part of a step: a run of sequences, and one panel of a product. */
struct part {
    int64_t step, product, panel, first, count;
};
