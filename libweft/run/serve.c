/* `weft-run --serve`: runs programs for another machine, which speaks to it on its standard input and output.

   A frame is "WEFT", a kind, a tag and a length (32 bits each, little-endian), and as many bytes. Every request but ALIVE and
   CANCEL is answered by frames with its tag, the last of which is RESULT or ERROR. Who may connect is decided before this
   program starts: by ssh, by adb, by who starts it. What it runs has the rights of the user that it runs as.

   Files that are sent lie in a folder by the SHA-256 of what they hold; "HASH.part" is one that has not come whole. Each
   job is a child with limits in a process group of its own: it ends with the connection, with its time, or with this
   program. A file that is locked meanwhile keeps a second job off the board. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h> /* rename */
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "weft.h"

#if defined(__clang__) /* beyond -Os: small programs are sent soon */
#pragma clang attribute push(__attribute__((minsize)), apply_to = function)
#endif

#include "../src/sha256.c"

#define PROTOCOL 1
#define HEADER 16
#define LARGEST_FRAME (256 << 10)
#define RUN_BYTES 120
#define MOST_TENSORS 1024
#define MOST_DIMENSIONS 64
#define MOST_SAMPLES 100000
#define SECOND 1000000000LL
#define UNKNOWN INT64_MIN

enum { HELLO = 1, ALIVE, HAVE, PUT, RUN, CANCEL };
enum { RESULT = 65, ERROR, DATA, STILL };

/* Codes beside those of weft.h. */
enum {
  PROTOCOL_ERROR = 100, MISSING, BUSY, DISK, DAMAGED, TIME, OUTPUT, CRASH, CANCELLED, TOO_LARGE, SYSTEM
};

static struct {
  const char *store, *lock;
  uint64_t most;      /* bytes of the store */
  int64_t silence;    /* nanoseconds without a word from the other side after which this program ends */
  int greeted;        /* HELLO was said, in the same version */
  pid_t job;          /* 0: none */
  int64_t heard;      /* when the other side was last heard */
  uint32_t tag;       /* of the request that is answered */
  size_t held;        /* bytes in `in` */
  uint8_t in[HEADER + LARGEST_FRAME], out[HEADER + LARGEST_FRAME];
} my;

/* -- bytes and text */

static uint32_t get32(const uint8_t *p) { return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24; }
static uint64_t get64(const uint8_t *p) { return get32(p) | (uint64_t)get32(p + 4) << 32; }
static uint8_t *put32(uint8_t *p, uint32_t v) {
  for (int i = 0; i < 4; i++) *p++ = (uint8_t)(v >> 8 * i);
  return p;
}
static uint8_t *put64(uint8_t *p, uint64_t v) { return put32(put32(p, (uint32_t)v), (uint32_t)(v >> 32)); }

typedef struct text {
  char *at, *end; /* the last byte is kept for 0 */
} text;

static void add(text *t, const char *words) {
  while (*words && t->at < t->end - 1) *t->at++ = *words++;
  *t->at = 0;
}

static void add_number(text *t, int64_t value) {
  char digits[24], *p = digits + sizeof digits;
  uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
  *--p = 0;
  do *--p = (char)('0' + left % 10);
  while (left /= 10);
  if (value < 0) *--p = '-';
  add(t, p);
}

static void add_hex(text *t, const uint8_t *bytes, size_t count) {
  for (size_t i = 0; i < count; i++) {
    char pair[3] = {"0123456789abcdef"[bytes[i] >> 4], "0123456789abcdef"[bytes[i] & 15], 0};
    add(t, pair);
  }
}

/* The number at the beginning of a text, or UNKNOWN. */
static int64_t number_in(const char *p) {
  int negative, digits = 0;
  int64_t value = 0;
  while (*p == ' ' || *p == '\t') p++;
  negative = *p == '-';
  for (p += negative; *p >= '0' && *p <= '9' && digits < 18; p++, digits++) value = value * 10 + (*p - '0');
  return !digits ? UNKNOWN : negative ? -value : value;
}

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * SECOND + t.tv_nsec;
}

/* -- the connection */

static void kill_job(void) {
  if (!my.job) return;
  kill(-my.job, SIGKILL);
  kill(my.job, SIGKILL); /* it may not have its group yet */
  while (waitpid(my.job, NULL, 0) < 0 && errno == EINTR) {}
  my.job = 0;
}

static void leave(int code) {
  kill_job();
  _exit(code);
}

/* Reads what has come. Ends the program when the connection has ended. */
static void hear(void) {
  ssize_t got = read(0, my.in + my.held, sizeof my.in - my.held);
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (got <= 0) leave(got < 0);
  my.held += (size_t)got;
  my.heard = now();
}

/* Waits until there is something to read from `fd` (or nothing, if it is negative), at most `wait` nanoseconds; hears the
   other side meanwhile. Says whether `fd` is ready. */
