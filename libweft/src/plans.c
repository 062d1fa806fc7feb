/* Runs plans: steps in order, branches and loops over plans of their own. */

static int32_t run_plan(const scope *s, const plan *of, held *const *given, held **results, weft_tensor *const *storage);

static held *value_of(const weft_program *p, held *const *slot, int32_t k) {
  return k >= 0 ? slot[k] : k <= CONSTANT ? &p->constants[CONSTANT - k] : NULL;
}

/* A condition, which is one element; -1: it is not. */
static int truth(const held *h) {
  if (h == NULL || size_of(h) != h->element) return -1;
  for (int64_t i = 0; i < h->element; ++i)
    if (h->data[i] != 0) return 1;
  return 0;
}

static int32_t undecided(const scope *s) { return fail(s, RUN "a branch or loop" OF_NAME " is decided by one element", NULL); }

/* An integer of 1 to 8 bytes, the lowest first. */
static int64_t read_integer(const held *h, int64_t index, int has_sign) {
  const char *const at = h->data + index * h->element;
  int32_t bytes = h->element < 8 ? (int32_t)h->element : 8;
  uint64_t found = has_sign && at[bytes - 1] & 0x80 ? UINT64_MAX : 0;
  while (bytes-- > 0) found = found << 8 | (unsigned char)at[bytes];
  return (int64_t)found;
}

/* The sizes of symbols, as far as the values of a plan say them; -1: unknown. NULL: there is no memory. */
static int64_t *learn(const weft_program *p, const plan *of, held *const *slot) {
  const int32_t count = p->head->symbols;
  int64_t *const symbols = (int64_t *)reserve(16, (uint64_t)count * sizeof *symbols);
  if (symbols == NULL) return NULL;
  for (int32_t k = 0; k < count; ++k) symbols[k] = -1;
  for (int32_t i = 0; i < of->infos.count; ++i) {
    const info *const k = &infos_of(p, of)[i];
    for (int32_t d = 0; slot[i] != NULL && !k->any && d < k->sizes.count && d < slot[i]->ndim; ++d) {
      const int32_t number = ROWS(p, int32_t, k->formulas)[d];
      if (number == 0) continue;
      const list code = ROWS(p, list, p->head->formulas)[number - 1];
      const int64_t *const words = ROWS(p, int64_t, code); /* a symbol alone */
      if (code.count == 2 && words[0] == SYMBOL && words[1] >= 0 && words[1] < count && symbols[words[1]] < 0) symbols[words[1]] = slot[i]->shape[d];
    }
  }
  for (int32_t k = 0; k < of->symbols.count; ++k) {
    const symbol *const y = &ROWS(p, symbol, of->symbols)[k];
    const held *const h = y->slot < 0 ? NULL : slot[y->slot];
    if (h == NULL || y->number < 0 || y->number >= count || symbols[y->number] >= 0 || y->index < 0 || y->index >= size_of(h) / h->element) continue;
    symbols[y->number] = read_integer(h, y->index, infos_of(p, of)[y->slot].code != WEFT_UINT);
  }
  return symbols;
}

/* The size of a dimension that the plan says; -1: it does not. */
static int64_t size_said(const weft_program *p, const info *i, int32_t d, const int64_t *symbols) {
  const int32_t number = ROWS(p, int32_t, i->formulas)[d];
  int64_t found = ROWS(p, int64_t, i->sizes)[d];
  if (number != 0 && !evaluate(p, number, symbols, &found)) return -1;
  return found;
}

/* What a loop of no iterations collected: no elements, of sizes as far as they are known. */
static held *nothing_collected(const weft_program *p, const plan *of, held *const *slot, const info *row, int32_t axis) {
  int64_t shape[MOST_DIMENSIONS + 1];
  int64_t *const symbols = learn(p, of, slot);
  if (symbols == NULL) return NULL;
  for (int32_t i = 0; i <= row->sizes.count; ++i) {
    const int64_t found = i == axis ? 0 : size_said(p, row, i < axis ? i : i - 1, symbols);
    shape[i] = found < 0 ? 0 : found;
  }
  release(symbols);
  return fresh(row->element, shape, row->sizes.count + 1);
}

