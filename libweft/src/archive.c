/* Archives in memory. They are zips that compress nothing, whose first member is the plan: it begins at PLAN, and says
   where the others lie. Nothing of the zip's own directory is read. */

enum { PLAN = 64, SIGNATURE = 32, PIECE = 4 << 20 };

static int32_t damaged(const scope *s, const char *name) {
  return fail(s, ARCHIVE "the archive is damaged" WHERE WHY "its hash or size is not the one in the plan" HINT_COPY, ARGS(WORD(name)));
}

static void hash_of(const char *data, uint64_t bytes, unsigned char digest[32]) {
  sha256 h;
  sha_begin(&h);
  sha_add(&h, data, (size_t)bytes);
  sha_end(&h, digest);
}

static int hash_is(const char *data, uint64_t bytes, const unsigned char *wanted) {
  unsigned char digest[32];
  hash_of(data, bytes, digest);
  return same((const char *)digest, (const char *)wanted, sizeof digest);
}

/* The hash of the hashes of pieces of 4 MiB, as weights have it. */
static int pieces_are(const char *data, uint64_t bytes, const unsigned char *wanted) {
  sha256 whole;
  unsigned char digest[32];
  sha_begin(&whole);
  for (; bytes > 0; data += PIECE) {
    const uint64_t size = bytes < PIECE ? bytes : PIECE;
    hash_of(data, size, digest);
    sha_add(&whole, digest, 32);
    bytes -= size;
  }
  sha_end(&whole, digest);
  return same((const char *)digest, (const char *)wanted, sizeof digest);
}

/* Gives a program the worker pool. It is that of the first program that has one, whose threads wait in it for ever. */
static int32_t share_pool(const scope *s, weft_program *p) {
  static const char *shared;
  static int32_t taken;
  const list *const image = &p->head->pool;
  int32_t result = WEFT_OK;
  if (image->count == 0) return WEFT_OK;
  lock(&taken);
  if (shared == NULL) {
    result = map_image(s, TEXT(p, image->at), 4 * (size_t)image->count, &shared);
    if (result == WEFT_OK) shared += p->head->pool_entry;
  }
  p->parallel_for = (weft_parallel_for *)(uintptr_t)shared;
  unlock(&taken);
  return result;
}

/* Reads the plan, checks every section, and makes code executable. */
static int32_t read_archive(const scope *s, weft_program *p, file *f, const char *data, uint64_t bytes, int vouched, parts *given) {
  if (bytes < 4 || !same(data, "PK\3\4", 4)) return corrupt(s, "it does not begin as a zip");
  if (bytes > 43 && same(data + 30, "manifest.json", 13)) return fail(s, VERSION ARCHIVE_HAS "a format before %0, which " THIS_LIBRARY "reads" HINT_COMPILE, ARGS(WEFT_FORMAT));
  if (bytes < PLAN) return corrupt(s, "it has no plan");
  const char *base = data + PLAN;
  uint64_t room = bytes - PLAN;
  if (f->mapped) { /* what is checked is what is used, whoever writes into the file */
    const uint64_t whole = (uint64_t)((const head *)(const void *)base)->bytes + 32;
    if (room > whole) room = whole;
    base = (const char *)(f->plan = reserve(64, room));
    if (base == NULL) return no_memory(s, (int64_t)room);
    copy(f->plan, data + PLAN, (size_t)room);
  }
  int32_t result = read_plan(s, p, base, room);
  if (result != WEFT_OK) return result;
  const head *const h = p->head;
  if (room - h->bytes < 32 || !hash_is(base, h->bytes, (const unsigned char *)base + h->bytes)) return damaged(s, "plan");
  if (h->sections.count > MOST_MAPS) return fail(s, UNSUPPORTED ARCHIVE_HAS "more than %0 sections of code" HINT_PACKAGE, ARGS(MOST_MAPS));
  result = share_pool(s, p);
  if (result != WEFT_OK) return result;
  for (int32_t k = 0; k < h->sections.count; ++k) {
    const section *const c = &ROWS(p, section, h->sections)[k];
    if (c->at > bytes || c->bytes > bytes - c->at || c->bytes < SIGNATURE || !hash_is(data + c->at, c->bytes, c->hash) ||
        !same(data + c->at + c->bytes - SIGNATURE, (const char *)h->signature, SIGNATURE))
      return damaged(s, TEXT(p, c->name));
    const size_t size = (size_t)c->bytes - SIGNATURE;
    result = map_image(s, data + c->at, size, &f->code[k].base);
    if (result != WEFT_OK) return result;
    f->code[f->maps++].bytes = size;
  }
  given->weights = data;
  given->weights_bytes = 0;
  given->code = f->code;
  if (h->weights_bytes == 0) return WEFT_OK;
  if (h->weights % 64 != 0 || h->weights > bytes || h->weights_bytes > bytes - h->weights || (!vouched && !pieces_are(data + h->weights, h->weights_bytes, h->weights_hash))) return damaged(s, "weights.safetensors");
  given->weights = data + h->weights;
  given->weights_bytes = h->weights_bytes;
  return WEFT_OK;
}