static int await(int fd, short events, int64_t wait) {
  struct pollfd p[2] = {{my.held < sizeof my.in ? 0 : -1, POLLIN, 0}, {fd, events, 0}};
  int64_t left = my.heard + my.silence - now();
  if (left < wait) wait = left;
  poll(p, 2, wait < 0 ? 0 : (int)((wait + 999999) / 1000000));
  if (p[0].revents) hear();
  if (now() - my.heard > my.silence) leave(3);
  return p[1].revents;
}

static void write_out(const uint8_t *p, size_t bytes) {
  int64_t moved = now();
  while (bytes) {
    ssize_t sent = write(1, p, bytes);
    if (sent > 0) {
      p += sent, bytes -= (size_t)sent;
      moved = now();
      continue;
    }
    if (sent < 0 && errno != EAGAIN && errno != EINTR) leave(1);
    await(1, POLLOUT, SECOND);
    if (now() - moved > my.silence) leave(3); /* the other side reads no more */
  }
}

/* Where the content of the next frame is written. */
static uint8_t *room(void) { return my.out + HEADER; }

static void send_frame(uint32_t kind, size_t bytes) {
  memcpy(my.out, "WEFT", 4);
  put32(put32(put32(my.out + 4, kind), my.tag), (uint32_t)bytes);
  write_out(my.out, HEADER + bytes);
}

static void send_error(uint32_t code, const char *message) {
  text t = {(char *)put32(room(), code), (char *)room() + 2048};
  char *from = t.at;
  add(&t, message);
  send_frame(ERROR, 4 + (size_t)(t.at - from));
}

static void send_system_error(uint32_t code, const char *message, int number) {
  char said[512];
  text t = {said, said + sizeof said};
  add(&t, message);
  add(&t, "\nwhy: errno ");
  add_number(&t, number);
  send_error(code, said);
}

static void drop(size_t bytes) {
  my.held -= bytes;
  memmove(my.in, my.in + bytes, my.held);
}

/* The whole size of the frame that has come first, or 0 if it is not whole. */
static size_t whole(void) {
  if (my.held < HEADER) return 0;
  if (memcmp(my.in, "WEFT", 4) || get32(my.in + 12) > LARGEST_FRAME) {
    my.tag = 0;
    send_error(PROTOCOL_ERROR, "what was sent is no frame");
    leave(2);
  }
  size_t size = HEADER + get32(my.in + 12);
  return my.held < size ? 0 : size;
}

/* While a request is worked on: whether it was cancelled. Anything else that is said is an error. */
static int cancelled(void) {
  for (size_t size; (size = whole()); drop(size)) {
    uint32_t kind = get32(my.in + 4);
    if (kind == CANCEL && get32(my.in + 8) == my.tag) {
      drop(size);
      return 1;
    }
    if (kind != ALIVE && kind != CANCEL) {
      kill_job();
      send_error(PROTOCOL_ERROR, "a request was sent before the one before it had its answer");
      leave(2);
    }
  }
  return 0;
}

static void send_still(uint32_t state) {
  put32(room(), state);
  send_frame(STILL, 4);
}

/* -- the store */

/* The file of a hash, or NULL if the name of the folder is too long. */
static const char *file_of(const uint8_t hash[32], const char *ending, char path[PATH_MAX]) {
  text t = {path, path + PATH_MAX};
  if (strlen(my.store) > PATH_MAX - 80) return NULL;
  add(&t, my.store);
  add(&t, "/");
  add_hex(&t, hash, 32);
  add(&t, ending);
  return path;
}

static int make_folder(const char *folder) {
  char path[PATH_MAX];
  size_t length = strlen(folder);
  if (length >= sizeof path) return -1;
  for (size_t i = 1; i <= length; i++)
    if (folder[i] == '/' || !folder[i]) {
      memcpy(path, folder, i);
      path[i] = 0;
      if (mkdir(path, 0700) && errno != EEXIST && i == length) return -1;
    }
  struct stat s;
  return stat(folder, &s) || !S_ISDIR(s.st_mode) ? -1 : 0;
}

