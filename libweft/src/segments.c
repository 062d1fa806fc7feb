/* Calls of native segments, and what their errors mean. */

struct call {
  weft_context context; /* first: what a segment gives to functions of the runtime is the call */
  call *next;
  weft_tensor **out;
  const weft_tensor **in;
  weft_tensor *tensors; /* inputs, then outputs */
  int64_t *sizes;       /* of outputs */
  void **table;         /* of constants */
};

static void *call_arena(weft_context *context, int64_t bytes) {
  if (bytes < 0 || bytes > LARGEST) return NULL;
  const int64_t whole = (bytes + 4096) & ~(int64_t)4095;
  char *const made = (char *)reserve(whole >= 4 << 20 ? 65536 : 64, (uint64_t)whole);
  if (made == NULL) return NULL;
  copy(made, context->arena, context->arena == NULL ? 0 : (size_t)context->arena_bytes);
  release(context->arena);
  context->arena = made;
  context->arena_bytes = whole;
  return made;
}

static int32_t call_output(weft_context *context, int64_t index, int64_t rank, const int64_t *shape) {
  weft_tensor *const t = ((call *)(void *)context)->out[index];
  for (int64_t i = 0; i < rank; ++i) t->shape[i] = shape[i];
  const int64_t bytes = bytes_of(shape, (int32_t)rank, t->bits < 8 ? 1 : t->bits / 8);
  t->data = bytes < 0 ? NULL : reserve(64, (uint64_t)bytes);
  return t->data == NULL;
}

static void lock(int32_t *at) {
  while (__atomic_exchange_n(at, 1, __ATOMIC_ACQUIRE) != 0) continue;
}
static void unlock(int32_t *at) { __atomic_store_n(at, 0, __ATOMIC_RELEASE); }

static const info *infos_of(const weft_program *p, const plan *of) { return ROWS(p, info, of->infos); }

static call *new_call(const weft_program *p, const plan *of, const step *st) {
  const info *const infos = infos_of(p, of);
  const int32_t *const in = ROWS(p, int32_t, st->in), *const out = ROWS(p, int32_t, st->out);
  const int32_t ins = st->in.count, outs = st->out.count;
  const size_t n = (size_t)(ins + outs);
  uint64_t sizes = 0; /* 64 bits: a long list of slots with many dimensions each must not wrap around */
  for (int32_t i = 0; i < outs; ++i) sizes += (uint64_t)infos[out[i]].sizes.count;
  call *const c = (call *)zeros(sizeof(call) + (uint64_t)n * (sizeof(weft_tensor) + sizeof(void *)) + sizes * sizeof(int64_t) + (uint64_t)st->constants.count * sizeof(void *));
  if (c == NULL) return NULL;
  c->tensors = (weft_tensor *)(void *)(c + 1);
  c->sizes = (int64_t *)(void *)(c->tensors + n);
  c->in = (const weft_tensor **)(void *)(c->sizes + sizes);
  c->out = (weft_tensor **)(uintptr_t)(c->in + ins);
  c->table = (void **)(c->out + outs);
  for (int32_t i = 0; i < st->constants.count; ++i) c->table[i] = p->constants[ROWS(p, int32_t, st->constants)[i]].data;
  sizes = 0;
  for (int32_t i = 0; i < ins + outs; ++i) {
    weft_tensor *const t = &c->tensors[i];
    const info *const k = &infos[i < ins ? in[i] : out[i - ins]];
    set_type(t, k, k->sizes.count);
    if (i < ins) c->in[i] = t;
    else {
      c->out[i - ins] = t;
      t->shape = c->sizes + sizes;
      sizes += (uint64_t)k->sizes.count;
    }
  }
  weft_context *const x = &c->context;
  x->version = WEFT_ABI_VERSION;
  x->constants = c->table;
  x->parallel_for = p->threads > 0 ? p->parallel_for : NULL;
  x->allocate_arena = call_arena;
  x->allocate_output = call_output;
  x->imports = weft_sys.imports; /* workers read it after the program is closed, too */
  x->pool = p->workers;
  x->threads = p->threads;
  return c;
}

static void end_call(call *c) {
  release(c->context.arena);
  release(c);
}

static int32_t unready(const scope *s) { return fail(s, ARCHIVE "a step" OF_NAME " needs a value that no step before it gives", NULL); }

