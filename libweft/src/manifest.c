/* A program from its manifest. What is wrong is noted once, reading goes on with empty values, and the end is an error. */

typedef struct building {
  weft_program *program;
  const parts *given;
  weft_error *error;
  const node *sections, *plans;
  struct index *symbols, *constants;
  pool scratch;  /* what is needed until the program is made */
  int32_t wrong; /* the code of the first error */
} building;

static const node nothing = {'n', NULL, NULL, 0, 0, 0, NULL, NULL};

static void malformed(building *b, const char *what) {
  if (b->wrong == 0)
    b->wrong = fail(b->error, WEFT_ERROR_ARCHIVE, "the manifest is malformed\nwhy: '%s' is missing or of another kind", WORDS(what), NULL);
}

static void *need(building *b, size_t count, size_t bytes) {
  void *const found = keep(&b->program->memory, ((uint64_t)count + 1) * bytes);
  if (found == NULL && b->wrong == 0) b->wrong = no_memory(b->error, (int64_t)bytes);
  return found;
}

static const node *find(const node *object, const char *key) {
  if (object->kind == '{')
    for (const node *n = object->first; n != NULL; n = n->next)
      if (equal(n->key, key)) return n;
  return &nothing;
}

static const node *field(building *b, const node *object, const char *key, char kind) {
  const node *const found = find(object, key);
  if (found->kind == kind) return found;
  malformed(b, key);
  return &nothing;
}

static int64_t integer(building *b, const node *object, const char *key, int64_t low, int64_t high) {
  const node *const found = field(b, object, key, '0');
  if (found->number >= low && found->number <= high) return found->number;
  malformed(b, key);
  return low;
}

static const char *text(building *b, const node *n) {
  const size_t bytes = n->kind == '"' ? length(n->text) : 0;
  char *const made = (char *)need(b, bytes, 1);
  if (n->kind != '"') malformed(b, n->key != NULL ? n->key : "a text");
  if (made == NULL) return "";
  copy(made, n->text, bytes);
  return made;
}

static int flag(building *b, const node *n) {
  if (n->kind != 't' && n->kind != 'f') malformed(b, n->key != NULL ? n->key : "a flag");
  return n->kind == 't';
}

/* DLPack's type of an element type by its name; 0: there is none. */
static int element_type(const char *name, uint8_t *code, uint8_t *bits) {
  static const struct {
    char kind[16];
    uint8_t code, least, most; /* bits, which the name says from 16 on */
  } kinds[] = {{"int", 0, 2, 64}, {"uint", 1, 2, 64}, {"float", 2, 16, 64}, {"bfloat", 4, 16, 16}, {"complex", 5, 64, 128}, {"bool", 6, 8, 8},
               {"float8_e4m3fn", 10, 8, 8}, {"float8_e4m3fnuz", 11, 8, 8}, {"float8_e5m2", 12, 8, 8}, {"float8_e5m2fnuz", 13, 8, 8},
               {"float8_e8m0fnu", 14, 8, 8}, {"float4_e2m1fn", 17, 4, 4}};
  for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; ++k) {
    const size_t n = length(kinds[k].kind);
    if (!same(name, kinds[k].kind, n)) continue;
    const int said = kinds[k].most >= 16;
    int number = said ? 0 : kinds[k].most;
    const char *at = name + n;
    if (*at == '0') continue;
    for (; said && *at >= '0' && *at <= '9' && number < 1000; ++at) number = number * 10 + (*at - '0');
    if (*at != 0 || number < kinds[k].least || number > kinds[k].most || (number & (number - 1)) != 0) continue;
    *code = kinds[k].code;
    *bits = (uint8_t)number;
    return 1;
  }
  return 0;
}

static int refused(building *b, const char *what, const char *name) {
  if (b->wrong == 0)
    b->wrong = fail(b->error, WEFT_ERROR_UNSUPPORTED, "'%s' needs %s '%s', which only runs where Python is\nhint: run it with the package weft-runtime, or cut the model there",
                    WORDS(b->program->name, what, name), NULL);
  return 0;
}

/* Places of names, in chains by their hashes. */
typedef struct index {
  const char **name;
  int32_t *head, *next, count;
  uint32_t mask;
} index;

static uint32_t hash_of(const char *name) {
  uint32_t hash = 2166136261u; /* FNV-1a */
  while (*name != 0) hash = (hash ^ (unsigned char)*name++) * 16777619u;
  return hash ^ hash >> 15;
}

