/* Runs plans: steps in order, branches and loops over plans of their own. */

static int32_t run_plan(const weft_program *p, const plan *of, held *const *given, held **results, weft_tensor *const *storage, weft_error *error);

static held *value_of(const weft_program *p, held *const *slot, int32_t k) {
  return k >= 0 ? slot[k] : k <= CONSTANT ? p->constant[CONSTANT - k].value : NULL;
}

/* A condition, which is one element; -1: it is not. */
static int truth(const held *h) {
  if (h == NULL || size_of(h) != h->element) return -1;
  for (int64_t i = 0; i < h->element; ++i)
    if (h->data[i] != 0) return 1;
  return 0;
}

static int32_t undecided(const weft_program *p, weft_error *error) {
  return fail(error, WEFT_ERROR_RUN, "a branch or loop of '%s' is decided by one element", WORDS(p->name), NULL);
}

/* A signed integer of 1 to 8 bytes in the order of the machine. */
static int64_t read_integer(const char *at, int64_t bytes) {
  switch (bytes) {
    case 1: return *(const int8_t *)at;
    case 2: return *(const int16_t *)(const void *)at;
    case 4: return *(const int32_t *)(const void *)at;
    default: return *(const int64_t *)(const void *)at;
  }
}

/* Whether all symbols of a formula have a size. */
static int all_known(const weft_program *p, const char *code, const int64_t *symbols) {
  for (; *code != 0; ++code) {
    int64_t number = 0;
    if (*code != '$') continue;
    for (; code[1] >= '0' && code[1] <= '9' && number < p->symbols; ++code) number = number * 10 + (code[1] - '0');
    if (number >= p->symbols || symbols[number] < 0) return 0;
  }
  return 1;
}

/* The sizes of symbols, as far as the values of a plan say them; -1: unknown. */
static void learn(const weft_program *p, const plan *of, held *const *slot, int64_t *symbols) {
  for (int32_t k = 0; k < p->symbols; ++k) symbols[k] = -1;
  for (int32_t i = 0; i < of->slots; ++i)
    for (int32_t d = 0; slot[i] != NULL && d < of->infos[i].ndim && d < slot[i]->ndim; ++d) {
      const char *const code = of->infos[i].formula[d];
      int64_t number = 0;
      if (code == NULL || code[0] != '$' || of->infos[i].any) continue;
      const char *at = code + 1;
      for (; *at >= '0' && *at <= '9' && number < p->symbols; ++at) number = number * 10 + (*at - '0');
      if (*at == 0 && number < p->symbols && symbols[number] < 0) symbols[number] = slot[i]->shape[d];
    }
  for (int32_t k = 0; k < of->symbols; ++k) {
    const symbol *const s = &of->symbol[k];
    const held *const h = slot[s->slot];
    if (h == NULL || s->number < 0 || symbols[s->number] >= 0 || s->index >= size_of(h) / h->element) continue;
    int64_t number = read_integer(h->data + s->index * h->element, h->element);
    if (of->infos[s->slot].code == WEFT_UINT) number = h->element == 1 ? (uint8_t)number : h->element == 2 ? (uint16_t)number : h->element == 4 ? (uint32_t)number : number;
    symbols[s->number] = number;
  }
}

/* What a loop of no iterations collected: no elements, of sizes as far as they are known. */
static held *nothing_collected(const weft_program *p, const plan *of, held *const *slot, const info *row, int32_t axis) {
  int64_t shape[MOST_DIMENSIONS + 1];
  int64_t *const symbols = (int64_t *)reserve(16, (size_t)p->symbols * sizeof *symbols);
  if (symbols == NULL) {
    release(symbols);
    return NULL;
  }
  learn(p, of, slot, symbols);
  for (int32_t i = 0; i <= row->ndim; ++i) {
    const int32_t d = i < axis ? i : i - 1;
    int64_t found = 0;
    if (i != axis && row->formula[d] == NULL) found = row->shape[d] < 0 ? 0 : row->shape[d];
    else if (i != axis && (!all_known(p, row->formula[d], symbols) || weft_formula(row->formula[d], symbols, p->symbols, &found) != WEFT_FORMULA_OK)) found = 0;
    shape[i] = found < 0 ? 0 : found;
  }
  release(symbols);
  return fresh(row->element, shape, row->ndim + 1);
}

typedef struct rows {
  held **parts;
  int64_t room;
} rows;

static int push(rows *r, int64_t n, held *h) {
  if (n == r->room) {
    const int64_t more = n == 0 ? 16 : 2 * n;
    held **const made = (held **)reserve(16, (size_t)more * sizeof *made);
    if (made == NULL) return 0;
    copy(made, r->parts, (size_t)n * sizeof *made);
    release(r->parts);
    r->parts = made;
    r->room = more;
  }
  r->parts[n] = h;
  return 1;
}

