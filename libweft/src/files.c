/* Files and executable memory of POSIX systems. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_MAPS = 32 };

/* What an open archive has of the system. */
typedef struct file {
  void *data; /* mapped or reserved */
  size_t bytes;
  int mapped;
  code_part code[MOST_MAPS];
  int32_t maps;
} file;

static void leave_file(void *opened) {
  file *const f = (file *)opened;
  for (int32_t k = 0; k < f->maps; ++k) munmap((void *)(uintptr_t)f->code[k].base, f->code[k].bytes == 0 ? 1 : f->code[k].bytes);
  if (f->mapped) munmap(f->data, f->bytes);
  else release(f->data);
  release(f);
}

/* A copy of an image that is written first and executed then, never both at a time. */
static int32_t map_image(const scope *s, const char *image, size_t bytes, const char **made) {
  const size_t room = bytes == 0 ? 1 : bytes;
  void *const at = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return no_memory(s, (int64_t)bytes);
  copy(at, image, bytes);
  if (mprotect(at, room, PROT_READ | PROT_EXEC) != 0) {
    munmap(at, room);
    return fail(s, SYSTEM "compiled code cannot be made executable" HINT "the system forbids new executable memory: allow it for this process, or write the model as a library by weft export", NULL);
  }
  __builtin___clear_cache((char *)at, (char *)at + bytes);
  *made = (const char *)at;
  return WEFT_OK;
}

/* Small files are read, so that what was checked is what runs; large ones are mapped. */
static int32_t read_file(const scope *s, file *f, const char *path) {
  enum { COPIED = 64 << 20 };
  struct stat about;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return fail(s, UNREADABLE "'%s' cannot be opened", ARGS(WORD(path)));
  int32_t result = WEFT_OK;
  if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) result = fail(s, UNREADABLE "'%s' is no file", ARGS(WORD(path)));
  else if (about.st_size <= 0 || (int64_t)about.st_size > LARGEST) result = corrupt(s, "it is empty");
  else {
    f->bytes = (size_t)about.st_size;
    if (f->bytes > COPIED) {
      f->data = mmap(NULL, f->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
      f->mapped = f->data != MAP_FAILED;
      if (!f->mapped) f->data = NULL;
    } else {
      f->data = reserve(4096, f->bytes);
      for (size_t at = 0; f->data != NULL && at < f->bytes;) {
        const ssize_t n = read(fd, (char *)f->data + at, f->bytes - at);
        if (n <= 0) {
          result = fail(s, UNREADABLE "'%s' cannot be read", ARGS(WORD(path)));
          break;
        }
        at += (size_t)n;
      }
    }
    if (f->data == NULL) result = no_memory(s, about.st_size);
  }
  close(fd);
  return result;
}
