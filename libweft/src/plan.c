/* A program from its plan. Plans may come from anybody: every list and text lies inside, every number is one of those
   that it may be. */

typedef struct reading {
  const char *base;
  uint32_t at, bytes; /* lists lie in the order in which they are met, so each row is checked once */
  const plan *of;     /* whose lists are checked */
  int32_t slots, natives;
} reading;

/* What the words of the rows of a kind of list are, by its letter: an upper-case letter is such a list (two words), t a
   text, i and o the slot of an input and an output, f a formula, c a constant, n any number. */
static const char KINDS[] =
    ":HnnnttttttnnnnnnnnnnnnnnnnnnnnnnnFSCGPB" /* head */
    ":Ftnnn:Stnnnnnnnnnnnnn:CnnnnZ:GZ"      /* features, sections, constants, formulas */
    ":PVnnTYnn:VttnZD:TnnnnIOXKMRR:Ynonn"     /* plans, infos, steps, symbols */
    ":Znn:Df:Ii:Oo:Xt:Kc:Mnt:Rnn:Bn";         /* 64 bits, formulas, slots, names, constants, checks, turns, code */

static const head *head_of(const reading *r) { return (const head *)(const void *)r->base; }

static int good_element(int32_t bytes) { return bytes > 0 && bytes <= 16 && (bytes & (bytes - 1)) == 0; }

static int good_info(const reading *r, const info *i) {
  const int64_t *const sizes = ROWS(r, int64_t, i->sizes);
  for (int32_t d = 0; d < i->sizes.count; ++d)
    if (sizes[d] < -1 || sizes[d] > LARGEST) return 0;
  return i->sizes.count <= MOST_DIMENSIONS && i->formulas.count == i->sizes.count && good_element(i->element) && i->element == (i->bits < 8 ? 1 : i->bits / 8);
}

/* A plan by its number, which is before the one that runs it; NULL: there is none. */
static const plan *before(const reading *r, int32_t number) {
  const plan *const plans = ROWS(r, plan, head_of(r)->plans);
  /* no difference of the pointers: it is a division, which is a call on 32-bit Arm */
  return number >= 0 && number < head_of(r)->plans.count && plans + number < r->of && plans[number].depth < r->of->depth ? plans + number : NULL;
}

static int good_turns(const reading *r, const list *l) {
  for (int32_t i = 0; i < l->count; ++i) {
    const turn *const t = &ROWS(r, turn, *l)[i];
    if (t->axis < 0 || t->axis > MOST_DIMENSIONS) return 0;
  }
  return 1;
}

static int good_slots(const reading *r, const list *l) {
  for (int32_t i = 0; i < l->count; ++i) {
    const int32_t slot = ROWS(r, int32_t, *l)[i];
    if (slot < 0 || ROWS(r, info, r->of->infos)[slot].any) return 0;
  }
  return 1;
}

static int good_step(reading *r, const step *s) {
  const int32_t ins = s->in.count, outs = s->out.count;
  switch (s->kind) {
    case STEP_NATIVE:
      return (uint32_t)s->of.native.section < (uint32_t)head_of(r)->sections.count && s->of.native.number == r->natives++ && good_slots(r, &s->in) && good_slots(r, &s->out);
    case STEP_SIZES: return ins == 1 && outs == 1;
    case STEP_SAME: return ins >= outs;
    case STEP_IF: {
      const plan *const yes = before(r, s->of.branch.then), *const no = before(r, s->of.branch.other);
      return yes != NULL && no != NULL && ins == 1 + yes->ins + no->ins && outs == yes->outs && outs == no->outs;
    }
    case STEP_LOOP: {
      const plan *const body = before(r, s->of.loop.body);
      const int32_t carried = s->of.loop.carried, tests = s->of.loop.tests;
      return body != NULL && carried >= 0 && carried <= outs && (uint32_t)tests <= 1 && ins == 1 + body->ins && body->ins >= 1 + carried + s->taken.count &&
             outs == carried + s->rows.count && body->outs == tests + outs && good_turns(r, &s->taken) && good_turns(r, &s->rows);
    }
    default: return 0;
  }
}

static int good_plan(const plan *p) {
  return p->ins >= 0 && p->outs >= 0 && p->ins <= p->infos.count && p->outs <= p->infos.count - p->ins && p->depth >= 0 && p->depth <= DEEPEST_PLAN;
}

static int rows(reading *r, char kind, const list *l) {
  const char *form = KINDS, *c;
  uint32_t words = 0;
  while (form[0] != ':' || form[1] != kind) ++form;
  form += 2;
  for (c = form; *c >= 'A'; ++c) words += *c < 'a' ? 2 : 1;
  const uint64_t bytes = (uint64_t)(uint32_t)l->count * words * 4;
  if (l->at % 8 != 0 || l->at < r->at || l->at > r->bytes || bytes > r->bytes - l->at) return 0;
  r->at = l->at + (uint32_t)bytes;
  if (kind == 'V') r->slots = l->count;
  const int32_t *w = ROWS(r, int32_t, *l);
  for (int32_t i = 0; i < l->count; ++i) {
    const void *const row = w;
    if (kind == 'P') r->of = (const plan *)row;
    for (c = form; *c >= 'A'; ++c) {
      const int32_t v = *w;
      int good = 1;
      if (*c == 't') good = (uint32_t)v < r->bytes;
      else if (*c == 'f') good = v >= 0 && v <= head_of(r)->formulas.count;
      else if (*c == 'c') good = v >= 0 && v < head_of(r)->constants.count;
      else if (*c == 'i') good = v < r->slots && CONSTANT - v < head_of(r)->constants.count;
      else if (*c == 'o') good = v < r->slots && v >= ABSENT;
      else if (*c < 'a') good = rows(r, *c, (const list *)(const void *)w++);
      if (!good) return 0;
      ++w;
    }
    if (kind == 'V' && !good_info(r, (const info *)row)) return 0;
    if (kind == 'T' && !good_step(r, (const step *)row)) return 0;
    if (kind == 'P' && !good_plan((const plan *)row)) return 0;
  }
  return 1;
}