/* Room for `most` names, of which there are none yet. */
static index *make_index(building *b, int32_t most) {
  uint64_t heads = 16;
  while (heads < (uint64_t)most) heads *= 2;
  index *const made = (index *)keep(&b->scratch, sizeof *made);
  if (made != NULL) {
    made->mask = (uint32_t)heads - 1;
    made->name = (const char **)keep(&b->scratch, (uint64_t)(most + 1) * sizeof(char *));
    made->next = (int32_t *)keep(&b->scratch, (uint64_t)(most + 1) * sizeof(int32_t));
    made->head = (int32_t *)keep(&b->scratch, heads * sizeof(int32_t));
    if (made->name != NULL && made->next != NULL && made->head != NULL) return made;
  }
  if (b->wrong == 0) b->wrong = no_memory(b->error, most);
  return NULL;
}

/* Gives a name the next place. Chains go from the last to the first; place k is k + 1 in them. */
static void enter(index *x, const char *name) {
  int32_t *const head = &x->head[hash_of(name) & x->mask];
  x->name[x->count] = name;
  x->next[x->count] = *head;
  *head = ++x->count;
}

/* The first place of a name from `from` on; -1: it has none there. */
static int32_t place_of(const index *x, const char *name, int32_t from) {
  int32_t found = -1;
  for (int32_t k = x->head[hash_of(name) & x->mask]; k > from; k = x->next[k - 1])
    if (equal(x->name[k - 1], name)) found = k - 1;
  return found;
}

static void describe(building *b, const node *n, info *made) {
  const node *const dims = field(b, n, "shape", '['), *const within = find(n, "within"), *const rank = find(n, "rank");
  made->name = text(b, find(n, "name"));
  made->dtype = text(b, find(n, "dtype"));
  if (within->number > 0 || equal(made->dtype, "string")) {
    refused(b, "the value", made->name);
    return;
  }
  made->any = within->kind == '[';
  if (!element_type(made->dtype, &made->code, &made->bits)) malformed(b, "dtype");
  made->element = made->bits < 8 ? 1 : made->bits / 8;
  if (dims->number > MOST_DIMENSIONS || rank->number < 0 || rank->number > MOST_DIMENSIONS) {
    malformed(b, "shape");
    return;
  }
  const size_t most = (size_t)(made->any ? rank->number : dims->number);
  int64_t *const shape = (int64_t *)need(b, most, sizeof *shape);
  const char **const formula = (const char **)need(b, most, sizeof *formula);
  if (shape == NULL || formula == NULL) return;
  made->shape = shape;
  made->formula = formula;
  if (made->any) {
    made->ndim = (int32_t)most;
    return;
  }
  for (const node *d = dims->first; d != NULL; d = d->next, ++made->ndim) {
    if (d->kind == '0') {
      if (d->number < 0 || d->number > LARGEST) malformed(b, "shape");
      shape[made->ndim] = d->number;
    } else {
      shape[made->ndim] = -1;
      if (d->kind == '"') formula[made->ndim] = text(b, d);
      else if (d->kind != '{') malformed(b, "shape");
    }
  }
}

static int32_t count_of(building *b, const node *list) {
  if (list->number <= 1 << 24) return (int32_t)list->number;
  malformed(b, "a list");
  return 0;
}

/* The slots that names of a list stand for, among those of the plan from `from` on. */
static const int32_t *slots(building *b, const index *names, const node *list, int32_t from, int32_t *count) {
  *count = count_of(b, list);
  int32_t *const made = (int32_t *)need(b, (size_t)*count, sizeof *made);
  int32_t at = 0;
  if (made == NULL) return NULL;
  for (const node *n = list->first; n != NULL; n = n->next, ++at) {
    made[at] = ABSENT;
    if (n->kind != '"') malformed(b, "a name");
    if (n->kind != '"' || n->text[0] == 0) continue;
    const int32_t slot = place_of(names, n->text, from), constant = from == 0 ? place_of(b->constants, n->text, 0) : -1;
    if (slot >= 0) made[at] = slot;
    else if (constant >= 0) made[at] = CONSTANT - constant;
    else malformed(b, n->text);
  }
  return made;
}

