/* A reader of JSON (RFC 8259). Strings are decoded where they stand. */

enum { DEEPEST_JSON = 32 };

typedef struct reading {
  pool *memory;
  char *text; /* ended with 0 */
  size_t at;
} reading;

static int skip(reading *r, char wanted) {
  while (r->text[r->at] == ' ' || r->text[r->at] == '\n' || r->text[r->at] == '\t' || r->text[r->at] == '\r') ++r->at;
  if (wanted == 0 || r->text[r->at] != wanted) return 0;
  ++r->at;
  return 1;
}

static int hexadecimal(const char *at, uint32_t *value) {
  uint32_t found = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = at[i];
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return 0;
    found = found << 4 | (uint32_t)digit;
  }
  *value = found;
  return 1;
}

/* The text behind a quotation mark, decoded to UTF-8 in its place; NULL: it is malformed. */
static const char *string(reading *r) {
  char *const begin = r->text + r->at, *to = begin;
  const char *from = begin;
  static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
  for (; *from != '"'; ++from) {
    if ((unsigned char)*from < 32) return NULL; /* the end, too */
    if (*from != '\\') {
      *to++ = *from;
      continue;
    }
    uint32_t c = 0, low;
    ++from;
    if (*from != 'u') {
      int k = 0;
      while (names[k] != 0 && names[k] != *from) ++k;
      if (names[k] == 0) return NULL;
      *to++ = values[k];
      continue;
    }
    if (!hexadecimal(from + 1, &c) || c == 0) return NULL;
    from += 4;
    if (c >= 0xD800 && c < 0xDC00 && from[1] == '\\' && from[2] == 'u' && hexadecimal(from + 3, &low) && low >= 0xDC00 && low < 0xE000) {
      c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
      from += 6;
    }
    if (c < 0x80) *to++ = (char)c;
    else {
      if (c < 0x800) *to++ = (char)(0xC0 | c >> 6);
      else {
        if (c < 0x10000) *to++ = (char)(0xE0 | c >> 12);
        else {
          *to++ = (char)(0xF0 | c >> 18);
          *to++ = (char)(0x80 | (c >> 12 & 63));
        }
        *to++ = (char)(0x80 | (c >> 6 & 63));
      }
      *to++ = (char)(0x80 | (c & 63));
    }
  }
  r->at = (size_t)(from - r->text) + 1;
  *to = 0;
  return begin;
}

static int word(reading *r, const char *wanted) {
  const size_t n = length(wanted);
  if (!same(r->text + r->at, wanted, n)) return 0;
  r->at += n;
  return 1;
}

static int number(reading *r, node *made) {
  const int negative = r->text[r->at] == '-';
  int64_t value = 0; /* negative numbers reach one further */
  r->at += (size_t)negative;
  if (r->text[r->at] < '0' || r->text[r->at] > '9') return 0;
  made->kind = '0';
  for (; r->text[r->at] >= '0' && r->text[r->at] <= '9'; ++r->at) {
    const int digit = r->text[r->at] - '0';
    if (value < (INT64_MIN + digit) / 10) made->kind = '.'; /* no integer of 64 bits */
    else value = value * 10 - digit;
  }
  for (;; ++r->at) {
    const char c = r->text[r->at];
    if (c != '.' && c != 'e' && c != 'E' && c != '+' && c != '-' && (c < '0' || c > '9')) break;
    made->kind = '.';
  }
  if (!negative && value == INT64_MIN) made->kind = '.';
  made->number = negative ? value : value == INT64_MIN ? 0 : -value;
  return 1;
}

/* A value, or NULL: it is malformed or there is no memory. */
static node *value(reading *r, int depth) {
  node *const made = (node *)keep(r->memory, sizeof(node));
  if (made == NULL || depth > DEEPEST_JSON) return NULL;
  skip(r, 0);
  made->begin = r->at;
  const char first = made->kind = r->text[r->at];
  if (first == '{' || first == '[') {
    const char last = first == '{' ? '}' : ']';
    node **place = &made->first;
    ++r->at;
    if (!skip(r, last)) {
      do {
        const char *key = NULL;
        if (first == '{') {
          if (!skip(r, '"') || (key = string(r)) == NULL || !skip(r, ':')) return NULL;
        }
        node *const one = value(r, depth + 1);
        if (one == NULL) return NULL;
        one->key = key;
        *place = one;
        place = &one->next;
        ++made->number;
      } while (skip(r, ','));
      if (!skip(r, last)) return NULL;
    }
  } else if (first == '"') {
    ++r->at;
    if ((made->text = string(r)) == NULL) return NULL;
  } else if (first == 't' || first == 'f' || first == 'n') {
    if (!word(r, first == 't' ? "true" : first == 'f' ? "false" : "null")) return NULL;
  } else if (!number(r, made))
    return NULL;
  made->end = r->at;
  return made;
}

/* The value that is all of a text of so many bytes, which a 0 follows. */
static node *read_json(pool *memory, char *text, size_t bytes) {
  reading r = {memory, text, 0};
  node *const found = value(&r, 0);
  skip(&r, 0);
  return found != NULL && r.at == bytes ? found : NULL;
}