static int32_t corrupt(const scope *s, const char *why) {
  return fail(s, ARCHIVE "this is no archive of Weft, or it is truncated or corrupt" WHY "%a" HINT_COPY, ARGS(WORD(why)));
}

static int32_t malformed(const scope *s) { return corrupt(s, "its plan is malformed"); }

/* Checks the plan that begins at `base`, where so many bytes are, and whether this machine can run it. */
static int32_t read_plan(const scope *s, weft_program *p, const char *base, uint64_t room) {
  const head *const h = (const head *)(const void *)base;
  const list whole = {0, 1};
  if (room < sizeof *h || !same(h->magic, "weft", 4)) return corrupt(s, "it has no plan");
  if (h->format != WEFT_FORMAT) return fail(s, VERSION ARCHIVE_HAS "format %0, " THIS_LIBRARY "reads %1" HINT_COMPILE, ARGS(h->format, WEFT_FORMAT));
  reading r = {base, 0, h->bytes, NULL, 0, 0};
  if (h->bytes < sizeof *h || h->bytes > room || base[h->bytes - 1] != 0 || !rows(&r, 'H', &whole) || h->plans.count == 0 || (uint32_t)h->symbols > h->bytes / 8 || (h->pool.count > 0 && h->pool_entry >= 4u * (uint32_t)h->pool.count)) return malformed(s);
  p->base = base;
  p->head = h;
  p->plan = ROWS(p, plan, h->plans);
  p->own = &p->plan[h->plans.count - 1];
  p->natives_count = r.natives;
  const info *const infos = ROWS(p, info, p->own->infos);
  for (int32_t k = 0; k < p->own->infos.count; ++k)
    if (infos[k].any && (k < p->own->ins || k >= p->own->infos.count - p->own->outs)) return malformed(s);
  const char *const machine = TEXT(p, h->machine), *const target = TEXT(p, h->target);
  if (!equal(machine, weft_machine) && !equal(machine, "any"))
    return fail(s, MACHINE COMPILED_FOR "%b, this machine is %c" WHERE, ARGS(WORD(target), WORD(machine), WORD(weft_machine)));
  for (int32_t k = 0; k < h->features.count; ++k) {
    const feature *const f = &ROWS(p, feature, h->features)[k];
    if (!processor_has(f)) return fail(s, MACHINE COMPILED_FOR "a processor with %b, which this machine lacks" WHERE, ARGS(WORD(target), WORD(TEXT(p, f->name))));
  }
  if (h->missing != 0)
    return fail(s, UNSUPPORTED "'%n' needs " KIND_AND_NAME ", which only runs where Python is" HINT_PACKAGE ", or cut the model there",
                ARGS(WORD(TEXT(p, h->missing)), WORD(TEXT(p, h->what))));
  return WEFT_OK;
}

/* Makes what the plan describes. Its code and weights stay where they are until it is closed. */
static int32_t build(const scope *s, weft_program *p, const parts *given) {
  const int32_t count = p->head->constants.count;
  p->natives = (native *)zeros((uint64_t)p->natives_count * sizeof *p->natives);
  p->constants = (held *)zeros((uint64_t)count * sizeof *p->constants);
  if (p->natives == NULL || p->constants == NULL) return no_memory(s, count);
  for (int32_t k = 0; k < count; ++k) {
    const constant *const c = &ROWS(p, constant, p->head->constants)[k];
    held *const h = &p->constants[k];
    h->refs = -1;
    h->ndim = c->sizes.count;
    h->element = c->element;
    h->shape = ROWS(p, int64_t, c->sizes);
    const int64_t bytes = good_element(c->element) ? size_of(h) : -1;
    if (bytes < 0 || h->ndim > MOST_DIMENSIONS || c->at % 64 != 0 || c->at > given->weights_bytes || (uint64_t)bytes > given->weights_bytes - c->at) return malformed(s);
    h->data = (char *)(uintptr_t)given->weights + c->at;
  }
  for (int32_t k = 0; k < p->head->plans.count; ++k)
    for (int32_t i = 0; i < p->plan[k].steps.count; ++i) {
      const step *const made = &ROWS(p, step, p->plan[k].steps)[i];
      if (made->kind != STEP_NATIVE) continue;
      const code_part *const code = &given->code[made->of.native.section];
      if (made->of.native.entry >= code->bytes) return malformed(s);
      p->natives[made->of.native.number].run = (weft_segment *)(uintptr_t)(code->base + made->of.native.entry);
    }
  return WEFT_OK;
}