/* Deletes what was used longest ago until `bytes` more fit; `but` stays. */
static int make_room(uint64_t bytes, const char *but) {
  if (bytes > my.most) return 0;
  for (;;) {
    static char names[4096];
    char path[PATH_MAX], oldest[PATH_MAX];
    oldest[0] = 0;
    uint64_t total = 0;
    struct timespec when = {0, 0};
    int folder = open(my.store, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return 0;
    for (long got; (got = syscall(SYS_getdents64, folder, names, sizeof names)) > 0;)
      for (long at = 0; at < got;) {
        /* inode and offset (8 bytes each), the size of the entry (2), its type (1), its name */
        const char *name = names + at + 19;
        uint16_t size;
        memcpy(&size, names + at + 16, 2);
        at += size;
        struct stat s;
        text t = {path, path + sizeof path};
        if (strlen(name) < 64) continue;
        add(&t, my.store);
        add(&t, "/");
        add(&t, name);
        if (lstat(path, &s) || !S_ISREG(s.st_mode)) continue;
        if (!strcmp(path, but)) continue; /* its bytes are among those that are asked for */
        total += (uint64_t)s.st_size;
        if (!oldest[0] || s.st_mtim.tv_sec < when.tv_sec ||
            (s.st_mtim.tv_sec == when.tv_sec && s.st_mtim.tv_nsec < when.tv_nsec)) {
          memcpy(oldest, path, sizeof path);
          when = s.st_mtim;
        }
      }
    close(folder);
    if (total + bytes <= my.most) return 1;
    if (!oldest[0] || unlink(oldest)) return 0;
  }
}

static int hash_file(int fd, uint8_t digest[32]) {
  static uint8_t piece[64 << 10];
  sha256 s;
  sha_begin(&s);
  for (off_t at = 0;;) {
    ssize_t got = pread(fd, piece, sizeof piece, at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    sha_add(&s, piece, (size_t)got);
    at += got;
    my.heard = now(); /* a large file takes its time, and nobody is listened to meanwhile */
  }
  sha_end(&s, digest);
  return 0;
}

static void send_held(uint64_t bytes, int complete) {
  put32(put64(room(), bytes), (uint32_t)complete);
  send_frame(RESULT, 12);
}

static void have(const uint8_t *p, size_t bytes) {
  char path[PATH_MAX];
  struct stat s;
  if (bytes != 32) {
    send_error(PROTOCOL_ERROR, "a HAVE has another size");
    return;
  }
  if (file_of(p, "", path) && !stat(path, &s)) {
    syscall(SYS_utimensat, AT_FDCWD, path, NULL, 0); /* it was used now */
    send_held((uint64_t)s.st_size, 1);
    return;
  }
  send_held(file_of(p, ".part", path) && !stat(path, &s) ? (uint64_t)s.st_size : 0, 0);
}

static void put(const uint8_t *p, size_t bytes) {
  char path[PATH_MAX], final[PATH_MAX];
  struct stat s;
  if (bytes < 48 || !get64(p + 32) || get64(p + 40) > get64(p + 32) || bytes - 48 > get64(p + 32) - get64(p + 40)) {
    send_error(PROTOCOL_ERROR, "a PUT has another size than its content");
    return;
  }
  uint64_t total = get64(p + 32), at = get64(p + 40);
  const uint8_t *content = p + 48;
  bytes -= 48;
  if (!file_of(p, "", final) || !file_of(p, ".part", path)) {
    send_error(SYSTEM, "the name of the store is too long");
    return;
  }
  if (!stat(final, &s)) { /* somebody else was faster */
    send_held((uint64_t)s.st_size, 1);
    return;
  }
  if (total > my.most) {
    send_error(TOO_LARGE, "a file is larger than the store\nhint: weft-run --serve --store-bytes N");
    return;
  }
  int fd = open(path, O_RDWR | (at ? 0 : O_CREAT) | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0 && at && errno == ENOENT) {
    send_error(DAMAGED, "a part of a file does not follow the part before it");
    return;
  }
  if (fd < 0) {
    send_system_error(DISK, "a file cannot be written to the store", errno);
    return;
  }
  if (flock(fd, LOCK_EX | LOCK_NB)) {
    send_error(BUSY, "the same file is being sent by another connection");
  } else if (fstat(fd, &s) || (!at && (uint64_t)s.st_size > total && ftruncate(fd, 0)) ||
             ((uint64_t)s.st_size != at && (at || (uint64_t)s.st_size <= total))) {
    send_error(DAMAGED, "a part of a file does not follow the part before it");
  } else if (at == 0 && !make_room(total, path)) {
    unlink(path);
    send_error(DISK, "there is no room in the store");
  } else {
    while (bytes) {
      ssize_t done = pwrite(fd, content, bytes, (off_t)at);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) break;
      content += done, bytes -= (size_t)done, at += (uint64_t)done;
    }
    uint8_t digest[32];
    if (bytes) {
      int number = errno ? errno : ENOSPC;
      unlink(path); /* another has the room */
      send_system_error(DISK, "a file cannot be written to the store", number);
    } else if (at < total) {
      send_held(at, 0);
    } else if (hash_file(fd, digest) || memcmp(digest, p, 32)) {
      unlink(path);
      send_error(DAMAGED, "a file has not arrived as it was sent\nwhy: its SHA-256 is another");
    } else if (rename(path, final)) {
      send_system_error(DISK, "a file cannot be written to the store", errno);
    } else {
      send_held(at, 1);
    }
  }
  close(fd);
}

/* -- what the board is */

/* The beginning of a small file as text. */
static size_t read_text(const char *path, char *to, size_t bytes) {
  size_t held = 0;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  while (fd >= 0 && held < bytes - 1) {
    ssize_t got = read(fd, to + held, bytes - 1 - held);
    if (got <= 0) break;
    held += (size_t)got;
  }
  if (fd >= 0) close(fd);
  to[held] = 0;
  return held;
}

static int64_t read_number(const char *path, int64_t scale) {
  char said[64];
  read_text(path, said, sizeof said);
  int64_t value = number_in(said);
  return value > (1LL << 40) || value < -(1LL << 40) ? UNKNOWN : value * scale;
}

static int64_t clock_now(void) { return read_number("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", 1000); }
static int64_t temperature(void) { return read_number("/sys/class/thermal/thermal_zone0/temp", 1); }

/* Processors that this process may use. */
static int count_cores(void) {
  static uint8_t set[1024];
  int count = 0;
  long bytes = syscall(SYS_sched_getaffinity, 0, sizeof set, set);
  for (long i = 0; i < bytes * 8; i++) count += set[i / 8] >> i % 8 & 1;
  return count ? count : 1;
}

static int64_t memory_of(const char *all, const char *name) {
  const char *p = strstr(all, name);
  int64_t value = p ? number_in(p + strlen(name)) : UNKNOWN;
  return value < 0 || value > (1LL << 50) ? UNKNOWN : value * 1024;
}

static void say(text *t, const char *name, const char *value) {
  add(t, name);
  add(t, "=");
  for (; *value && *value != '\n'; value++) {
    char one[2] = {*value, 0};
    add(t, one);
  }
  add(t, "\n");
}

static void say_number(text *t, const char *name, int64_t value) {
  char digits[24];
  text n = {digits, digits + sizeof digits};
  if (value == UNKNOWN) return;
  add_number(&n, value);
  say(t, name, digits);
}

static const char *architecture(void) {
#if defined(__x86_64__)
  return "x86_64";
#elif defined(__i386__)
  return "i386";
#elif defined(__aarch64__)
  return "aarch64";
#elif defined(__arm__)
  return "arm";
#elif defined(__riscv) && __riscv_xlen == 64
  return "riscv64";
#elif defined(__riscv)
  return "riscv32";
#elif defined(__loongarch64)
  return "loongarch64";
#elif defined(__s390x__)
  return "s390x";
#else
  return "other";
#endif
}

static void hello(const uint8_t *p, size_t bytes) {
  static char said[8192];
  struct utsname u;
  if (bytes != 8) {
    send_error(PROTOCOL_ERROR, "a HELLO has another size");
    return;
  }
  if (get32(p) != PROTOCOL) {
    text t = {said, said + sizeof said};
    add(&t, "this agent speaks version ");
    add_number(&t, PROTOCOL);
    add(&t, " of the protocol, the other side version ");
    add_number(&t, get32(p));
    add(&t, "\nhint: take weft-run and weft-remote of one version");
    send_error(PROTOCOL_ERROR, said);
    return;
  }
  uint32_t silence = get32(p + 4);
  my.silence = (silence < 100 ? 100 : silence > 3600000 ? 3600000 : silence) * (SECOND / 1000);
  my.greeted = 1;
  text t = {(char *)room(), (char *)room() + LARGEST_FRAME};
  uint32_t one = 1;
  say_number(&t, "protocol", PROTOCOL);
  say_number(&t, "api", weft_api_version());
  say(&t, "architecture", architecture());
  say_number(&t, "bits", (int64_t)sizeof(void *) * 8);
  say(&t, "order", *(uint8_t *)&one ? "little" : "big");
  if (!uname(&u)) {
    say(&t, "system", u.sysname);
    say(&t, "release", u.release);
    say(&t, "node", u.nodename);
  }
  if (read_text("/proc/device-tree/model", said, sizeof said)) say(&t, "model", said);
  say_number(&t, "cores", count_cores());
  if (read_text("/proc/meminfo", said, sizeof said)) {
    say_number(&t, "memory", memory_of(said, "MemTotal:"));
    say_number(&t, "free", memory_of(said, "MemAvailable:"));
  }
  say_number(&t, "fastest", read_number("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", 1000));
  say_number(&t, "clock", clock_now());
  say_number(&t, "temperature", temperature());
  if (read_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", said, sizeof said)) say(&t, "governor", said);
  say_number(&t, "hwcap", (int64_t)getauxval(AT_HWCAP));
  say_number(&t, "hwcap2", (int64_t)getauxval(AT_HWCAP2));
  say(&t, "store", my.store);
  say_number(&t, "store_bytes", (int64_t)my.most);
  say(&t, "lock", my.lock);
  say_number(&t, "user", getuid());
  say_number(&t, "process", getpid());
  add(&t, "\n");
  read_text("/proc/cpuinfo", said, sizeof said);
  add(&t, said);
  send_frame(RESULT, (size_t)(t.at - (char *)room()));
}

/* -- a job: what the child does */

static int job_out;

static void give(const void *data, size_t bytes) {
  const uint8_t *p = data;
  while (bytes) {
    ssize_t sent = write(job_out, p, bytes);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) _exit(1);
    p += sent, bytes -= (size_t)sent;
  }
}

static void give64(uint64_t value) {
  uint8_t bytes[8];
  put64(bytes, value);
  give(bytes, 8);
}

static void give32(uint32_t value) {
  uint8_t bytes[4];
  put32(bytes, value);
  give(bytes, 4);
}

static void job_fails(uint32_t code, const char *message) {
  give32(code);
  give(message, strlen(message));
  _exit(0);
}

/* A file of the store in memory, if it holds what its name says. */
static const uint8_t *mapped(const uint8_t hash[32], size_t *bytes, const char *lacks) {
  char path[PATH_MAX];
  struct stat s;
  uint8_t digest[32];
  int fd = file_of(hash, "", path) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0 || fstat(fd, &s) || s.st_size <= 0) job_fails(MISSING, lacks);
  void *data = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
  close(fd);
  if (data == MAP_FAILED) job_fails(WEFT_ERROR_MEMORY, "there is not enough memory for the files of a job");
  sha256 check;
  sha_begin(&check);
  sha_add(&check, data, (size_t)s.st_size);
  sha_end(&check, digest);
  if (memcmp(digest, hash, 32)) {
    unlink(path);
    job_fails(DAMAGED, "a file of the store is damaged\nwhy: its SHA-256 is another than its name\nhint: it was deleted; send it again");
  }
  *bytes = (size_t)s.st_size;
  return data;
}