static int32_t run_loop(const scope *s, const plan *of, const step *st, held **slot) {
  const weft_program *const p = s->program;
  const plan *const body = &p->plan[st->of.loop.body];
  const turn *const taken = ROWS(p, turn, st->taken), *turns = ROWS(p, turn, st->rows);
  const int32_t *const in = ROWS(p, int32_t, st->in), *const out = ROWS(p, int32_t, st->out);
  const int32_t ins = body->ins, carried = st->of.loop.carried, tests = st->of.loop.tests, first = 1 + carried, items = st->taken.count, rows = st->rows.count;
  int32_t result = WEFT_OK;
  int64_t trips = INT64_MAX, k = 0, length = -1;
  int going = 1;
  const held *const most = value_of(p, slot, in[0]), *const test = value_of(p, slot, in[1]);
  if (most != NULL) {
    if (size_of(most) != most->element) return fail(s, RUN A_LOOP " takes one number of iterations", NULL);
    trips = read_integer(most, 0, 1);
  }
  if (test != NULL && (going = truth(test)) < 0) return undecided(s);
  for (int32_t i = 0; i < items; ++i) {
    const held *const h = value_of(p, slot, in[1 + first + i]);
    if (h == NULL || taken[i].axis >= h->ndim) return unready(s);
    const int64_t n = h->shape[taken[i].axis];
    if (length >= 0 && n != length) return fail(s, RUN A_LOOP " goes over %0 and over %1 items", ARGS(length, n));
    length = n;
  }
  if (length >= 0 && length < trips) trips = length;
  /* inputs of an iteration, what it gives, what is collected: of each result the last one, and those before it behind it */
  const int32_t count = ins + body->outs + rows;
  held **const given = (held **)zeros((uint64_t)count * sizeof(held *)), **const found = given + ins, **const collected = found + body->outs;
  if (given == NULL) return no_memory(s, count);
  for (int32_t i = 1; i < ins; ++i)
    if (i < first || i >= first + items) given[i] = use(value_of(p, slot, in[1 + i]));
  for (; going && k < trips && result == WEFT_OK; ++k) {
    put(given, 0, fresh(8, NULL, 0));
    if (given[0] == NULL) result = no_memory(s, 8);
    else *(int64_t *)(void *)given[0]->data = k;
    for (int32_t i = 0; i < items && result == WEFT_OK; ++i) {
      put(given, first + i, slice(value_of(p, slot, in[1 + first + i]), taken[i].axis, taken[i].back ? length - 1 - k : k));
      if (given[first + i] == NULL) result = no_memory(s, 8);
    }
    if (result == WEFT_OK) result = run_plan(s, body, given, found, NULL);
    if (result != WEFT_OK) break;
    if (tests && (going = truth(found[0])) < 0) result = undecided(s);
    for (int32_t i = 0; i < carried; ++i) put(given, 1 + i, use(found[tests + i]));
    for (int32_t i = 0; i < rows && result == WEFT_OK; ++i) {
      held *const h = found[tests + carried + i], *const before = collected[i];
      if (before != NULL && !same_shape(before, h)) result = fail(s, RUN COLLECTS "different sizes", NULL);
      else if ((collected[i] = part_of(h, h->shape, h->ndim, 0)) == NULL) {
        collected[i] = before;
        result = no_memory(s, k);
      } else
        collected[i]->next = before;
    }
    for (int32_t i = 0; i < body->outs; ++i) put(found, i, NULL);
  }
  for (int32_t i = 0; i < st->out.count && result == WEFT_OK; ++i) {
    held *made;
    if (i < carried) made = use(given[1 + i]);
    else {
      const held *const last = collected[i - carried];
      const info *const row = &infos_of(p, body)[body->infos.count - body->outs + tests + i];
      const int32_t rank = last != NULL ? last->ndim : row->sizes.count;
      if (turns->axis > rank || rank >= MOST_DIMENSIONS) {
        result = fail(s, RUN COLLECTS "rank %0 along axis %1", ARGS(rank, turns->axis));
        break;
      }
      made = last != NULL ? stack(last, k, turns->axis, turns->back) : nothing_collected(p, of, slot, row, turns->axis);
      ++turns;
    }
    if (made == NULL) result = i < carried ? unready(s) : no_memory(s, k);
    else put(slot, out[i], made);
  }
  for (int32_t i = 0; i < count; ++i)
    while (given[i] != NULL) {
      held *const next = given[i]->next;
      drop(given[i]);
      given[i] = next;
    }
  release(given);
  return result;
}

static int32_t run_branch(const scope *s, const step *st, held **slot) {
  const weft_program *const p = s->program;
  const int32_t *const in = ROWS(p, int32_t, st->in), *const out = ROWS(p, int32_t, st->out);
  const int holds = truth(value_of(p, slot, in[0]));
  if (holds < 0) return undecided(s);
  const plan *const chosen = &p->plan[holds ? st->of.branch.then : st->of.branch.other];
  const int32_t first = 1 + (holds ? 0 : p->plan[st->of.branch.then].ins);
  held **const given = (held **)reserve(16, (uint64_t)(chosen->ins + chosen->outs) * sizeof(held *)), **const found = given + chosen->ins;
  if (given == NULL) return no_memory(s, chosen->ins);
  for (int32_t i = 0; i < chosen->ins; ++i) given[i] = value_of(p, slot, in[first + i]);
  const int32_t result = run_plan(s, chosen, given, found, NULL);
  for (int32_t i = 0; i < st->out.count && result == WEFT_OK; ++i) put(slot, out[i], found[i]);
  release(given);
  return result;
}

