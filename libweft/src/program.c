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
  for (uint32_t k = 0; k < 1024; ++k) found += mask[k / 32] >> k % 32 & 1;
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

/* What a function of the interface begins with that gets a program and a structure that says its size. */
static int32_t check_arguments(const scope *s, const void *program, const void *structure, uint32_t size, const char *what) {
  weft_error *const error = s->error;
  if (error != NULL) {
    if (error->size < sizeof *error) return WEFT_ERROR_ARGUMENT;
    error->code = WEFT_OK;
    error->message[0] = 0;
  }
  if (structure == NULL) return null_pointer(s, what);
  if (*(const uint32_t *)structure < size) return fail(s, ARGUMENT "%a does not say its size" HINT "set size to sizeof", ARGS(WORD(what)));
  if (program == NULL) return null_pointer(s, "the program");
  return WEFT_OK;
}

/* What every weft_open begins with. */
static int32_t begin(const scope *s, const weft_options *given, weft_options *options, weft_program **program) {
  static const weft_options none = {sizeof none, 0, NULL};
  if (program != NULL) *program = NULL;
  if (given == NULL) given = &none;
  const int32_t result = check_arguments(s, program, given, sizeof *options, "options");
  if (result != WEFT_OK) return result;
  *options = *given;
  if (options->threads < 0) return fail(s, ARGUMENT "%0 threads are asked for", ARGS(options->threads));
  return WEFT_OK;
}

/* What every weft_open ends with: gives the program to the caller, unless there was an error. */
static int32_t finish(const scope *s, weft_program *p, int32_t result, const parts *given, const weft_options *options, weft_program **made) {
  if (result == WEFT_OK) result = build(s, p, given);
  /* A static program may have been linked without threads. */
  if (result == WEFT_OK && p->head->threads != 0 && weft_sys.imports[WEFT_IMPORT_pthread_create] != NULL && p->parallel_for != NULL) {
    p->threads = thread_count(options->threads, p->head->threads);
    if ((p->workers = workers()) == NULL) result = no_memory(s, POOL_BYTES);
  }
  if (result != WEFT_OK) weft_close(p);
  else *made = p;
  return result;
}

int32_t weft_api_version(void) { return WEFT_API_VERSION; }

void weft_close(weft_program *p) {
  if (p == NULL) return;
  for (int32_t k = 0; p->natives != NULL && k < p->natives_count; ++k)
    for (call *c = p->natives[k].free; c != NULL;) {
      call *const next = c->next;
      end_call(c);
      c = next;
    }
  release(p->natives);
  release(p->constants);
  if (p->leave != NULL) p->leave(p->file);
  release(p);
}

int32_t weft_describe(const weft_program *p, weft_program_info *out, weft_error *error) {
  const scope s = {p, error};
  const int32_t result = check_arguments(&s, p, out, sizeof *out, "info");
  if (result != WEFT_OK) return result;
  out->inputs = p->own->ins;
  out->outputs = p->own->outs;
  out->threads = p->threads > 0 ? p->threads : 1;
  out->name = TEXT(p, p->head->name);
  out->target = TEXT(p, p->head->target);
  out->version = TEXT(p, p->head->version);
  return WEFT_OK;
}

static int32_t describe_value(const weft_program *p, int32_t index, int output, weft_value_info *out, weft_error *error) {
  const scope s = {p, error};
  const int32_t result = check_arguments(&s, p, out, sizeof *out, "info");
  if (result != WEFT_OK) return result;
  const plan *const of = p->own;
  const int32_t count = output ? of->outs : of->ins;
  if (index < 0 || index >= count) return fail(&s, ARGUMENT "'%n' has no %a %1" WHY "it has %2", ARGS(WORD(output ? "output" : "input"), index, count));
  const info *const i = &infos_of(p, of)[output ? of->infos.count - count + index : index];
  out->ndim = i->sizes.count;
  out->code = i->code;
  out->bits = i->bits;
  out->lanes = 1;
  out->name = TEXT(p, i->name);
  out->dtype = TEXT(p, i->dtype);
  out->shape = ROWS(p, int64_t, i->sizes);
  return WEFT_OK;
}