static int32_t run_loop(const weft_program *p, const plan *of, const step *s, held **slot, weft_error *error) {
  const plan *const body = &p->plan[s->then];
  const int32_t ins = body->ins, outs = body->outs, first = 1 + s->carried;
  int32_t result = WEFT_OK;
  int64_t trips = INT64_MAX, k = 0;
  int going = 1;
  const held *const most = value_of(p, slot, s->in[0]), *const test = value_of(p, slot, s->in[1]);
  if (most != NULL) {
    if (size_of(most) != most->element) return fail(error, WEFT_ERROR_RUN, "a loop of '%s' takes one number of iterations", WORDS(p->name), NULL);
    trips = read_integer(most->data, most->element);
  }
  if (test != NULL && (going = truth(test)) < 0) return undecided(p, error);
  int64_t length = -1;
  for (int32_t i = 0; i < s->items_in; ++i) {
    const held *const h = value_of(p, slot, s->in[1 + first + i]);
    if (h == NULL || s->item_axis[i] >= h->ndim) return unready(p, error);
    const int64_t n = h->shape[s->item_axis[i]];
    if (length >= 0 && n != length) return fail(error, WEFT_ERROR_RUN, "a loop of '%s' goes over %d and over %d items", WORDS(p->name), NUMBERS(length, n));
    length = n;
  }
  if (length >= 0 && length < trips) trips = length;
  held **const given = (held **)reserve(16, (size_t)(ins + outs + 1) * sizeof(held *)), **const found = given + ins;
  rows *const row = (rows *)reserve(16, (size_t)(s->rows + 1) * sizeof *row);
  if (given == NULL || row == NULL) {
    release(given);
    release(row);
    return no_memory(error, ins);
  }
  zero(given, (size_t)(ins + outs) * sizeof(held *));
  zero(row, (size_t)s->rows * sizeof *row);
  for (int32_t i = 1; i < ins; ++i)
    if (i < first || i >= first + s->items_in) given[i] = use(value_of(p, slot, s->in[1 + i]));
  for (; going && k < trips && result == WEFT_OK; ++k) {
    given[0] = fresh(8, NULL, 0);
    if (given[0] != NULL) *(int64_t *)(void *)given[0]->data = k;
    else result = no_memory(error, 8);
    for (int32_t i = 0; i < s->items_in && result == WEFT_OK; ++i) {
      given[first + i] = slice(value_of(p, slot, s->in[1 + first + i]), s->item_axis[i], s->item_back[i] ? length - 1 - k : k);
      if (given[first + i] == NULL) result = no_memory(error, 8);
    }
    if (result == WEFT_OK) result = run_plan(p, body, given, found, NULL, error);
    drop(given[0]);
    given[0] = NULL;
    for (int32_t i = 0; i < s->items_in; ++i) {
      drop(given[first + i]);
      given[first + i] = NULL;
    }
    if (result != WEFT_OK) break;
    if (s->tests && (going = truth(found[0])) < 0) result = undecided(p, error);
    if (s->tests) drop(found[0]);
    for (int32_t i = 0; i < s->carried; ++i) {
      drop(given[1 + i]);
      given[1 + i] = found[s->tests + i];
    }
    for (int32_t i = 0; i < s->rows; ++i) {
      held *const h = found[s->tests + s->carried + i];
      if (result == WEFT_OK && k > 0 && !same_shape(row[i].parts[0], h))
        result = fail(error, WEFT_ERROR_RUN, "a loop of '%s' collects results of different sizes", WORDS(p->name), NULL);
      if (!push(&row[i], k, h)) {
        drop(h);
        for (int32_t j = i + 1; j < s->rows; ++j) drop(found[s->tests + s->carried + j]);
        for (int32_t j = 0; j < i; ++j) drop(row[j].parts[k]);
        result = no_memory(error, k);
        --k;
        break;
      }
    }
  }
  for (int32_t i = 0; i < s->outs && result == WEFT_OK; ++i) {
    held *made;
    if (i < s->carried) made = use(given[1 + i]);
    else {
      const int32_t r = i - s->carried;
      const info *const of_row = &body->infos[body->slots - body->outs + s->tests + i];
      const int32_t rank = k > 0 ? row[r].parts[0]->ndim : of_row->ndim;
      if (s->row_axis[r] > rank || rank >= MOST_DIMENSIONS) {
        result = fail(error, WEFT_ERROR_RUN, "a loop of '%s' collects results of rank %d along axis %d", WORDS(p->name), NUMBERS(rank, s->row_axis[r]));
        break;
      }
      made = k > 0 ? stack(row[r].parts, k, s->row_axis[r], s->row_back[r]) : nothing_collected(p, of, slot, of_row, s->row_axis[r]);
    }
    if (made == NULL) result = i < s->carried ? unready(p, error) : no_memory(error, k);
    else if (s->out[i] >= 0) {
      drop(slot[s->out[i]]);
      slot[s->out[i]] = made;
    } else
      drop(made);
  }
  for (int32_t i = 0; i < s->rows; ++i) {
    for (int64_t n = 0; n < k; ++n) drop(row[i].parts[n]);
    release(row[i].parts);
  }
  for (int32_t i = 0; i < ins; ++i) drop(given[i]);
  release(given);
  release(row);
  return result;
}

