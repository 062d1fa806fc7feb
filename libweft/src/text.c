/* Text, memory and errors. */

static size_t length(const char *a) {
  size_t n = 0;
  while (a[n] != 0) ++n;
  return n;
}

/* NULL is an empty text. */
static int equal(const char *a, const char *b) {
  if (a == NULL) a = "";
  if (b == NULL) b = "";
  while (*a != 0 && *a == *b) ++a, ++b;
  return *a == *b;
}

static int same(const char *a, const char *b, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i)
    if (a[i] != b[i]) return 0;
  return 1;
}

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
  if (weft_sys.aligned_malloc != NULL) return weft_sys.aligned_malloc((size_t)bytes, alignment);
  int (*memalign)(void **, size_t, size_t) = (int (*)(void **, size_t, size_t))weft_sys.imports[WEFT_IMPORT_posix_memalign];
  return memalign(&found, alignment, (size_t)bytes) == 0 ? found : NULL;
}

static void release(void *memory) {
  if (memory == NULL) return;
  if (weft_sys.aligned_free != NULL)
    weft_sys.aligned_free(memory);
  else
    ((void (*)(void *))weft_sys.imports[WEFT_IMPORT_free])(memory);
}

/* Appends to a text of at most `room` bytes that ends with 0; a character of UTF-8 is there whole or not at all. */
static size_t append(char *text, size_t at, size_t room, const char *more) {
  while (*more != 0) {
    size_t n = 1;
    while (((unsigned char)more[n] & 0xC0) == 0x80) ++n;
    if (at + n >= room) break;
    while (n-- > 0) text[at++] = *more++;
  }
  text[at] = 0;
  return at;
}

static size_t append_number(char *text, size_t at, size_t room, int64_t number) {
  char digits[24];
  int i = 23;
  uint64_t left = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
  digits[i] = 0;
  do digits[--i] = (char)('0' + left % 10);
  while ((left /= 10) != 0);
  if (number < 0) digits[--i] = '-';
  return append(text, at, room, digits + i);
}

static int32_t fail(weft_error *error, int32_t code, const char *text, const char *const *words, const int64_t *numbers) {
  if (error == NULL || error->size < sizeof *error) return code;
  const size_t room = sizeof error->message;
  size_t at = 0;
  error->code = code;
  error->message[0] = 0;
  for (; *text != 0; ++text) {
    const char one[2] = {*text, 0};
    if (*text != '%')
      at = append(error->message, at, room, one);
    else if (*++text == 's')
      at = append(error->message, at, room, *words++);
    else
      at = append_number(error->message, at, room, *numbers++);
  }
  return code;
}

static int32_t no_memory(weft_error *error, int64_t bytes) {
  return fail(error, WEFT_ERROR_MEMORY, "no memory for %d bytes", NULL, NUMBERS(bytes));
}

static int32_t null_pointer(weft_error *error, const char *what) {
  return fail(error, WEFT_ERROR_ARGUMENT, "%s is a null pointer", WORDS(what), NULL);
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

enum { BLOCK = 1 << 14 };

/* Zeros at a multiple of 16, or NULL: there is no memory. */
static void *keep(pool *memory, uint64_t wanted) {
  if (wanted > (uint64_t)LARGEST || wanted > SIZE_MAX - 64) return NULL;
  const size_t bytes = ((size_t)wanted + 15) & ~(size_t)15;
  if (bytes > memory->room) {
    const size_t whole = bytes + 16 > BLOCK ? bytes + 16 : BLOCK;
    char *const block = (char *)reserve(16, whole);
    if (block == NULL) return NULL;
    *(void **)(void *)block = memory->blocks;
    memory->blocks = block;
    memory->place = block + 16;
    memory->room = whole - 16;
  }
  void *const found = memory->place;
  memory->place += bytes;
  memory->room -= bytes;
  zero(found, bytes);
  return found;
}

static void give_back(pool *memory) {
  while (memory->blocks != NULL) {
    void *const block = memory->blocks;
    memory->blocks = *(void **)block;
    release(block);
  }
  memory->room = 0;
}