static void native(building *b, const node *n, step *s) {
  const node *const section = field(b, n, "section", '"'), *const entry = field(b, n, "entry", '"');
  const node *const names = field(b, n, "constants", '['), *const items = field(b, n, "items", '['), *const checks = field(b, n, "checks", '{');
  if (b->wrong != 0) return;
  for (int32_t k = 0; k < b->given->codes; ++k)
    if (equal(b->given->code[k].name, section->text)) {
      const node *const at = find(find(find(b->sections, section->text), "entries"), entry->text);
      if (at->kind == '0' && at->number >= 0 && (uint64_t)at->number < b->given->code[k].bytes)
        s->run = (weft_segment *)(uintptr_t)(b->given->code[k].base + at->number);
    }
  if (s->run == NULL) malformed(b, "entry");
  s->item_count = count_of(b, items);
  s->check_count = count_of(b, checks);
  void **const table = (void **)need(b, (size_t)count_of(b, names), sizeof *table);
  const char **const item = (const char **)need(b, (size_t)s->item_count, sizeof *item);
  check *const c = (check *)need(b, (size_t)s->check_count, sizeof *c);
  int32_t at = 0;
  if (table == NULL || item == NULL || c == NULL) return;
  for (const node *name = names->first; name != NULL; name = name->next, ++at) {
    const int32_t k = name->kind == '"' ? place_of(b->constants, name->text, 0) : -1;
    if (k >= 0) table[at] = data_of(b->program->constant[k].value);
    if (table[at] == NULL) malformed(b, "constants");
  }
  at = 0;
  for (const node *one = items->first; one != NULL; one = one->next) item[at++] = text(b, one);
  at = 0;
  for (const node *one = checks->first; one != NULL; one = one->next, ++at) {
    for (const char *digit = one->key; *digit >= '0' && *digit <= '9' && c[at].code < 1 << 30; ++digit) c[at].code = c[at].code * 10 + (*digit - '0');
    if (one->kind != '[' || one->number != 2) malformed(b, "checks");
    else {
      c[at].what = text(b, one->first);
      c[at].hint = text(b, one->first->next);
    }
  }
  s->table = table;
  s->items = item;
  s->checks = c;
}

/* The plan of a number, which is one of those before it. */
static int32_t before(building *b, const node *n, const char *key, int32_t number, plan *p) {
  const int32_t found = (int32_t)integer(b, n, key, 0, (int64_t)number - 1);
  if (b->wrong == 0 && p->depth <= b->program->plan[found].depth) p->depth = b->program->plan[found].depth + 1;
  if (p->depth > DEEPEST_PLAN) malformed(b, key);
  return b->wrong == 0 ? found : 0;
}

static const int8_t *small(building *b, const node *list, int flags, int32_t wanted) {
  int8_t *const made = (int8_t *)need(b, (size_t)count_of(b, list), 1);
  int32_t at = 0;
  if (list->number != wanted) malformed(b, "axes");
  if (made == NULL || b->wrong != 0) return made;
  for (const node *n = list->first; n != NULL; n = n->next, ++at) {
    if (!flags && n->kind == '0' && n->number == -1) refused(b, "a loop over", "sequences");
    else if (!flags && (n->kind != '0' || n->number < 0 || n->number > MOST_DIMENSIONS)) malformed(b, "axes");
    else made[at] = (int8_t)(flags ? flag(b, n) : n->number);
  }
  return made;
}

static void loop(building *b, const node *n, step *s, plan *p, int32_t number) {
  const node *const items = field(b, n, "item_axes", '['), *const rows = field(b, n, "result_axes", '[');
  s->then = before(b, n, "body", number, p);
  s->carried = (int32_t)integer(b, n, "carried", 0, 1 << 20);
  s->tests = flag(b, find(n, "tests"));
  s->items_in = count_of(b, items);
  s->rows = count_of(b, rows);
  s->item_axis = small(b, items, 0, s->items_in);
  s->item_back = small(b, field(b, n, "item_backward", '['), 1, s->items_in);
  s->row_axis = small(b, rows, 0, s->rows);
  s->row_back = small(b, field(b, n, "result_backward", '['), 1, s->rows);
  if (b->wrong != 0) return;
  const plan *const body = &b->program->plan[s->then];
  if (body->ins < 1 + s->carried + s->items_in || s->ins != 1 + body->ins || body->outs != s->tests + s->carried + s->rows || s->outs != s->carried + s->rows)
    malformed(b, "body");
}