int32_t weft_input(const weft_program *p, int32_t index, weft_value_info *out, weft_error *error) { return describe_value(p, index, 0, out, error); }
int32_t weft_output(const weft_program *p, int32_t index, weft_value_info *out, weft_error *error) { return describe_value(p, index, 1, out, error); }


/* Whether a tensor of the caller is one of an input or output; sizes of outputs without storage are not looked at. */
static int32_t check_tensor(const scope *s, const info *i, const weft_tensor *t, int output) {
#define WRONG(text, x, y, z) (args[2] = (x), args[3] = (y), args[4] = (z), tell(s, output ? WEFT_ERROR_OUTPUT : WEFT_ERROR_INPUT, text, args, 1))
  const weft_program *const p = s->program;
  const int32_t ndim = i->sizes.count, element = i->element;
  const int64_t *const sizes = ROWS(p, int64_t, i->sizes);
  int64_t args[WEFT_ERROR_ARGS] = {WORD(output ? "output" : "input"), WORD(TEXT(p, i->name)), ndim};
  if (t == NULL) return fail(s, ARGUMENT "the tensor of " KIND_AND_NAME NULL_POINTER, args);
  if (t->shape == NULL && ndim > 0) return fail(s, ARGUMENT "the shape of " KIND_AND_NAME NULL_POINTER HINT "it points to %2 numbers", args);
  if (output && t->data == NULL) return WEFT_OK;
  if (t->device_type != WEFT_DEVICE_CPU && t->device_type != WEFT_DEVICE_CUDA_HOST) return WRONG(KIND_AND_NAME " is in the memory of device type %2, the host's is read", t->device_type, 0, 0);
  if (t->code != i->code || t->bits != i->bits || t->lanes != 1) {
    args[5] = WORD(TEXT(p, i->dtype));
    args[6] = i->code;
    args[7] = i->bits;
    return WRONG(KIND_AND_NAME OF_NAME " has DLPack's type (%2, %3, %4)" EXPECTED "%f (%6, %7, 1)", t->code, t->bits, t->lanes);
  }
  if (t->ndim != ndim) return WRONG(KIND_AND_NAME OF_NAME " has rank %2" EXPECTED "%3", t->ndim, ndim, 0);
  for (int32_t d = 0; d < ndim; ++d)
    if (t->shape[d] < 0 || (sizes[d] >= 0 && t->shape[d] != sizes[d])) return WRONG(KIND_AND_NAME OF_NAME HAS_SIZE "%2" ON_AXIS "%3" EXPECTED "%4", t->shape[d], d, sizes[d]);
  const int64_t bytes = bytes_of(t->shape, ndim, element);
  if (bytes < 0) return WRONG("the sizes of " KIND_AND_NAME " are more than memory can hold", 0, 0, 0);
  if (t->data == NULL && bytes > 0) return null_pointer(s, "the data of an input");
  if (((uintptr_t)t->data + t->byte_offset) % (element < 8 ? (uintptr_t)element : 8) != 0) return WRONG("the data of " KIND_AND_NAME " are at no multiple of %2 bytes", element, 0, 0);
  int64_t step = 1;
  for (int32_t d = ndim; t->strides != NULL && bytes > 0 && d-- > 0; step *= t->shape[d])
    if (t->shape[d] != 1 && t->strides[d] != step) return WRONG(KIND_AND_NAME " is not row-major: axis %2 has the stride %3" HINT "copy it", d, t->strides[d], 0);
  return WEFT_OK;
#undef WRONG
}

/* Where a tensor of the caller lies, and behind it. */
static void lies(const weft_tensor *t, const info *i, uintptr_t ends[2]) {
  ends[0] = (uintptr_t)t->data + (uintptr_t)t->byte_offset;
  ends[1] = ends[0] + (t->data == NULL ? 0 : (uintptr_t)bytes_of(t->shape, i->sizes.count, i->element));
}