static uint64_t bytes_of(const weft_tensor *t) {
  uint64_t count = 1; /* of elements, none of which takes less than a byte */
  for (int32_t i = 0; i < t->ndim; i++) {
    if (t->shape[i] < 0 || (t->shape[i] && count > ((uint64_t)1 << 47) / (uint64_t)t->shape[i])) return UINT64_MAX;
    count *= (uint64_t)t->shape[i];
  }
  return count * (t->bits < 8 ? 1 : t->bits / 8u) * t->lanes;
}

/* The tensors of a file: how many; of each its type, rank, bytes and sizes; then their data, each from a multiple of 64. */
static int32_t read_tensors(const uint8_t *file, size_t bytes, weft_tensor *tensors, int64_t (*shapes)[MOST_DIMENSIONS]) {
  static const char wrong[] = "the file of a job's inputs does not say what it holds";
  if (bytes < 4 || get32(file) > MOST_TENSORS) job_fails(PROTOCOL_ERROR, wrong);
  int32_t count = (int32_t)get32(file);
  size_t at = 4;
  for (int32_t i = 0; i < count; i++) {
    weft_tensor *t = &tensors[i];
    if (bytes - at < 8) job_fails(PROTOCOL_ERROR, wrong);
    uint32_t ndim = get32(file + at + 4);
    if (ndim > MOST_DIMENSIONS || bytes - at - 8 < ndim * 8) job_fails(PROTOCOL_ERROR, wrong);
    *t = (weft_tensor){.device_type = 1, .ndim = (int32_t)ndim, .code = file[at], .bits = file[at + 1],
                       .lanes = (uint16_t)(file[at + 2] | file[at + 3] << 8), .shape = shapes[i]};
    for (uint32_t k = 0; k < ndim; k++) shapes[i][k] = (int64_t)get64(file + at + 8 + 8 * k);
    at += 8 + 8 * ndim;
  }
  for (int32_t i = 0; i < count; i++) {
    uint64_t size = bytes_of(&tensors[i]);
    at = (at + 63) / 64 * 64;
    if (at > bytes || size > bytes - at) job_fails(PROTOCOL_ERROR, wrong);
    tensors[i].data = (void *)(uintptr_t)(file + at); /* inputs are only read */
    at += (size_t)size;
  }
  return count;
}

