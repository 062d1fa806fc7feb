/* The functions of weft.h but for weft_open and weft_open_memory. */

enum { POOL_BYTES = 65536, WIPE_ON_FORK = 18 }; /* whole pages of every system: a child of fork finds zeros there */

/* The state of the worker pool of this library, which its programs share; NULL: there is no memory for one. */
static void *workers(void) {
  lock(&weft_own.lock);
  if (weft_own.pool == NULL && (weft_own.pool = reserve(65536, POOL_BYTES)) != NULL) {
    zero(weft_own.pool, POOL_BYTES);
    int (*advise)(void *, size_t, int) = (int (*)(void *, size_t, int))weft_sys.imports[WEFT_IMPORT_madvise];
    if (advise != NULL) advise(weft_own.pool, POOL_BYTES, WIPE_ON_FORK); /* a child of fork has no workers */
  }
  void *const found = weft_own.pool;
  unlock(&weft_own.lock);
  return found;
}

static int32_t processors(void) {
  int (*affinity)(int, size_t, void *) = (int (*)(int, size_t, void *))weft_sys.imports[WEFT_IMPORT_sched_getaffinity];
  uint32_t mask[32] = {0};
  int32_t found = 0;
  if (affinity == NULL || affinity(0, sizeof mask, mask) < 0) return 1;
  for (int k = 0; k < 32; ++k)
    for (uint32_t bits = mask[k]; bits != 0; bits &= bits - 1) ++found;
  return found < 1 ? 1 : found;
}

/* Threads of a run: as asked, as the environment says, as the model says, or as many as there are processors. */
static int32_t thread_count(int32_t asked, int32_t model) {
  const char *said = weft_sys.getenv != NULL ? weft_sys.getenv("WEFT_THREADS") : NULL;
  int32_t number = 0;
  for (; said != NULL && *said >= '0' && *said <= '9' && number < 256; ++said) number = number * 10 + (*said - '0');
  if (said == NULL || *said != 0) number = 0;
  const int32_t found = asked > 0 ? asked : number > 0 ? number : model > 0 ? model : processors();
  return found > 255 ? 255 : found;
}

static int32_t wrong_size(weft_error *error, const char *what) {
  return fail(error, WEFT_ERROR_ARGUMENT, "%s does not say its size\nhint: set size to sizeof", WORDS(what), NULL);
}

/* What every function of the interface that gets `error` begins with. */
static int32_t check_error(weft_error *error) {
  if (error == NULL) return WEFT_OK;
  if (error->size < sizeof *error) return WEFT_ERROR_ARGUMENT;
  error->code = WEFT_OK;
  error->message[0] = 0;
  return WEFT_OK;
}

static int32_t read_options(const weft_options *given, weft_options *options, weft_error *error) {
  zero(options, sizeof *options);
  if (given != NULL) {
    if (given->size < sizeof *options) return wrong_size(error, "options");
    *options = *given;
    if (options->threads < 0) return fail(error, WEFT_ERROR_ARGUMENT, "%d threads are asked for", NULL, NUMBERS(options->threads));
  }
  return WEFT_OK;
}

/* Makes a program. Its parts stay where they are until it is closed. */
static int32_t make_program(const parts *given, const weft_options *options, weft_program **made, weft_error *error) {
  pool own = {NULL, NULL, 0}, scratch = {NULL, NULL, 0};
  weft_program *const p = (weft_program *)keep(&own, sizeof *p);
  char *const text = given->manifest_bytes > 16 << 20 ? NULL : (char *)keep(&scratch, given->manifest_bytes + 1);
  if (p == NULL || text == NULL) {
    give_back(&own);
    give_back(&scratch);
    return given->manifest_bytes > 16 << 20 ? fail(error, WEFT_ERROR_ARCHIVE, "the manifest has %d bytes, at most 16 MiB are read", NULL, NUMBERS((int64_t)given->manifest_bytes))
                                             : no_memory(error, (int64_t)given->manifest_bytes);
  }
  p->memory = own;
  p->name = p->target = p->version = "";
  copy(text, given->manifest, given->manifest_bytes);
  building b = {p, given, error, NULL, NULL, NULL, NULL, scratch, WEFT_OK};
  const node *const root = read_json(&b.scratch, text, given->manifest_bytes);
  if (root == NULL || root->kind != '{') b.wrong = fail(error, WEFT_ERROR_ARCHIVE, "the manifest is no JSON", NULL, NULL);
  else build(&b, root);
  give_back(&b.scratch);
  /* A static program may have been linked without threads. */
  p->parallel_for = weft_sys.imports[WEFT_IMPORT_pthread_create] != NULL ? weft_pool() : NULL;
  if (b.wrong == WEFT_OK && p->threads != 0) {
    p->threads = p->parallel_for == NULL ? 0 : thread_count(options->threads, p->threads);
    if (p->threads > 0 && (p->workers = workers()) == NULL) b.wrong = no_memory(error, POOL_BYTES);
  }
  if (b.wrong != WEFT_OK) {
    weft_close(p);
    return b.wrong;
  }
  *made = p;
  return WEFT_OK;
}

