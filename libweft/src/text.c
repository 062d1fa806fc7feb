/* Text, memory and errors. */

static size_t length(const char *a) {
  size_t n = 0;
  while (a[n] != 0) ++n;
  return n;
}

static int same(const char *a, const char *b, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i)
    if (a[i] != b[i]) return 0;
  return 1;
}

static int equal(const char *a, const char *b) { return same(a, b, length(a) + 1); }

static void copy(void *to, const void *from, size_t bytes) {
  if (bytes != 0) ((void *(*)(void *, const void *, size_t))weft_sys.imports[WEFT_IMPORT_memcpy])(to, from, bytes);
}

static void zero(void *to, size_t bytes) {
  volatile char *at = (volatile char *)to; /* volatile: or compilers write a call of memset */
  while (bytes-- > 0) *at++ = 0;
}

/* Memory at a multiple of `alignment`, or NULL. */
static void *reserve(size_t alignment, uint64_t bytes) {
  void *found = NULL;
  if (bytes > (uint64_t)LARGEST || bytes > SIZE_MAX - alignment) return NULL;
  if (bytes == 0) bytes = 1;
#ifdef WEFT_EVERY_MACHINE
  if (weft_sys.aligned_malloc != NULL) return weft_sys.aligned_malloc((size_t)bytes, alignment);
#endif
  int (*memalign)(void **, size_t, size_t) = (int (*)(void **, size_t, size_t))weft_sys.imports[WEFT_IMPORT_posix_memalign];
  return memalign(&found, alignment, (size_t)bytes) == 0 ? found : NULL;
}

/* Zeros at a multiple of 16, or NULL. */
static void *zeros(uint64_t bytes) {
  void *const found = reserve(16, bytes);
  if (found != NULL) zero(found, (size_t)bytes);
  return found;
}

static void release(void *memory) {
  if (memory == NULL) return;
#ifdef WEFT_EVERY_MACHINE
  if (weft_sys.aligned_free != NULL)
    weft_sys.aligned_free(memory);
  else
#endif
    ((void (*)(void *))weft_sys.imports[WEFT_IMPORT_free])(memory);
}

/* Appends to the text of an error, as far as there is room for it. */
static size_t append(weft_error *error, size_t at, const char *more) {
  while (*more != 0 && at < sizeof error->message - 1) error->message[at++] = *more++;
  return at;
}

static size_t append_number(weft_error *error, size_t at, int64_t number) {
  char digits[24];
  int i = 23;
  uint64_t left = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
  digits[i] = 0;
  do digits[--i] = (char)('0' + left % 10);
  while ((left /= 10) != 0);
  if (number < 0) digits[--i] = '-';
  return append(error, at, digits + i);
}

/* Appends a text, of the runtime or of a plan. A text of a plan has numbers alone: what it says is neither an address nor
   a phrase. */
static size_t append_text(const scope *s, size_t at, const char *text, const int64_t *args, int own) {
  for (; *text != 0; ++text) {
    char one[2] = {*text, 0};
    const char *more = one;
    int phrase = (unsigned char)*text - 0x80;
    if (own && phrase >= 0) {
      for (more = PHRASES; phrase-- > 0;) more += length(more) + 1;
      at = append_text(s, at, more, args, own);
      continue;
    }
    if (*text == '%' && text[1] != 0) {
      const unsigned digit = (unsigned)*++text - '0';
      one[0] = *text;
      if (digit < WEFT_ERROR_ARGS) {
        at = append_number(s->error, at, args[digit]);
        continue;
      }
      if (own) more = *text == 'n' ? TEXT(s->program, s->program->head->name) : (const char *)(intptr_t)args[*text - 'a'];
    }
    at = append(s->error, at, more);
  }
  return at;
}

static int32_t tell(const scope *s, int32_t code, const char *text, const int64_t *args, int own) {
  weft_error *const error = s->error;
  if (error == NULL || error->size < sizeof *error) return code;
  size_t at = append_text(s, 0, text, args, own);
  if (at == sizeof error->message - 1) { /* the last character is there whole or not at all */
    while (at > 0 && ((unsigned char)error->message[at - 1] & 0xC0) == 0x80) --at;
    if (at > 0 && (unsigned char)error->message[at - 1] >= 0xC0) --at;
  }
  error->message[at] = 0;
  error->code = code;
  return code;
}

static int32_t fail(const scope *s, const char *text, const int64_t *args) { return tell(s, *text, text + 1, args, 1); }

static int32_t no_memory(const scope *s, int64_t bytes) { return fail(s, MEMORY NO_MEMORY "%0 bytes", &bytes); }

static int32_t null_pointer(const scope *s, const char *what) {
  return fail(s, ARGUMENT "%a" NULL_POINTER, ARGS(WORD(what)));
}

/* The product of sizes and bytes of an element, or -1 if no memory holds it. One of 0 counts as 1 until the end. */
static int64_t bytes_of(const int64_t *shape, int32_t ndim, int64_t element) {
  int64_t total = element;
  int empty = 0;
  for (int32_t i = 0; i < ndim; ++i) {
    const int64_t d = shape[i];
    if (d < 0 || d > LARGEST) return -1;
    if (d == 0)
      empty = 1;
    else if (total > LARGEST / d)
      return -1;
    else
      total *= d;
  }
  return empty ? 0 : total;
}