static void limit(int what, uint64_t value) {
  struct rlimit r;
  if (prlimit(0, what, NULL, &r)) return;
  if (r.rlim_max == RLIM_INFINITY || value < r.rlim_max) r.rlim_max = (rlim_t)value;
  r.rlim_cur = r.rlim_max;
  prlimit(0, what, &r, NULL);
}

typedef struct order {
  const uint8_t *program, *inputs; /* hashes */
  uint32_t threads, warmups, repeats, flags;
  uint64_t budget;      /* nanoseconds of all repeats; 0: as many as they are */
  uint64_t milliseconds, wait, memory, most;
} order;

static void work(const order *o, pid_t parent) {
  static int64_t in_shapes[MOST_TENSORS][MOST_DIMENSIONS], out_shapes[MOST_TENSORS][MOST_DIMENSIONS];
  static weft_tensor in[MOST_TENSORS], out[MOST_TENSORS];
  static const weft_tensor *ins[MOST_TENSORS];
  static weft_tensor *outs[MOST_TENSORS];
  static uint64_t samples[MOST_SAMPLES];
  setpgid(0, 0);
  syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1); /* it ended before that was said */
  int nothing = open("/dev/null", O_RDWR);
  for (int fd = 0; fd < 3; fd++) dup2(nothing, fd);
  uint64_t cores = (uint64_t)count_cores();
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_FSIZE, 0);
  limit(RLIMIT_NOFILE, 64);
  limit(RLIMIT_CPU, (o->milliseconds / 1000 + 2) * cores);
  if (o->memory) limit(RLIMIT_AS, o->memory);

  weft_error error = {.size = sizeof error};
  weft_program_info info = {.size = sizeof info};
  weft_program *program;
  size_t bytes, input_bytes;
  int64_t started = now();
  const uint8_t *file = mapped(o->program, &bytes, "the program of a job is not in the store");
  const uint8_t *data = mapped(o->inputs, &input_bytes, "the inputs of a job are not in the store");
  weft_options options = {.size = sizeof options, .threads = (int32_t)o->threads};
  int32_t code = weft_open_memory(file, bytes, &options, &program, &error);
  if (code) job_fails((uint32_t)code, error.message);
  if ((code = weft_describe(program, &info, &error))) job_fails((uint32_t)code, error.message);
  int64_t opened = now() - started;
  int32_t count = read_tensors(data, input_bytes, in, in_shapes);
  if (count != info.inputs) job_fails(WEFT_ERROR_INPUT, "a job has another number of inputs than its program");
  if (info.outputs < 0 || info.outputs > MOST_TENSORS) job_fails(WEFT_ERROR_UNSUPPORTED, "a program has too many outputs for a job");
  for (int32_t i = 0; i < count; i++) ins[i] = &in[i];
  for (int32_t i = 0; i < info.outputs; i++) {
    weft_value_info v = {.size = sizeof v};
    if ((code = weft_output(program, i, &v, &error))) job_fails((uint32_t)code, error.message);
    if (v.ndim < 0 || v.ndim > MOST_DIMENSIONS) job_fails(WEFT_ERROR_UNSUPPORTED, "an output has too many dimensions for a job");
    out[i] = (weft_tensor){.device_type = 1, .ndim = v.ndim, .code = v.code, .bits = v.bits, .lanes = v.lanes, .shape = out_shapes[i]};
    outs[i] = &out[i];
  }
  /* The first run makes the storage of the outputs, the others write into it. */
  int64_t clock_before = UNKNOWN, warm_before = UNKNOWN;
  uint32_t done = 0;
  int64_t spent = 0;
  for (uint64_t turn = 0; turn < (uint64_t)o->warmups + o->repeats; turn++) {
    if (turn == o->warmups) clock_before = clock_now(), warm_before = temperature();
    int64_t begin = now();
    code = weft_run(program, ins, outs, &error);
    int64_t time = now() - begin;
    if (code) job_fails((uint32_t)code, error.message);
    if (turn < o->warmups) continue;
    samples[done++] = (uint64_t)time;
    spent += time;
    if (o->budget && (uint64_t)spent >= o->budget) break;
  }
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  give32(0);
  give32(o->flags & 1 ? (uint32_t)info.outputs : 0);
  give64(done);
  give64((uint64_t)opened);
  give64((uint64_t)usage.ru_maxrss * 1024);
  give64((uint64_t)clock_before);
  give64((uint64_t)clock_now());
  give64((uint64_t)warm_before);
  give64((uint64_t)temperature());
  for (uint32_t i = 0; i < done; i++) give64(samples[i]);
  if (o->flags & 1) {
    for (int32_t i = 0; i < info.outputs; i++) {
      uint8_t head[8] = {out[i].code, out[i].bits, (uint8_t)out[i].lanes, (uint8_t)(out[i].lanes >> 8)};
      put32(head + 4, (uint32_t)out[i].ndim);
      give(head, 8);
      for (int32_t k = 0; k < out[i].ndim; k++) give64((uint64_t)out[i].shape[k]);
    }
    for (int32_t i = 0; i < info.outputs; i++)
      give((const uint8_t *)out[i].data + out[i].byte_offset, (size_t)bytes_of(&out[i]));
  }
  _exit(0);
}