int32_t weft_api_version(void) { return WEFT_API_VERSION; }

void weft_close(weft_program *p) {
  if (p == NULL) return;
  for (int32_t k = 0; k < p->plans; ++k)
    for (int32_t i = 0; i < p->plan[k].steps; ++i)
      for (call *c = p->plan[k].step[i].free; c != NULL;) {
        call *const next = c->next;
        end_call(c);
        c = next;
      }
  if (p->leave != NULL) p->leave(p->file);
  pool memory = p->memory; /* the program itself lies in it */
  give_back(&memory);
}

int32_t weft_describe(const weft_program *p, weft_program_info *out, weft_error *error) {
  if (check_error(error) != WEFT_OK) return WEFT_ERROR_ARGUMENT;
  if (p == NULL || out == NULL) return null_pointer(error, p == NULL ? "the program" : "info");
  if (out->size < sizeof *out) return wrong_size(error, "info");
  const plan *const of = &p->plan[p->plans - 1];
  out->inputs = of->ins;
  out->outputs = of->outs;
  out->threads = p->threads > 0 ? p->threads : 1;
  out->name = p->name;
  out->target = p->target;
  out->version = p->version;
  return WEFT_OK;
}

static int32_t describe_value(const weft_program *p, int32_t index, int output, weft_value_info *out, weft_error *error) {
  if (check_error(error) != WEFT_OK) return WEFT_ERROR_ARGUMENT;
  if (p == NULL || out == NULL) return null_pointer(error, p == NULL ? "the program" : "info");
  if (out->size < sizeof *out) return wrong_size(error, "info");
  const plan *const of = &p->plan[p->plans - 1];
  const int32_t count = output ? of->outs : of->ins;
  if (index < 0 || index >= count)
    return fail(error, WEFT_ERROR_ARGUMENT, "'%s' has no %s %d\nwhy: it has %d", WORDS(p->name, output ? "output" : "input"), NUMBERS(index, count));
  const info *const i = &of->infos[output ? of->slots - of->outs + index : index];
  out->ndim = i->ndim;
  out->code = i->code;
  out->bits = i->bits;
  out->lanes = 1;
  out->name = i->name;
  out->dtype = i->dtype;
  out->shape = i->shape;
  return WEFT_OK;
}

int32_t weft_input(const weft_program *p, int32_t index, weft_value_info *out, weft_error *error) { return describe_value(p, index, 0, out, error); }
int32_t weft_output(const weft_program *p, int32_t index, weft_value_info *out, weft_error *error) { return describe_value(p, index, 1, out, error); }