static void make_step(building *b, const node *n, const index *names, step *s, plan *p, int32_t number) {
  const node *const kind = field(b, n, "kind", '"');
  s->in = slots(b, names, field(b, n, "inputs", '['), 0, &s->ins);
  /* An output may be called like an input, if the plan is this step alone. */
  s->out = slots(b, names, field(b, n, "outputs", '['), p->ins, &s->outs);
  if (b->wrong != 0) return;
  if (equal(kind->text, "native")) {
    s->kind = STEP_NATIVE;
    native(b, n, s);
    for (int32_t k = 0; k < s->ins + s->outs; ++k) {
      const int32_t slot = k < s->ins ? s->in[k] : s->out[k - s->ins];
      if (slot < 0 || p->infos[slot].any) malformed(b, "inputs");
    }
  } else if (equal(kind->text, "if")) {
    s->kind = STEP_IF;
    s->then = before(b, n, "then", number, p);
    s->other = before(b, n, "orelse", number, p);
    if (b->wrong != 0) return;
    const plan *const yes = &b->program->plan[s->then], *const no = &b->program->plan[s->other];
    if (s->ins != 1 + yes->ins + no->ins || s->outs != yes->outs || s->outs != no->outs) malformed(b, "then");
  } else if (equal(kind->text, "loop")) {
    s->kind = STEP_LOOP;
    loop(b, n, s, p, number);
  } else {
    const char *const function = equal(kind->text, "host") ? field(b, n, "function", '"')->text : kind->text;
    const int sizes = equal(function, "Sizes");
    s->kind = sizes ? STEP_SIZES : STEP_SAME;
    if (!sizes && !equal(function, "WithSizes")) refused(b, "the step", function);
    else if (sizes ? s->ins != 1 || s->outs != 1 : s->ins < s->outs) malformed(b, "inputs");
  }
}

static void make_plan(building *b, const node *n, plan *p, int32_t number) {
  static const char lists[][8] = {"inputs", "values", "outputs"};
  info *infos = NULL;
  int32_t at = 0;
  for (int k = 0; k < 3; ++k) p->slots += count_of(b, field(b, n, lists[k], '['));
  if (b->wrong != 0 || (infos = (info *)need(b, (size_t)p->slots, sizeof *infos)) == NULL) return;
  for (int k = 0; k < 3; ++k) {
    if (k == 1) p->ins = at;
    if (k == 2) p->outs = p->slots - at;
    for (const node *one = find(n, lists[k])->first; one != NULL; one = one->next) describe(b, one, &infos[at++]);
  }
  p->infos = infos;
  index *const names = make_index(b, p->slots);
  if (names == NULL) return;
  for (int32_t k = 0; k < p->slots; ++k) enter(names, infos[k].name == NULL ? "" : infos[k].name);
  const node *const steps = field(b, n, "steps", '['), *const symbols = field(b, n, "symbols", '[');
  p->steps = count_of(b, steps);
  p->symbols = count_of(b, symbols);
  p->step = (step *)need(b, (size_t)p->steps, sizeof(step));
  symbol *const said = (symbol *)need(b, (size_t)p->symbols, sizeof *said);
  if (b->wrong != 0) return;
  at = 0;
  for (const node *one = steps->first; one != NULL && b->wrong == 0; one = one->next) make_step(b, one, names, &p->step[at++], p, number);
  at = 0;
  for (const node *one = symbols->first; one != NULL && b->wrong == 0; one = one->next, ++at) {
    const node *const name = field(b, one, "name", '"'), *const source = field(b, one, "value", '"');
    said[at].index = integer(b, one, "index", 0, LARGEST);
    if (b->wrong != 0) return;
    said[at].number = place_of(b->symbols, name->text, 0); /* ABSENT: no formula has it */
    said[at].slot = place_of(names, source->text, 0);
    if (said[at].slot < 0) malformed(b, "symbols");
  }
  p->symbol = said;
  /* An output of the plan is what a step gave it. */
}

enum { MOST_HEADER = 16 << 20 };