/* Storage is written while inputs are still read. */
static int32_t check_apart(const scope *s, const plan *of, const weft_tensor *const *inputs, weft_tensor *const *outputs) {
  const info *const infos = infos_of(s->program, of), *const results = infos + (of->infos.count - of->outs);
  uintptr_t a[2], b[2];
  for (int32_t i = 0; i < of->outs; ++i) {
    lies(outputs[i], &results[i], a);
    for (int32_t k = 0; k < of->ins + i; ++k) {
      const int32_t other = k - of->ins;
      lies(other < 0 ? inputs[k] : outputs[other], other < 0 ? &infos[k] : &results[other], b);
      /* an empty one overlaps nothing */
      if (a[0] < a[1] && b[0] < b[1] && a[0] < b[1] && b[0] < a[1])
        return fail(s, OUTPUT STORAGE_FOR "'%a'" OF_NAME " overlaps an input or the storage of another output", ARGS(WORD(TEXT(s->program, results[i].name))));
    }
  }
  return WEFT_OK;
}

/* Gives an output of the run to the caller. */
static int32_t hand_over(const scope *s, const info *i, held *h, weft_tensor *t) {
  const int64_t bytes = size_of(h);
  if (t->data != NULL) {
    char *const to = (char *)t->data + t->byte_offset;
    for (int32_t d = 0; d < h->ndim; ++d)
      if (t->shape[d] != h->shape[d])
        return fail(s, OUTPUT STORAGE_FOR "'%a'" OF_NAME HAS_SIZE "%1" ON_AXIS "%2" RESULT_HAS "%3", ARGS(WORD(TEXT(s->program, i->name)), t->shape[d], d, h->shape[d]));
    if (h->data != to) copy(to, h->data, (size_t)bytes);
    return WEFT_OK;
  }
  if (h->refs == 1 && h->owned == h->data) {
    t->data = h->owned;
    h->owned = NULL;
  } else {
    t->data = reserve(64, (uint64_t)bytes);
    if (t->data == NULL) return no_memory(s, bytes);
    copy(t->data, h->data, (size_t)bytes);
  }
  set_type(t, i, h->ndim);
  copy(t->shape, h->shape, (size_t)h->ndim * sizeof(int64_t));
  return WEFT_OK;
}

int32_t weft_run(weft_program *p, const weft_tensor *const *inputs, weft_tensor *const *outputs, weft_error *error) {
  const scope s = {p, error};
  int32_t result = check_arguments(&s, p, &s, 0, "");
  if (result != WEFT_OK) return result;
  const plan *const of = p->own;
  const info *const infos = infos_of(p, of), *const results = infos + (of->infos.count - of->outs);
  if ((inputs == NULL && of->ins > 0) || (outputs == NULL && of->outs > 0)) return null_pointer(&s, inputs == NULL ? "inputs" : "outputs");
  for (int32_t i = 0; i < of->ins && result == WEFT_OK; ++i) result = check_tensor(&s, &infos[i], inputs[i], 0);
  for (int32_t i = 0; i < of->outs && result == WEFT_OK; ++i) result = check_tensor(&s, &results[i], outputs[i], 1);
  if (result == WEFT_OK) result = check_apart(&s, of, inputs, outputs);
  if (result != WEFT_OK) return result;
  held **const given = (held **)zeros((uint64_t)(of->ins + of->outs) * sizeof(held *)), **const found = given + of->ins;
  if (given == NULL) return no_memory(&s, of->ins);
  for (int32_t i = 0; i < of->ins && result == WEFT_OK; ++i) {
    given[i] = shaped(infos[i].element, inputs[i]->shape, infos[i].sizes.count);
    if (given[i] == NULL) result = no_memory(&s, of->ins);
    else given[i]->data = inputs[i]->data == NULL ? (char *)(uintptr_t)&weft_sys : (char *)inputs[i]->data + inputs[i]->byte_offset;
  }
  if (result == WEFT_OK) result = run_plan(&s, of, given, found, outputs);
  const int ran = result == WEFT_OK;
  int32_t over = 0;
  for (; over < of->outs && result == WEFT_OK; ++over) {
    const int storage = outputs[over]->data != NULL;
    result = hand_over(&s, &results[over], found[over], outputs[over]);
    if (!storage && result == WEFT_OK) put(found, over, NULL); /* its memory is the caller's now */
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
