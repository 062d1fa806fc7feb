/* Archives: a zip that compresses nothing (APPNOTE 6.3, with the records of ZIP64), in memory. Every size is compared
   with the file's before anything is read there. */

enum { MEMBERS = 64, SIGNATURE = 32, PIECE = 4 << 20 };

typedef struct member {
  const char *name;
  size_t name_bytes;
  const char *data;
  uint64_t bytes;
} member;

static uint64_t little(const char *at, int bytes) {
  uint64_t found = 0;
  while (bytes-- > 0) found = found << 8 | (unsigned char)at[bytes];
  return found;
}

static int32_t too_many(weft_error *error, int64_t most, const char *what) {
  return fail(error, WEFT_ERROR_UNSUPPORTED, "the archive has more than %d %s\nhint: run it with the package weft-runtime", WORDS(what), NUMBERS(most));
}

static int32_t corrupt(weft_error *error, const char *why) {
  return fail(error, WEFT_ERROR_ARCHIVE, "this is no archive of Weft, or it is truncated or corrupt\nwhy: %s\nhint: save or copy it again", WORDS(why), NULL);
}

/* The members of a zip; fewer than 0: why not is in `error`. */
static int32_t read_zip(const char *file, uint64_t bytes, member *members, weft_error *error) {
  const char why[] = "its directory is malformed";
  uint64_t end = bytes < 22 ? 0 : bytes - 22;
  if (bytes < 22 || little(file, 4) != 0x04034b50) return -corrupt(error, "it does not begin as a zip");
  while (little(file + end, 4) != 0x06054b50) {
    if (end == 0 || bytes - end > 22 + 65535) return -corrupt(error, "it has no directory at its end");
    --end;
  }
  uint64_t count = little(file + end + 10, 2), at = little(file + end + 16, 4);
  if (end >= 20 && little(file + end - 20, 4) == 0x07064b50) {
    const uint64_t more = little(file + end - 12, 8);
    if (more > bytes - 56 || bytes < 56 || little(file + more, 4) != 0x06064b50) return -corrupt(error, why);
    count = little(file + more + 32, 8);
    at = little(file + more + 48, 8);
  }
  if (count > bytes >> 5) return -corrupt(error, why);
  if (count > MEMBERS) return -too_many(error, MEMBERS, "members");
  for (uint64_t k = 0; k < count; ++k) {
    if (at > bytes || bytes - at < 46 || little(file + at, 4) != 0x02014b50) return -corrupt(error, why);
    const char *const entry = file + at;
    const uint64_t name = little(entry + 28, 2), extra = little(entry + 30, 2), comment = little(entry + 32, 2);
    uint64_t size = little(entry + 24, 4), packed = little(entry + 20, 4), place = little(entry + 42, 4);
    if (bytes - at - 46 < name + extra + comment) return -corrupt(error, why);
    for (uint64_t x = 46 + name, last = x + extra; x + 4 <= last; x += 4 + little(entry + x + 2, 2)) {
      uint64_t y = x + 4;
      const uint64_t stop = y + little(entry + x + 2, 2);
      uint64_t *const wide[3] = {&size, &packed, &place};
      if (little(entry + x, 2) != 1 || stop > last) continue;
      for (int i = 0; i < 3; ++i)
        if (*wide[i] == 0xFFFFFFFF && y + 8 <= stop) {
          *wide[i] = little(entry + y, 8);
          y += 8;
        }
    }
    if (little(entry + 10, 2) != 0 || packed != size || (little(entry + 8, 2) & 1) != 0) return -corrupt(error, "a member is compressed or encrypted");
    if (place > bytes || bytes - place < 30 || little(file + place, 4) != 0x04034b50) return -corrupt(error, why);
    const uint64_t skipped = 30 + little(file + place + 26, 2) + little(file + place + 28, 2);
    if (little(file + place + 26, 2) != name || bytes - place < skipped || bytes - place - skipped < size || !same(file + place + 30, entry + 46, name)) return -corrupt(error, why);
    members[k].name = entry + 46;
    members[k].name_bytes = name;
    members[k].data = file + place + skipped;
    members[k].bytes = size;
    for (uint64_t j = 0; j < k; ++j)
      if (members[j].name_bytes == name && same(members[j].name, entry + 46, name)) return -corrupt(error, "it holds a member twice");
    at += 46 + name + extra + comment;
  }
  return (int32_t)count;
}

static const member *find_member(const member *members, int32_t count, const char *folder, const char *name) {
  const size_t a = length(folder), b = length(name);
  for (int32_t k = 0; k < count; ++k)
    if (members[k].name_bytes == a + b && same(members[k].name, folder, a) && same(members[k].name + a, name, b)) return &members[k];
  return NULL;
}

/* The hash of the hashes of pieces of 4 MiB, as weights have it. */
static void hash_pieces(const char *data, uint64_t bytes, unsigned char digest[32]) {
  sha256 whole, part;
  sha_begin(&whole);
  for (uint64_t at = 0; at < bytes; at += PIECE) {
    sha_begin(&part);
    sha_add(&part, data + at, (size_t)(bytes - at < PIECE ? bytes - at : PIECE));
    sha_end(&part, digest);
    sha_add(&whole, digest, 32);
  }
  sha_end(&whole, digest);
}

