/* Files and executable memory, by Linux's own calls: a function of the C library that is called by name costs a hundred
   bytes of tables. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST_MAPS = 32 };
#define SYSTEM_CALL(...) ((long (*)(long, ...))weft_sys.imports[WEFT_IMPORT_syscall])(__VA_ARGS__)

/* What an open archive has of the system. */
typedef struct file {
  void *data; /* mapped or reserved */
  void *plan; /* a copy of it, if the file is mapped: it may change */
  size_t bytes;
  int mapped;
  code_part code[MOST_MAPS];
  int32_t maps;
} file;

/* NULL: it is refused. Places of no `fd` are zeros. */
static void *map(size_t bytes, long rights, int fd) {
#ifdef SYS_mmap2
  const long number = SYS_mmap2;
#else
  const long number = SYS_mmap;
#endif
  const long flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_PRIVATE, found = SYSTEM_CALL(number, NULL, bytes, rights, flags, (long)fd, 0L);
  return found == -1 ? NULL : (void *)found;
}

static void unmap(const void *at, size_t bytes) { SYSTEM_CALL(SYS_munmap, at, bytes); }

/* Where a file is read next, after a move by nothing from its beginning or end; -1: it has no such places. */
static int64_t place_in(long fd, long from) {
#ifdef SYS__llseek
  int64_t found;
  return SYSTEM_CALL(SYS__llseek, fd, 0L, 0L, &found, from) < 0 ? -1 : found;
#else
  return SYSTEM_CALL(SYS_lseek, fd, 0L, from);
#endif
}

static void leave_file(void *opened) {
  file *const f = (file *)opened;
  for (int32_t k = 0; k < f->maps; ++k) unmap(f->code[k].base, f->code[k].bytes + 1);
  if (f->mapped) unmap(f->data, f->bytes);
  else release(f->data);
  release(f->plan);
  release(f);
}

/* A copy of an image that is written first and executed then, never both at a time. */
static int32_t map_image(const scope *s, const char *image, size_t bytes, const char **made) {
  char *const at = (char *)map(bytes + 1, PROT_READ | PROT_WRITE, -1);
  if (at == NULL) return no_memory(s, (int64_t)bytes);
  copy(at, image, bytes);
  if (SYSTEM_CALL(SYS_mprotect, at, bytes + 1, (long)(PROT_READ | PROT_EXEC)) != 0) {
    unmap(at, bytes + 1);
    return fail(s, SYSTEM "compiled code cannot be made executable" HINT "allow new executable memory for this process, or write a library by weft export", NULL);
  }
  __builtin___clear_cache(at, at + bytes);
  *made = at;
  return WEFT_OK;
}

/* Small files are read, so that what was checked is what runs; large ones are mapped. */
static int32_t read_file(const scope *s, file *f, const char *path) {
  enum { COPIED = 64 << 20 };
  const long fd = SYSTEM_CALL(SYS_openat, (long)AT_FDCWD, path, (long)(O_RDONLY | O_CLOEXEC | O_LARGEFILE));
  if (fd < 0) return fail(s, UNREADABLE "'%a' cannot be opened", ARGS(WORD(path)));
  const int64_t bytes = place_in(fd, SEEK_END);
  int32_t result = WEFT_OK;
  if (bytes == 0) result = corrupt(s, "it is empty");
  else if (bytes < 0 || bytes > LARGEST || place_in(fd, SEEK_SET) != 0) result = fail(s, UNREADABLE "'%a' cannot be read", ARGS(WORD(path)));
  else {
    f->bytes = (size_t)bytes;
    f->mapped = bytes > COPIED;
    f->data = f->mapped ? map(f->bytes, PROT_READ, (int)fd) : reserve(4096, f->bytes);
    if (f->data == NULL) result = no_memory(s, bytes);
    for (size_t at = 0; result == WEFT_OK && !f->mapped && at < f->bytes;) {
      const long n = SYSTEM_CALL(SYS_read, fd, (char *)f->data + at, f->bytes - at);
      if (n <= 0) result = fail(s, UNREADABLE "'%a' cannot be read", ARGS(WORD(path)));
      at += (size_t)n;
    }
  }
  SYSTEM_CALL(SYS_close, fd);
  return result;
}