/* -- a job: what the parent does */

/* A process that was killed keeps its files, and the lock with them, until the system has taken it apart. */
#define ENDING (SECOND / 4)

/* The board's lock, or -1 when it was answered that there is none. */
static int take_board(const order *o) {
  int fd = open(my.lock, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0 && errno == ENOENT) {
    fd = open(my.lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd >= 0) fchmod(fd, 0666); /* other users of the board lock it, too */
  }
  if (fd < 0 && errno == EACCES) fd = open(my.lock, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) {
    send_system_error(SYSTEM, "the file that locks the board cannot be opened", errno);
    return -1;
  }
  int64_t started = now(), said = 0, wait = (int64_t)o->wait * (SECOND / 1000);
  if (wait < ENDING) wait = ENDING;
  while (flock(fd, LOCK_EX | LOCK_NB)) {
    char who[64], message[256];
    int64_t time = now();
    if (time - started >= wait) {
      ssize_t got = pread(fd, who, sizeof who - 1, 0);
      text t = {message, message + sizeof message};
      who[got > 0 ? got : 0] = 0;
      add(&t, "another job runs on the board");
      if (got > 0) add(&t, "\nwhere: "), add(&t, who);
      add(&t, "\nhint: try again, or wait longer for the board");
      send_error(BUSY, message);
      close(fd);
      return -1;
    }
    if (time - said > SECOND) send_still(0), said = time;
    await(-1, 0, 5 * (SECOND / 1000));
    if (cancelled()) {
      send_error(CANCELLED, "the job was cancelled while it waited for the board");
      close(fd);
      return -1;
    }
  }
  char note[64];
  text t = {note, note + sizeof note};
  add(&t, "user ");
  add_number(&t, getuid());
  add(&t, ", process ");
  add_number(&t, getpid());
  if (ftruncate(fd, 0) || pwrite(fd, note, (size_t)(t.at - note), 0) < 0) {} /* a note, no more */
  return fd;
}