/* By what code knows its manifest: the hash of its text with the sections' own hashes and sizes left out. */
static void sign(const char *text, size_t bytes, const node *sections, unsigned char digest[32]) {
  sha256 s;
  size_t at = 0;
  sha_begin(&s);
  sha_add(&s, "weft abi 2\n", 11);
  for (const node *n = sections->first; n != NULL; n = n->next)
    for (const node *f = n->first; f != NULL; f = f->next) {
      const int hash = equal(f->key, "sha256");
      if (!hash && !equal(f->key, "bytes")) continue;
      sha_add(&s, text + at, f->begin - at);
      sha_add(&s, hash ? "\"\"" : "0", hash ? 2 : 1);
      at = f->end;
    }
  sha_add(&s, text + at, bytes - at);
  sha_end(&s, digest);
}

static int32_t damaged(weft_error *error, const char *name) {
  return fail(error, WEFT_ERROR_ARCHIVE, "the archive is damaged\nwhere: %s\nwhy: its hash or size is not the one in the manifest\nhint: save or copy it again", WORDS(name), NULL);
}

/* Checks every section, and makes code executable. What it finds goes into `given`; mapped code is noted in `f`. */
static int32_t read_archive(file *f, const char *data, uint64_t bytes, int vouched, parts *given, weft_error *error) {
  member members[MEMBERS];
  unsigned char digest[32], signature[32];
  pool scratch = {NULL, NULL, 0};
  const int32_t count = read_zip(data, bytes, members, error);
  if (count < 0) return -count;
  const member *const manifest = find_member(members, count, "manifest.json", ""), *const weights = find_member(members, count, "weights.safetensors", "");
  if (manifest == NULL || manifest->bytes > 16 << 20) return corrupt(error, "it has no manifest, or one of more than 16 MiB");
  char *const text = (char *)keep(&scratch, (size_t)manifest->bytes + 1);
  if (text == NULL) return no_memory(error, (int64_t)manifest->bytes);
  copy(text, manifest->data, (size_t)manifest->bytes);
  const node *const root = read_json(&scratch, text, (size_t)manifest->bytes);
  int32_t result = root == NULL || root->kind != '{' || find(root, "sections")->kind != '{' ? corrupt(error, "the manifest is no JSON, or lists no sections") : WEFT_OK;
  int32_t known = 1 + (weights != NULL);
  if (result == WEFT_OK) {
    const node *const sections = find(root, "sections"), *const machine = find(root, "machine"), *const format = find(root, "format");
    /* Said before hashes are compared: code of another version has other ones. */
    if (format->kind == '0' && format->number != WEFT_FORMAT)
      result = fail(error, WEFT_ERROR_VERSION, "the archive has format %d, this library reads %d\nhint: compile the model again", NULL, NUMBERS(format->number, WEFT_FORMAT));
    sign(manifest->data, (size_t)manifest->bytes, sections, signature);
    for (const node *n = sections->first; n != NULL && result == WEFT_OK; n = n->next) {
      const member *const m = find_member(members, count, "code/", n->key);
      const node *const hash = find(n, "sha256"), *const size = find(n, "bytes");
      if (m == NULL || hash->kind != '"' || size->kind != '0' || (uint64_t)size->number != m->bytes || m->bytes < SIGNATURE) {
        result = damaged(error, n->key);
        break;
      }
      sha256 s;
      sha_begin(&s);
      sha_add(&s, m->data, (size_t)m->bytes);
      sha_end(&s, digest);
      if (!is_digest(digest, hash->text) || !same(m->data + m->bytes - SIGNATURE, (const char *)signature, SIGNATURE)) {
        result = damaged(error, n->key);
        break;
      }
      ++known;
      /* Code of another machine is not mapped; the manifest's refusal comes later. */
      if (machine->kind != '"' || !equal(machine->text, weft_machine)) continue;
      if (f->maps == MOST_MAPS) result = too_many(error, MOST_MAPS, "sections of code");
      else result = map_code(f, m->data, (size_t)m->bytes - SIGNATURE, error);
      if (result == WEFT_OK) {
        char *const name = (char *)keep(&f->memory, length(n->key) + 1);
        if (name == NULL) result = no_memory(error, 0);
        else copy(name, n->key, length(n->key));
        f->code[f->maps - 1].name = name;
      }
    }
    const node *const hash = find(find(root, "weights"), "sha256");
    if (result == WEFT_OK && weights != NULL) {
      const node *const size = find(find(root, "weights"), "bytes");
      if (size->kind != '0' || (uint64_t)size->number != weights->bytes || hash->kind != '"') result = damaged(error, "weights.safetensors");
      if (result == WEFT_OK && !vouched) {
        hash_pieces(weights->data, weights->bytes, digest);
        if (!is_digest(digest, hash->text)) result = damaged(error, "weights.safetensors");
      }
    }
    if (result == WEFT_OK && known != count) result = corrupt(error, "it holds a member that its manifest does not name");
  }
  give_back(&scratch);
  given->manifest = manifest->data;
  given->manifest_bytes = (size_t)manifest->bytes;
  given->weights = weights != NULL ? weights->data : NULL;
  given->weights_bytes = weights != NULL ? (size_t)weights->bytes : 0;
  given->code = f->code;
  given->codes = f->maps;
  return result;
}
