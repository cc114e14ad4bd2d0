/* One time step of a gated layer: the data that its arithmetic and its threads share. */

enum { GROUP = 16 };         /* fewest adjacent columns of a panel that belong to one gate */
enum { MAX_SEQUENCES = 48 }; /* that one pass over a panel serves */
enum { DEPTH = 128 };        /* inputs of a panel that stay in the L1 cache for all of these */

enum { LSTM, GRU, GRU_RESET_BEFORE, RNN_TANH, RNN_RELU, ATR_TANH, ATR_IDENTITY };

/* The arguments of `reference_gated_scan`, in the order in which `gated.py` packs them. */
struct gated {
    const char *u;
    char *h;
    const char *weight, *second; /* in panels; second: NULL if a step has one product */
    const float *bias, *second_bias; /* or NULL */
    float *states;
    const int64_t *offsets, *source, *target;
    const int64_t *order; /* the sequences, longest first */
    float *work;
    int64_t work_size; /* floats */
    int64_t rows, sequences, state_rows, state_width, column, cell_column;
    int64_t width, inputs; /* inputs: those of the product, the channels of h */
    int64_t u_stride, h_stride; /* numbers between rows */
    int64_t kind, backward, bfloat16, threads;
};

_Static_assert(sizeof(struct gated) == 27 * 8, "Python packs 27 fields of 8 bytes");

/* The first or second product of a step. A panel holds all gates of `channels` channels. */
struct product {
    const char *weight;
    const float *bias;
    int64_t inputs, outputs; /* outputs: channels, of `gates` columns each */
    int64_t gates, groups;   /* a panel is `groups` groups wide */
    int64_t channels, panels;
};

/* A call in progress. Sequences are sorted by `order`; each has a row in every buffer. */
struct progress {
    const struct gated *call;
    struct product products[2];
    float *hidden[2]; /* h, by the parity of the step that reads it */
    float *cell;      /* c of an LSTM; z of a GRU that resets before the product */
    float *between;   /* the input of the second product */
    int64_t hidden_stride, cell_stride;
};

/* Part of a step: a run of sequences, and one panel of a product. */
struct part {
    int64_t step, product, panel, first, count;
};

/* The product of a matrix: contiguous rows of `in` times a packed weight. */
struct matrix {
    const float *in;
    float *out;
    struct product product; /* of one gate */
    int64_t rows;
};

/* A norm of rows; weight: NULL if there is none, bias: NULL without one. `kind` as in `norm.py`. */
struct norm {
    const float *weight, *bias;
    int64_t kind;
    double epsilon;
};

enum { LAYER, UNBIASED, STD, RMS };

static const float ONES[GROUP] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