static int32_t run_branch(const weft_program *p, const step *s, held **slot, weft_error *error) {
  const int taken = truth(value_of(p, slot, s->in[0]));
  if (taken < 0) return undecided(p, error);
  const plan *const chosen = &p->plan[taken ? s->then : s->other];
  const int32_t first = 1 + (taken ? 0 : p->plan[s->then].ins);
  held **const given = (held **)reserve(16, (size_t)(chosen->ins + chosen->outs + 1) * sizeof(held *)), **const found = given + chosen->ins;
  if (given == NULL) return no_memory(error, chosen->ins);
  for (int32_t i = 0; i < chosen->ins; ++i) given[i] = value_of(p, slot, s->in[first + i]);
  const int32_t result = run_plan(p, chosen, given, found, NULL, error);
  for (int32_t i = 0; i < s->outs && result == WEFT_OK; ++i)
    if (s->out[i] >= 0) {
      drop(slot[s->out[i]]);
      slot[s->out[i]] = found[i];
    } else
      drop(found[i]);
  release(given);
  return result;
}

static int32_t run_host(const weft_program *p, const step *s, held **slot, weft_error *error) {
  for (int32_t i = 0; i < s->outs; ++i) {
    held *const h = value_of(p, slot, s->in[i]);
    held *made = s->kind == STEP_SAME ? use(h) : NULL;
    if (h == NULL) return unready(p, error);
    if (s->kind == STEP_SIZES) {
      const int64_t n = h->ndim;
      if ((made = fresh(8, &n, 1)) == NULL) return no_memory(error, n);
      copy(made->data, h->shape, (size_t)n * 8);
    }
    if (s->out[i] < 0) drop(made);
    else {
      drop(slot[s->out[i]]);
      slot[s->out[i]] = made;
    }
  }
  return WEFT_OK;
}

/* Whether every value has the sizes that the plan says, as far as they are known. */
static int32_t check_sizes(const weft_program *p, const plan *of, held *const *slot, weft_error *error) {
  int64_t *const symbols = (int64_t *)reserve(16, (uint64_t)p->symbols * sizeof *symbols);
  if (symbols == NULL) return no_memory(error, p->symbols);
  learn(p, of, slot, symbols);
  int32_t result = WEFT_OK;
  for (int32_t i = 0; i < of->slots && result == WEFT_OK; ++i) {
    const info *const k = &of->infos[i];
    for (int32_t d = 0; slot[i] != NULL && !k->any && d < k->ndim && d < slot[i]->ndim && result == WEFT_OK; ++d) {
      int64_t wanted = k->shape[d];
      if (k->formula[d] != NULL && (!all_known(p, k->formula[d], symbols) || weft_formula(k->formula[d], symbols, p->symbols, &wanted) != WEFT_FORMULA_OK)) continue;
      if (wanted >= 0 && slot[i]->shape[d] != wanted)
        result = fail(error, i < of->ins ? WEFT_ERROR_INPUT : WEFT_ERROR_RUN, "'%s' of '%s' has size %d on axis %d, expected %d", WORDS(k->name, p->name), NUMBERS(slot[i]->shape[d], d, wanted));
    }
  }
  release(symbols);
  return result;
}

/* The results have a use each, which the caller gives back. */
static int32_t run_plan(const weft_program *p, const plan *of, held *const *given, held **results, weft_tensor *const *storage, weft_error *error) {
  held **const slot = (held **)reserve(16, (size_t)(of->slots + 1) * sizeof(held *));
  int32_t result = WEFT_OK;
  if (slot == NULL) return no_memory(error, of->slots);
  zero(slot, (size_t)of->slots * sizeof(held *));
  for (int32_t i = 0; i < of->ins; ++i) slot[i] = use(given[i]);
  for (int32_t i = 0; i < of->steps && result == WEFT_OK; ++i) {
    step *const s = &of->step[i];
    if (s->kind == STEP_NATIVE) result = run_native(p, of, s, slot, storage, error);
    else if (s->kind == STEP_IF) result = run_branch(p, s, slot, error);
    else if (s->kind == STEP_LOOP) result = run_loop(p, of, s, slot, error);
    else result = run_host(p, s, slot, error);
  }
  held **const outputs = slot + (of->slots - of->outs);
  for (int32_t i = 0; i < of->outs && result == WEFT_OK; ++i) {
    const info *const wanted = &of->infos[of->slots - of->outs + i];
    if (outputs[i] == NULL || (outputs[i]->ndim != wanted->ndim && !wanted->any) || outputs[i]->element != wanted->element) result = unready(p, error);
  }
  if (result == WEFT_OK) result = check_sizes(p, of, slot, error);
  for (int32_t i = 0; i < of->outs && result == WEFT_OK; ++i) results[i] = use(outputs[i]);
  for (int32_t i = 0; i < of->slots; ++i) drop(slot[i]);
  release(slot);
  return result;
}