/* Whether a tensor of the caller is one of an input or output; sizes of outputs without storage are not looked at. */
static int32_t check_tensor(const weft_program *p, const info *i, const weft_tensor *t, int output, weft_error *error) {
  const int32_t code = output ? WEFT_ERROR_OUTPUT : WEFT_ERROR_INPUT;
  const char *const kind = output ? "output" : "input";
  const int empty = output && t != NULL && t->data == NULL;
  if (t == NULL) return fail(error, WEFT_ERROR_ARGUMENT, "the tensor of %s '%s' is a null pointer", WORDS(kind, i->name), NULL);
  if (t->shape == NULL && i->ndim > 0) return fail(error, WEFT_ERROR_ARGUMENT, "the shape of %s '%s' is a null pointer\nhint: it points to %d numbers", WORDS(kind, i->name), NUMBERS(i->ndim));
  if (empty) return WEFT_OK;
  if (t->device_type != WEFT_DEVICE_CPU && t->device_type != WEFT_DEVICE_CUDA_HOST)
    return fail(error, code, "%s '%s' is in the memory of device type %d, the host's is read", WORDS(kind, i->name), NUMBERS(t->device_type));
  if (t->code != i->code || t->bits != i->bits || t->lanes != 1)
    return fail(error, code, "%s '%s' of '%s' has DLPack's type (%d, %d, %d), expected %s (%d, %d, 1)", WORDS(kind, i->name, p->name, i->dtype), NUMBERS(t->code, t->bits, t->lanes, i->code, i->bits));
  if (t->ndim != i->ndim)
    return fail(error, code, "%s '%s' of '%s' has rank %d, expected %d", WORDS(kind, i->name, p->name), NUMBERS(t->ndim, i->ndim));
  for (int32_t d = 0; d < i->ndim; ++d)
    if (t->shape[d] < 0 || (i->shape[d] >= 0 && t->shape[d] != i->shape[d]))
      return fail(error, code, "%s '%s' of '%s' has size %d on axis %d, expected %d", WORDS(kind, i->name, p->name), NUMBERS(t->shape[d], d, i->shape[d]));
  const int64_t bytes = bytes_of(t->shape, t->ndim, i->element);
  if (bytes < 0) return fail(error, code, "the sizes of %s '%s' are more than memory can hold", WORDS(kind, i->name), NULL);
  if (t->data == NULL && bytes > 0) return null_pointer(error, "the data of an input");
  if (((uintptr_t)t->data + t->byte_offset) % (i->element < 8 ? (uintptr_t)i->element : 8) != 0)
    return fail(error, code, "the data of %s '%s' are at no multiple of %d bytes", WORDS(kind, i->name), NUMBERS(i->element));
  int64_t step = 1;
  for (int32_t d = i->ndim; t->strides != NULL && bytes > 0 && d-- > 0; step *= t->shape[d])
    if (t->shape[d] != 1 && t->strides[d] != step) return fail(error, code, "%s '%s' is not row-major: axis %d has the stride %d\nhint: copy it", WORDS(kind, i->name), NUMBERS(d, t->strides[d]));
  return WEFT_OK;
}

/* Sizes that have one name in the model must be equal; native code looks at those of its own inputs only. */
static int32_t check_names(const weft_program *p, const plan *of, const weft_tensor *const *inputs, weft_error *error) {
  for (int32_t i = 0; i < of->ins; ++i)
    for (int32_t d = 0; d < of->infos[i].ndim; ++d) {
      const char *const name = of->infos[i].formula[d];
      if (name == NULL) continue;
      for (int32_t k = 0; k <= i; ++k)
        for (int32_t e = 0; e < of->infos[k].ndim && (k < i || e < d); ++e)
          if (of->infos[k].formula[e] != NULL && equal(of->infos[k].formula[e], name) && inputs[k]->shape[e] != inputs[i]->shape[d])
            return fail(error, WEFT_ERROR_INPUT, "input '%s' of '%s' has size %d on axis %d, expected %d\nwhy: axis %d of input '%s' has it",
                        WORDS(of->infos[i].name, p->name, of->infos[k].name), NUMBERS(inputs[i]->shape[d], d, inputs[k]->shape[e], e));
    }
  return WEFT_OK;
}

static int overlap(const weft_tensor *a, const info *of_a, const weft_tensor *b, const info *of_b) {
  const uintptr_t first = (uintptr_t)a->data + (uintptr_t)a->byte_offset, second = (uintptr_t)b->data + (uintptr_t)b->byte_offset;
  const int64_t bytes = bytes_of(a->shape, of_a->ndim, of_a->element), more = bytes_of(b->shape, of_b->ndim, of_b->element);
  return bytes > 0 && more > 0 && first < second + (uintptr_t)more && second < first + (uintptr_t)bytes;
}

/* Storage is written while inputs are still read. */
static int32_t check_apart(const weft_program *p, const plan *of, const weft_tensor *const *inputs, weft_tensor *const *outputs, weft_error *error) {
  const info *const results = of->infos + (of->slots - of->outs);
  for (int32_t i = 0; i < of->outs; ++i) {
    int met = 0;
    if (outputs[i]->data == NULL) continue;
    for (int32_t k = 0; k < of->ins; ++k) met |= overlap(outputs[i], &results[i], inputs[k], &of->infos[k]);
    for (int32_t k = 0; k < i; ++k) met |= outputs[k]->data != NULL && overlap(outputs[i], &results[i], outputs[k], &results[k]);
    if (met) return fail(error, WEFT_ERROR_OUTPUT, "storage for output '%s' of '%s' overlaps an input or the storage of another output", WORDS(results[i].name, p->name), NULL);
  }
  return WEFT_OK;
}