static int32_t run_host(const scope *s, const step *st, held **slot) {
  for (int32_t i = 0; i < st->out.count; ++i) {
    held *const h = value_of(s->program, slot, ROWS(s->program, int32_t, st->in)[i]);
    if (h == NULL) return unready(s);
    const int64_t n = h->ndim;
    held *const made = st->kind == STEP_SAME ? use(h) : fresh(8, &n, 1);
    if (made == NULL) return no_memory(s, n);
    if (st->kind == STEP_SIZES) copy(made->data, h->shape, (size_t)n * 8);
    put(slot, ROWS(s->program, int32_t, st->out)[i], made);
  }
  return WEFT_OK;
}

/* A value has another size than its formula says. */
static int32_t size_differs(const scope *s, const plan *of, held *const *slot, int32_t i, int32_t d, int64_t wanted) {
  const weft_program *const p = s->program;
  const info *const infos = infos_of(p, of);
  const int32_t number = ROWS(p, int32_t, infos[i].formulas)[d];
  const int input = i < of->ins;
  const char *text = "%b'%a'" OF_NAME HAS_SIZE "%2" ON_AXIS "%3" EXPECTED "%4";
  int64_t args[] = {WORD(TEXT(p, infos[i].name)), WORD(input ? "input " : ""), slot[i]->shape[d], d, wanted, 0, 0};
  for (int32_t k = 0; number != 0 && k < of->ins; ++k) /* an input that has the size which is expected */
    for (int32_t e = 0; slot[k] != NULL && e < infos[k].sizes.count && e < slot[k]->ndim; ++e)
      if (ROWS(p, int32_t, infos[k].formulas)[e] == number && slot[k]->shape[e] == wanted) {
        args[5] = e;
        args[6] = WORD(TEXT(p, infos[k].name));
        text = "%b'%a'" OF_NAME HAS_SIZE "%2" ON_AXIS "%3" EXPECTED "%4" WHY "axis %5 of input '%g' has it";
      }
  return tell(s, input ? WEFT_ERROR_INPUT : WEFT_ERROR_RUN, text, args, 1);
}

/* Whether every value has the sizes that the plan says, as far as they are known. */
static int32_t check_sizes(const scope *s, const plan *of, held *const *slot) {
  const weft_program *const p = s->program;
  int64_t *const symbols = learn(p, of, slot);
  int32_t result = WEFT_OK;
  if (symbols == NULL) return no_memory(s, p->head->symbols);
  for (int32_t i = 0; i < of->infos.count; ++i) {
    const info *const k = &infos_of(p, of)[i];
    for (int32_t d = 0; slot[i] != NULL && !k->any && d < k->sizes.count && d < slot[i]->ndim && result == WEFT_OK; ++d) {
      const int64_t wanted = size_said(p, k, d, symbols);
      if (wanted >= 0 && slot[i]->shape[d] != wanted) result = size_differs(s, of, slot, i, d, wanted);
    }
  }
  release(symbols);
  return result;
}

/* The results have a use each, which the caller gives back. */
static int32_t run_plan(const scope *s, const plan *of, held *const *given, held **results, weft_tensor *const *storage) {
  const weft_program *const p = s->program;
  const int32_t count = of->infos.count;
  held **const slot = (held **)zeros((uint64_t)count * sizeof(held *)), **const outputs = slot + (count - of->outs);
  int32_t result = WEFT_OK;
  if (slot == NULL) return no_memory(s, count);
  for (int32_t i = 0; i < of->ins; ++i) slot[i] = use(given[i]);
  /* Native code looks at the sizes of its own inputs only, and does not know where an expected one comes from. */
  if (storage != NULL) result = check_sizes(s, of, slot);
  for (int32_t i = 0; i < of->steps.count && result == WEFT_OK; ++i) {
    const step *const st = &ROWS(p, step, of->steps)[i];
    if (st->kind == STEP_NATIVE) result = run_native(s, of, st, slot, storage);
    else if (st->kind == STEP_IF) result = run_branch(s, st, slot);
    else if (st->kind == STEP_LOOP) result = run_loop(s, of, st, slot);
    else result = run_host(s, st, slot);
  }
  for (int32_t i = 0; i < of->outs && result == WEFT_OK; ++i) {
    const info *const wanted = &infos_of(p, of)[count - of->outs + i];
    if (outputs[i] == NULL || (outputs[i]->ndim != wanted->sizes.count && !wanted->any) || outputs[i]->element != wanted->element) result = unready(s);
  }
  if (result == WEFT_OK) result = check_sizes(s, of, slot);
  for (int32_t i = 0; i < of->outs && result == WEFT_OK; ++i) results[i] = use(outputs[i]);
  for (int32_t i = 0; i < count; ++i) drop(slot[i]);
  release(slot);
  return result;
}