/* The weights: a header of safetensors, then data. */
static void constants(building *b, const node *list) {
  weft_program *const p = b->program;
  const parts *const g = b->given;
  constant *const made = (constant *)need(b, (size_t)count_of(b, list), sizeof *made);
  uint64_t header = 0;
  const node *entries = &nothing;
  if (b->wrong != 0 || (b->constants = make_index(b, (int32_t)list->number)) == NULL || list->number == 0) return;
  if (g->weights_bytes >= 8)
    for (int k = 8; k-- > 0;) header = header << 8 | (unsigned char)g->weights[k];
  if (g->weights_bytes >= 8 && header <= g->weights_bytes - 8 && header <= MOST_HEADER) {
    char *const copied = (char *)keep(&b->scratch, (size_t)header + 1);
    if (copied != NULL) {
      copy(copied, g->weights + 8, (size_t)header);
      const node *const found = read_json(&b->scratch, copied, (size_t)header);
      if (found != NULL) entries = found;
    }
  }
  const int read = entries != &nothing; /* or the length of the header may be any number */
  const char *const data = read ? g->weights + 8 + header : NULL;
  const uint64_t bytes = read ? g->weights_bytes - 8 - header : 0;
  p->constant = made;
  for (const node *n = list->first; n != NULL && b->wrong == 0; n = n->next) {
    info of = {0};
    describe(b, n, &of);
    const node *const at = find(find(entries, of.name), "data_offsets");
    const int64_t wanted = b->wrong == 0 ? bytes_of(of.shape, of.ndim, of.element) : -1;
    const int pair = at->kind == '[' && at->number == 2 && at->first->kind == '0' && at->first->next->kind == '0';
    const int64_t from = pair ? at->first->number : -1, to = pair ? at->first->next->number : -1;
    if (from < 0 || to < from || (uint64_t)to > bytes || to - from != wanted) malformed(b, of.name);
    else {
      held *const value = constant_of(&p->memory, &of, data + from);
      if (value == NULL) {
        b->wrong = no_memory(b->error, wanted);
        break;
      }
      enter(b->constants, of.name);
      made[p->constants].name = of.name;
      made[p->constants].value = value;
      ++p->constants;
    }
  }
}

static int needs_missing(building *b, const node *features) {
  for (const node *n = features->first; n != NULL; n = n->next)
    if (n->kind != '"' || !processor_has(n->text)) {
      b->wrong = fail(b->error, WEFT_ERROR_MACHINE, "'%s' was compiled for a processor with %s, which this machine lacks\nwhere: %s",
                      WORDS(b->program->name, n->kind == '"' ? n->text : "?", b->program->target), NULL);
      return 1;
    }
  return 0;
}

static void build(building *b, const node *root) {
  weft_program *const p = b->program;
  p->name = text(b, field(b, root, "name", '"'));
  p->target = text(b, field(b, root, "target", '"'));
  p->version = text(b, field(b, root, "weft", '"'));
  if (b->wrong != 0) return;
  const int64_t format = integer(b, root, "format", 0, LARGEST);
  if (format != WEFT_FORMAT) {
    b->wrong = fail(b->error, WEFT_ERROR_VERSION, "'%s' has format %d, this library reads %d\nhint: compile the model again", WORDS(p->name), NUMBERS(format, WEFT_FORMAT));
    return;
  }
  const node *const machine = field(b, root, "machine", '"');
  const uint16_t one = 1;
  if (b->wrong == 0 && *(const char *)&one == 0) { /* weights are little-endian */
    b->wrong = fail(b->error, WEFT_ERROR_MACHINE, "this machine is big-endian, libweft runs on little-endian ones", NULL, NULL);
    return;
  }
  if (b->wrong == 0 && !equal(machine->text, weft_machine) && !equal(machine->text, "any")) {
    b->wrong = fail(b->error, WEFT_ERROR_MACHINE, "'%s' was compiled for %s, this machine is %s\nwhere: %s", WORDS(p->name, machine->text, weft_machine, p->target), NULL);
    return;
  }
  if (b->wrong != 0 || needs_missing(b, field(b, root, "features", '['))) return;
  const node *const names = field(b, root, "names", '[');
  b->sections = field(b, root, "sections", '{');
  b->plans = field(b, root, "plans", '[');
  p->symbols = count_of(b, names);
  if ((b->symbols = make_index(b, p->symbols)) == NULL) return;
  for (const node *n = names->first; n != NULL; n = n->next)
    if (n->kind == '"') enter(b->symbols, n->text);
    else malformed(b, "names");
  constants(b, field(b, root, "constants", '['));
  const int32_t plans = count_of(b, b->plans);
  p->plan = (plan *)need(b, (size_t)plans + 1, sizeof(plan));
  int32_t at = 0;
  for (const node *n = b->plans->first; n != NULL && b->wrong == 0; n = n->next, ++at) make_plan(b, n, &p->plan[at], at);
  if (b->wrong == 0) make_plan(b, root, &p->plan[at], at);
  const plan *const own = &p->plan[at];
  for (int32_t k = 0; b->wrong == 0 && k < own->slots; ++k)
    if (own->infos[k].any && (k < own->ins || k >= own->slots - own->outs)) refused(b, "the value", own->infos[k].name);
  if (b->wrong != 0) return;
  p->plans = plans + 1;
  const node *const asked = find(root, "threads");
  if (flag(b, find(root, "parallel"))) p->threads = asked->kind == '0' && asked->number > 0 && asked->number < 256 ? (int32_t)asked->number : -1;
}