static void ended_badly(int status, const order *o) {
  char message[256];
  text t = {message, message + sizeof message};
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU) {
    send_error(TIME, "a job took more processor time than it may");
    return;
  }
  add(&t, "a job ended before it had an answer\nwhy: ");
  if (WIFSIGNALED(status)) {
    add(&t, "signal ");
    add_number(&t, WTERMSIG(status));
  } else add(&t, "exit status "), add_number(&t, WEXITSTATUS(status));
  if (o->memory && WIFSIGNALED(status)) {
    add(&t, "; its limit of memory is ");
    add_number(&t, (int64_t)o->memory);
    add(&t, " bytes");
  }
  send_error(CRASH, message);
}

static void run(const uint8_t *p) {
  order o = {p, p + 32, get32(p + 64), get32(p + 68), get32(p + 72), get32(p + 76), get64(p + 80), get64(p + 88),
             get64(p + 96), get64(p + 104), get64(p + 112)};
  if (o.threads > 4096 || !o.repeats || o.repeats > MOST_SAMPLES || o.milliseconds > 86400000 || !o.milliseconds ||
      o.wait > 86400000) {
    send_error(PROTOCOL_ERROR, "a RUN asks for numbers that are not allowed");
    return;
  }
  int lock = take_board(&o), ends[2];
  if (lock < 0) return;
  pid_t self = getpid();
  if (syscall(SYS_pipe2, ends, O_CLOEXEC)) {
    send_system_error(SYSTEM, "a job cannot be started", errno);
    close(lock);
    return;
  }
  pid_t child = fork();
  if (child < 0) {
    int number = errno;
    close(ends[0]), close(ends[1]), close(lock);
    send_system_error(SYSTEM, "a job cannot be started", number);
    return;
  }
  if (child == 0) {
    close(ends[0]);
    job_out = ends[1];
    work(&o, self);
  }
  my.job = child;
  setpgid(child, child);
  close(ends[1]);
  sha256 sum;
  uint8_t digest[32];
  uint64_t sent = 0;
  int64_t ends_at = now() + (int64_t)o.milliseconds * (SECOND / 1000), said = now();
  uint32_t wrong = 0;
  sha_begin(&sum);
  while (!wrong) {
    int64_t time = now(), left = ends_at - time;
    if (left <= 0) {
      wrong = TIME;
      break;
    }
    if (time - said > SECOND) send_still(1), said = time;
    if (await(ends[0], POLLIN, left < SECOND ? left : SECOND)) {
      ssize_t got = read(ends[0], room(), LARGEST_FRAME);
      if (got == 0) break;
      if (got < 0) {
        if (errno == EINTR) continue;
        wrong = SYSTEM;
      } else if (sent + (uint64_t)got > o.most) {
        wrong = OUTPUT;
      } else {
        sha_add(&sum, room(), (size_t)got);
        sent += (uint64_t)got;
        send_frame(DATA, (size_t)got);
      }
    }
    if (!wrong && cancelled()) wrong = CANCELLED;
  }
  close(ends[0]);
  int status = 0;
  if (!wrong) {
    /* It has closed its pipe, and may not have ended: that it does is part of its time. */
    pid_t gone;
    while ((gone = waitpid(child, &status, WNOHANG)) == 0 && now() < ends_at) await(-1, 0, SECOND / 1000);
    if (gone == child) kill(-child, SIGKILL), my.job = 0;
    else wrong = TIME;
  }
  kill_job();
  close(lock);
  if (wrong == TIME) {
    char message[128];
    text t = {message, message + sizeof message};
    add(&t, "a job was ended\nwhy: it took longer than ");
    add_number(&t, (int64_t)o.milliseconds);
    add(&t, " ms");
    send_error(TIME, message);
  } else if (wrong == OUTPUT) {
    send_error(OUTPUT, "a job was ended\nwhy: its results are larger than they may be");
  } else if (wrong == CANCELLED) {
    send_error(CANCELLED, "the job was cancelled");
  } else if (wrong) {
    send_error(wrong, "a job was ended\nwhy: the system gives no word of it");
  } else if (!WIFEXITED(status) || WEXITSTATUS(status)) {
    ended_badly(status, &o);
  } else {
    sha_end(&sum, digest);
    memcpy(room(), digest, 32);
    put64(room() + 32, sent);
    send_frame(RESULT, 40);
  }
}