/* What the codes of a segment mean, in order from 1 on: %0 to %7 are its numbers, %i an input or output, %j a kernel. */
static const char MEANINGS[] =
    INPUT THE_INPUT " has another rank or dtype\0"
    INPUT THE_INPUT HAS_SIZE "%3" ON_AXIS "%1, expected %2\0"
    OUTPUT STORAGE_FOR "'%i'" OF_NAME HAS_SIZE "%3" ON_AXIS "%1" RESULT_HAS "%2\0"
    MEMORY NO_MEMORY "intermediate results" OF_NAME ": %0 bytes" HINT_SMALLER "\0"
    MEMORY NO_MEMORY "output '%i'" OF_NAME "\0"
    RUN "kernel '%j'" OF_NAME " failed" WHY "it returned %1\0"
    INPUT THE_INPUT " has %2 elements, element %1 is needed\0"
    RUN "a size that %j" OF_NAME " needs is beyond 64 bits" HINT_SMALLER;

static int32_t segment_failed(const scope *s, const plan *of, const step *st, const weft_context *x, int32_t returned) {
  const weft_program *const p = s->program;
  int64_t code = x->error_code != 0 ? x->error_code : returned, args[WEFT_ERROR_ARGS + 2];
  const list *const ends = code == WEFT_OUTPUT_SIZE || code == WEFT_OUTPUT_ALLOCATION ? &st->out : &st->in;
  const uint64_t k = (uint64_t)x->error_args[0];
  copy(args, x->error_args, sizeof x->error_args);
  args[8] = WORD(k < (uint64_t)ends->count ? TEXT(p, infos_of(p, of)[ROWS(p, int32_t, *ends)[k]].name) : "?");
  args[9] = WORD(k < (uint64_t)st->items.count ? TEXT(p, ROWS(p, uint32_t, st->items)[k]) : "the start");
  if (code >= WEFT_INPUT_TYPE && code <= WEFT_OVERFLOW) {
    const char *text = MEANINGS;
    while (--code > 0) text += length(text) + 1;
    return fail(s, text, args);
  }
  for (int32_t i = 0; i < st->checks.count; ++i) {
    const check *const c = &ROWS(p, check, st->checks)[i];
    if (c->code == code) return tell(s, WEFT_ERROR_RUN, TEXT(p, c->text), args, 0);
  }
  return fail(s, RUN "'%n' failed with code %0", &code);
}

/* The caller's tensor with storage for the value of a slot, or NULL. */
static const weft_tensor *storage_of(const plan *of, weft_tensor *const *storage, int32_t slot) {
  const int32_t k = slot - (of->infos.count - of->outs);
  return storage != NULL && k >= 0 && storage[k]->data != NULL ? storage[k] : NULL;
}

/* Runs a native step. `storage` is, for each output of the plan, the caller's tensor; NULL: there are none. */
static int32_t run_native(const scope *s, const plan *of, const step *st, held **slot, weft_tensor *const *storage) {
  const weft_program *const p = s->program;
  const info *const infos = infos_of(p, of);
  const int32_t *const in = ROWS(p, int32_t, st->in), *const out = ROWS(p, int32_t, st->out);
  native *const n = &p->natives[st->of.native.number];
  int32_t result = WEFT_OK;
  lock(&n->lock);
  call *c = n->free;
  if (c != NULL) n->free = c->next;
  unlock(&n->lock);
  if (c == NULL && (c = new_call(p, of, st)) == NULL) return no_memory(s, sizeof *c);
  for (int32_t i = 0; i < st->in.count; ++i) {
    const held *const h = slot[in[i]];
    weft_tensor *const t = &c->tensors[i];
    if (h == NULL || h->ndim != t->ndim || h->element != infos[in[i]].element) result = unready(s);
    else {
      t->data = h->data;
      t->shape = (int64_t *)(uintptr_t)h->shape;
    }
  }
  for (int32_t i = 0; i < st->out.count; ++i) {
    const weft_tensor *const t = storage_of(of, storage, out[i]);
    c->out[i]->data = NULL;
    if (t == NULL) continue;
    c->out[i]->data = (char *)t->data + t->byte_offset;
    copy(c->out[i]->shape, t->shape, (size_t)t->ndim * sizeof(int64_t));
  }
  if (result == WEFT_OK) {
    const int32_t returned = n->run(&c->context, c->in, c->out);
    if (returned != 0) result = segment_failed(s, of, st, &c->context, returned);
  }
  for (int32_t i = 0; i < st->out.count; ++i) {
    weft_tensor *const t = c->out[i];
    const int theirs = storage_of(of, storage, out[i]) != NULL;
    held *const h = result == WEFT_OK ? shaped(infos[out[i]].element, t->shape, t->ndim) : NULL;
    if (h == NULL) {
      if (!theirs) release(t->data);
      if (result == WEFT_OK) result = no_memory(s, t->ndim);
      continue;
    }
    h->data = (char *)t->data;
    if (!theirs) h->owned = t->data;
    put(slot, out[i], h);
  }
  c->context.error_code = 0;
  lock(&n->lock);
  c->next = n->free;
  n->free = c;
  unlock(&n->lock);
  return result;
}
