/* Tensors of a run, counted by those that use them: one run is on one thread. */

struct held {
  int32_t refs; /* -1: a constant, which lives as long as the program */
  int32_t ndim;
  int64_t element; /* bytes of one */
  char *data;
  void *owned;  /* what is given back, or NULL: the memory is somebody else's */
  held *parent; /* whose memory it is a part of, or NULL */
  held *next;   /* what a loop collected before it */
  const int64_t *shape;
};

static held *shaped(int64_t element, const int64_t *shape, int32_t ndim) {
  const size_t bytes = (size_t)ndim * sizeof(int64_t);
  held *const made = (held *)zeros(sizeof *made + bytes);
  if (made == NULL) return NULL;
  made->refs = 1;
  made->ndim = ndim;
  made->element = element;
  made->shape = (const int64_t *)(const void *)(made + 1);
  copy(made + 1, shape, bytes);
  return made;
}

static void drop(held *h) {
  if (h == NULL || h->refs < 0 || --h->refs > 0) return;
  if (h->parent != NULL) drop(h->parent);
  release(h->owned);
  release(h);
}

/* Gives a value to a slot, or to nobody. */
static void put(held **slot, int32_t k, held *h) {
  if (k >= 0) {
    held *const old = slot[k];
    slot[k] = h;
    h = old;
  }
  drop(h);
}

static held *use(held *h) {
  if (h != NULL && h->refs >= 0) ++h->refs;
  return h;
}

static int64_t size_of(const held *h) { return bytes_of(h->shape, h->ndim, h->element); }

/* A tensor with memory of its own, or NULL. */
static held *fresh(int64_t element, const int64_t *shape, int32_t ndim) {
  const int64_t bytes = bytes_of(shape, ndim, element);
  held *const made = bytes < 0 ? NULL : shaped(element, shape, ndim);
  if (made == NULL) return NULL;
  made->owned = made->data = (char *)reserve(64, (uint64_t)bytes);
  if (made->data != NULL) return made;
  drop(made);
  return NULL;
}

/* The bytes of all indices behind an axis, and how many there are before it. */
static int64_t inner(const held *h, int32_t axis) { return bytes_of(h->shape + axis, h->ndim - axis, h->element); }
static int64_t outer(const held *h, int32_t axis) { return bytes_of(h->shape, axis, 1); }

/* A part of a tensor's memory, from a byte on. */
static held *part_of(held *h, const int64_t *shape, int32_t ndim, int64_t from) {
  held *const part = shaped(h->element, shape, ndim);
  if (part == NULL) return NULL;
  part->data = h->data + from;
  part->parent = use(h);
  return part;
}

/* Copies blocks of memory that lie at one distance to where they lie at another. */
static void copy_blocks(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t bytes, int64_t count) {
  for (; count > 0; --count, to += to_step, from += from_step) copy(to, from, (size_t)bytes);
}

/* The k-th slice along an axis; of the first axis it is a part of the tensor's memory. */
static held *slice(held *h, int32_t axis, int64_t k) {
  int64_t shape[MOST_DIMENSIONS];
  for (int32_t i = 0; i + 1 < h->ndim; ++i) shape[i] = h->shape[i < axis ? i : i + 1];
  const int64_t bytes = inner(h, axis + 1);
  if (axis == 0) return part_of(h, shape, h->ndim - 1, k * bytes);
  held *const made = fresh(h->element, shape, h->ndim - 1);
  if (made != NULL) copy_blocks(made->data, bytes, h->data + k * bytes, h->shape[axis] * bytes, bytes, outer(h, axis));
  return made;
}

static int same_shape(const held *a, const held *b) {
  if (a->ndim != b->ndim || a->element != b->element) return 0;
  for (int32_t i = 0; i < a->ndim; ++i)
    if (a->shape[i] != b->shape[i]) return 0;
  return 1;
}

/* Tensors of one shape along a new axis; `last` is the last of them, or the first if they go backward. */
static held *stack(const held *last, int64_t n, int32_t axis, int backward) {
  int64_t shape[MOST_DIMENSIONS + 1];
  for (int32_t i = 0; i <= last->ndim; ++i) shape[i] = i == axis ? n : last->shape[i < axis ? i : i - 1];
  held *const made = fresh(last->element, shape, last->ndim + 1);
  if (made == NULL) return NULL;
  const int64_t bytes = inner(last, axis), count = outer(last, axis);
  for (int64_t k = 0; k < n; ++k, last = last->next) copy_blocks(made->data + (backward ? k : n - 1 - k) * bytes, n * bytes, last->data, bytes, bytes, count);
  return made;
}

/* What a tensor for others is: of an info, in the host's memory, row-major. */
static void set_type(weft_tensor *t, const info *i, int32_t ndim) {
  t->device_type = WEFT_DEVICE_CPU;
  t->device_id = 0;
  t->ndim = ndim;
  t->code = i->code;
  t->bits = i->bits;
  t->lanes = 1;
  t->strides = NULL;
  t->byte_offset = 0;
}