/* -- the program */

static void answer(void) {
  size_t size;
  while (!(size = whole())) await(-1, 0, 60 * SECOND);
  uint32_t kind = get32(my.in + 4);
  const uint8_t *p = my.in + HEADER;
  size_t bytes = size - HEADER;
  my.tag = get32(my.in + 8);
  if (kind == HELLO) hello(p, bytes);
  else if (kind == ALIVE || kind == CANCEL) {} /* what it cancels has its answer */
  else if (!my.greeted) {
    send_error(PROTOCOL_ERROR, "the first request is no HELLO");
    leave(2);
  } else if (kind == HAVE) have(p, bytes);
  else if (kind == PUT) put(p, bytes);
  else if (kind == RUN) {
    uint8_t asked[RUN_BYTES];
    if (bytes == RUN_BYTES) memcpy(asked, p, RUN_BYTES);
    drop(size); /* what is heard from now on is said during the job */
    if (bytes == RUN_BYTES) run(asked);
    else send_error(PROTOCOL_ERROR, "a RUN has another size");
    return;
  } else
    send_error(PROTOCOL_ERROR, "there is no request of this kind");
  drop(size);
}

static int misused(const char *message, const char *word) {
  if (write(2, message, strlen(message)) < 0 || write(2, word, strlen(word)) < 0 || write(2, "\n", 1) < 0) {}
  return 2;
}

/* Serves until its standard input ends. `argv` is --serve and what follows it. */
int weft_serve(int argc, char **argv) {
  static char store[PATH_MAX], lock[PATH_MAX];
  my.most = (uint64_t)1 << 30;
  my.silence = 60 * SECOND;
  for (int i = 1; i < argc; i += 2) {
    const char *value = i + 1 < argc ? argv[i + 1] : NULL;
    if (!value) return misused("weft-run --serve: not an option, or one without its value: ", argv[i]);
    if (!strcmp(argv[i], "--store")) my.store = value;
    else if (!strcmp(argv[i], "--lock")) my.lock = value;
    else if (!strcmp(argv[i], "--store-bytes")) {
      int64_t bytes = number_in(value);
      if (bytes <= 0) return misused("weft-run --serve: --store-bytes takes a number of bytes, not ", value);
      my.most = (uint64_t)bytes;
    }
    else return misused("weft-run --serve: there is no option ", argv[i]);
  }
  if (isatty(0)) return misused("weft-run --serve speaks with a program, not on a terminal: ", "see weft.remote");
  const char *temporary = access("/tmp", W_OK) && !access("/data/local/tmp", W_OK) ? "/data/local/tmp" : "/tmp";
  if (!my.store) {
    const char *home = getenv("HOME");
    text t = {store, store + sizeof store};
    if (home && home[0] == '/' && home[1]) add(&t, home), add(&t, "/.cache/weft-run");
    else add(&t, temporary), add(&t, "/weft-run-"), add_number(&t, getuid());
    my.store = store;
  }
  if (!my.lock) {
    text t = {lock, lock + sizeof lock};
    add(&t, temporary);
    add(&t, "/weft-run.lock");
    my.lock = lock;
  }
  if (make_folder(my.store)) return misused("weft-run --serve: the folder of the store cannot be made: ", my.store);
  int on = 1; /* a write that the other side does not read must not keep this program from listening */
  syscall(SYS_ioctl, 1, FIONBIO, &on);
  my.heard = now();
  for (;;) answer();
}

#if defined(__clang__)
#pragma clang attribute pop
#endif
