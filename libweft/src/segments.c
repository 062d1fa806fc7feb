/* Calls of native segments, and what their errors mean. */

struct call {
  weft_context context; /* first: what a segment gives to functions of the runtime is the call */
  call *next;
  const step *step;
  weft_tensor **out;
  const weft_tensor **in;
  weft_tensor *tensors; /* inputs, then outputs */
  int64_t *sizes;       /* of outputs */
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

static call *new_call(const weft_program *p, const plan *of, const step *s) {
  const size_t n = (size_t)(s->ins + s->outs);
  size_t sizes = 0;
  for (int32_t i = 0; i < s->outs; ++i) sizes += (size_t)of->infos[s->out[i]].ndim;
  const size_t bytes = sizeof(call) + n * (sizeof(weft_tensor) + sizeof(void *)) + (sizes + 1) * sizeof(int64_t);
  call *const c = (call *)reserve(16, bytes);
  if (c == NULL) return NULL;
  zero(c, bytes);
  c->step = s;
  c->tensors = (weft_tensor *)(void *)(c + 1);
  c->sizes = (int64_t *)(void *)(c->tensors + n);
  c->in = (const weft_tensor **)(void *)(c->sizes + sizes + 1);
  c->out = (weft_tensor **)(uintptr_t)(c->in + s->ins);
  sizes = 0;
  for (int32_t i = 0; i < s->ins + s->outs; ++i) {
    weft_tensor *const t = &c->tensors[i];
    const info *const k = &of->infos[i < s->ins ? s->in[i] : s->out[i - s->ins]];
    t->device_type = WEFT_DEVICE_CPU;
    t->ndim = k->ndim;
    t->code = k->code;
    t->bits = k->bits;
    t->lanes = 1;
    if (i < s->ins) c->in[i] = t;
    else {
      c->out[i - s->ins] = t;
      t->shape = c->sizes + sizes;
      sizes += (size_t)k->ndim;
    }
  }
  weft_context *const x = &c->context;
  x->version = WEFT_ABI_VERSION;
  x->constants = s->table;
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

/* A template of the manifest with {0} ... {7} replaced. */
static size_t append_template(char *message, size_t at, size_t room, const char *text, const int64_t *args) {
  while (*text != 0) {
    if (text[0] == '{' && text[1] >= '0' && text[1] <= '7' && text[2] == '}') {
      at = append_number(message, at, room, args[text[1] - '0']);
      text += 3;
      continue;
    }
    char one[5] = {*text++, 0, 0, 0, 0};
    for (int k = 1; k < 4 && ((unsigned char)*text & 0xC0) == 0x80; ++k) one[k] = *text++;
    at = append(message, at, room, one);
  }
  return at;
}

static const char *item(const step *s, int64_t k) { return k >= 0 && k < s->item_count ? s->items[k] : "the start"; }

static int32_t segment_failed(const weft_program *p, const plan *of, const step *s, const weft_context *x, int32_t returned, weft_error *error) {
  const int64_t code = x->error_code != 0 ? x->error_code : returned, *const a = x->error_args;
  const int in = a[0] >= 0 && a[0] < s->ins, out = a[0] >= 0 && a[0] < s->outs;
  const char *const input = in ? of->infos[s->in[a[0]]].name : "?", *const output = out ? of->infos[s->out[a[0]]].name : "?";
  switch (code) {
    case WEFT_INPUT_TYPE:
      return fail(error, WEFT_ERROR_INPUT, "input '%s' of '%s' has another rank or dtype", WORDS(input, p->name), NULL);
    case WEFT_INPUT_SIZE:
      return fail(error, WEFT_ERROR_INPUT, "input '%s' of '%s' has size %d on axis %d, expected %d", WORDS(input, p->name), NUMBERS(a[3], a[1], a[2]));
    case WEFT_OUTPUT_SIZE:
      return fail(error, WEFT_ERROR_OUTPUT, "storage for output '%s' of '%s' has size %d on axis %d, the result has %d", WORDS(output, p->name), NUMBERS(a[3], a[1], a[2]));
    case WEFT_ARENA:
      return fail(error, WEFT_ERROR_MEMORY, "no memory for intermediate results of '%s': %d bytes\nhint: run smaller inputs", WORDS(p->name), NUMBERS(a[0]));
    case WEFT_OUTPUT_ALLOCATION:
      return fail(error, WEFT_ERROR_MEMORY, "no memory for output '%s' of '%s'", WORDS(output, p->name), NULL);
    case WEFT_KERNEL:
      return fail(error, WEFT_ERROR_RUN, "kernel '%s' of '%s' failed\nwhy: it returned %d", WORDS(item(s, a[0]), p->name), NUMBERS(a[1]));
    case WEFT_DATA_SIZE:
      return fail(error, WEFT_ERROR_INPUT, "input '%s' of '%s' has %d elements, element %d is needed", WORDS(input, p->name), NUMBERS(a[2], a[1]));
    case WEFT_OVERFLOW:
      return fail(error, WEFT_ERROR_RUN, "a size that %s of '%s' needs is beyond 64 bits\nhint: run smaller inputs", WORDS(item(s, a[0]), p->name), NULL);
    default:
      break;
  }
  for (int32_t k = 0; k < s->check_count; ++k)
    if (s->checks[k].code == code) {
      fail(error, WEFT_ERROR_RUN, "", NULL, NULL);
      if (error == NULL || error->size < sizeof *error) return WEFT_ERROR_RUN;
      size_t at = append_template(error->message, 0, sizeof error->message, s->checks[k].what, a);
      if (s->checks[k].hint[0] != 0) {
        at = append(error->message, at, sizeof error->message, "\nhint: ");
        append_template(error->message, at, sizeof error->message, s->checks[k].hint, a);
      }
      return WEFT_ERROR_RUN;
    }
  return fail(error, WEFT_ERROR_RUN, "'%s' failed with code %d", WORDS(p->name), NUMBERS(code));
}

static int32_t unready(const weft_program *p, weft_error *error) {
  return fail(error, WEFT_ERROR_ARCHIVE, "a step of '%s' needs a value that no step before it gives", WORDS(p->name), NULL);
}

/* Runs a native step. `storage` is, for each output of the plan, the caller's tensor or NULL. */
static int32_t run_native(const weft_program *p, const plan *of, step *s, held **slot, weft_tensor *const *storage, weft_error *error) {
  int32_t result = WEFT_OK;
  for (int32_t i = 0; i < s->ins; ++i)
    if (slot[s->in[i]] == NULL) return unready(p, error);
  lock(&s->lock);
  call *c = s->free;
  if (c != NULL) s->free = c->next;
  unlock(&s->lock);
  if (c == NULL && (c = new_call(p, of, s)) == NULL) return no_memory(error, sizeof *c);
  for (int32_t i = 0; i < s->ins; ++i) {
    held *const h = slot[s->in[i]];
    c->tensors[i].data = h->data;
    c->tensors[i].shape = h->shape;
    if (h->ndim != c->tensors[i].ndim || h->element != of->infos[s->in[i]].element) result = unready(p, error);
  }
  for (int32_t i = 0; i < s->outs; ++i) {
    const int32_t k = s->out[i] - (of->slots - of->outs);
    const weft_tensor *const t = storage != NULL && k >= 0 ? storage[k] : NULL;
    c->out[i]->data = t != NULL && t->data != NULL ? (char *)t->data + t->byte_offset : NULL;
    if (c->out[i]->data != NULL)
      for (int32_t d = 0; d < t->ndim; ++d) c->out[i]->shape[d] = t->shape[d];
  }
  if (result == WEFT_OK) {
    const int32_t returned = s->run(&c->context, c->in, c->out);
    if (returned != 0) result = segment_failed(p, of, s, &c->context, returned, error);
  }
  for (int32_t i = 0; i < s->outs; ++i) {
    weft_tensor *const t = c->out[i];
    const int32_t k = s->out[i] - (of->slots - of->outs);
    const int theirs = storage != NULL && k >= 0 && storage[k] != NULL && storage[k]->data != NULL;
    held *const h = result == WEFT_OK ? shaped(of->infos[s->out[i]].element, t->shape, t->ndim) : NULL;
    if (h == NULL) {
      if (!theirs) release(t->data);
      if (result == WEFT_OK) result = no_memory(error, t->ndim);
      continue;
    }
    h->data = (char *)t->data;
    if (!theirs) h->owned = t->data;
    drop(slot[s->out[i]]);
    slot[s->out[i]] = h;
  }
  c->context.error_code = 0;
  lock(&s->lock);
  c->next = s->free;
  s->free = c;
  unlock(&s->lock);
  return result;
}