/* Gives an output of the run to the caller. */
static int32_t hand_over(const weft_program *p, const info *i, held *h, weft_tensor *t, weft_error *error) {
  if (t->data != NULL) {
    char *const to = (char *)t->data + t->byte_offset;
    for (int32_t d = 0; d < h->ndim; ++d)
      if (t->shape[d] != h->shape[d])
        return fail(error, WEFT_ERROR_OUTPUT, "storage for output '%s' of '%s' has size %d on axis %d, the result has %d", WORDS(i->name, p->name), NUMBERS(t->shape[d], d, h->shape[d]));
    if (h->data != to) copy(to, h->data, (size_t)size_of(h));
    return WEFT_OK;
  }
  void *data = NULL;
  if (h->refs == 1 && h->owned == h->data) {
    data = h->owned;
    h->owned = NULL;
  } else {
    data = reserve(64, (uint64_t)size_of(h));
    if (data == NULL) return no_memory(error, size_of(h));
    copy(data, h->data, (size_t)size_of(h));
  }
  t->data = data;
  t->device_type = WEFT_DEVICE_CPU;
  t->device_id = 0;
  t->ndim = i->ndim;
  t->code = i->code;
  t->bits = i->bits;
  t->lanes = 1;
  t->strides = NULL;
  t->byte_offset = 0;
  for (int32_t d = 0; d < h->ndim; ++d) t->shape[d] = h->shape[d];
  return WEFT_OK;
}

int32_t weft_run(weft_program *p, const weft_tensor *const *inputs, weft_tensor *const *outputs, weft_error *error) {
  static const char none[64] = {0};
  if (check_error(error) != WEFT_OK) return WEFT_ERROR_ARGUMENT;
  if (p == NULL) return null_pointer(error, "the program");
  const plan *const of = &p->plan[p->plans - 1];
  const info *const results = of->infos + (of->slots - of->outs);
  if ((inputs == NULL && of->ins > 0) || (outputs == NULL && of->outs > 0)) return null_pointer(error, inputs == NULL ? "inputs" : "outputs");
  int32_t result = WEFT_OK;
  for (int32_t i = 0; i < of->ins && result == WEFT_OK; ++i) result = check_tensor(p, &of->infos[i], inputs[i], 0, error);
  for (int32_t i = 0; i < of->outs && result == WEFT_OK; ++i) result = check_tensor(p, &results[i], outputs[i], 1, error);
  const int alone = of->steps == 1 && of->step[0].kind == STEP_NATIVE; /* it looks at all of them itself */
  if (result == WEFT_OK && !alone) result = check_names(p, of, inputs, error);
  if (result == WEFT_OK) result = check_apart(p, of, inputs, outputs, error);
  if (result != WEFT_OK) return result;
  held **const given = (held **)reserve(16, (size_t)(of->ins + of->outs + 1) * sizeof(held *)), **const found = given + of->ins;
  if (given == NULL) return no_memory(error, of->ins);
  zero(given, (size_t)(of->ins + of->outs) * sizeof(held *));
  for (int32_t i = 0; i < of->ins && result == WEFT_OK; ++i) {
    given[i] = shaped(of->infos[i].element, inputs[i]->shape, of->infos[i].ndim);
    if (given[i] == NULL) result = no_memory(error, of->ins);
    else given[i]->data = inputs[i]->data == NULL ? (char *)(uintptr_t)none : (char *)inputs[i]->data + inputs[i]->byte_offset;
  }
  if (result == WEFT_OK) result = run_plan(p, of, given, found, outputs, error);
  const int ran = result == WEFT_OK;
  int32_t over = 0;
  for (; over < of->outs && result == WEFT_OK; ++over) {
    const int storage = outputs[over]->data != NULL;
    result = hand_over(p, &results[over], found[over], outputs[over], error);
    if (!storage && result == WEFT_OK) { /* its memory is the caller's now */
      drop(found[over]);
      found[over] = NULL;
    }
  }
  for (int32_t i = 0; ran && result != WEFT_OK && i + 1 < over; ++i)
    if (found[i] == NULL) weft_release(outputs[i]);
  for (int32_t i = 0; i < of->ins + (ran ? of->outs : 0); ++i) drop(given[i]);
  release(given);
  return result;
}

void weft_release(weft_tensor *output) {
  if (output == NULL) return;
  release(output->data);
  output->data = NULL;
}
