/* Sizes that formulas say: postfix code of 64-bit words, as weft_runtime.plan_words writes it. Word 0 puts the next
   word on a stack, 1 the symbol that the next word numbers; the others take their operands from there. */

enum { PUT, SYMBOL, ADD, SUBTRACT, MULTIPLY, FLOOR_DIVIDE, FLOOR_REMAINDER, DIVIDE, REMAINDER, LEAST, MOST, LESS, LESS_EQUAL, EQUAL, UNEQUAL, AND, OR, NOT, NEGATE, SELECT };

/* An operation of two numbers; 0: its result is none of 64 bits. */
static int apply(int64_t op, int64_t a, int64_t b, int64_t *result) {
  switch (op) {
    case ADD: return !__builtin_add_overflow(a, b, result);
    case NEGATE: b = a, a = 0; /* fall through */
    case SUBTRACT: return !__builtin_sub_overflow(a, b, result);
    case MULTIPLY:
#if UINTPTR_MAX > 0xFFFFFFFF
      return !__builtin_mul_overflow(a, b, result);
#else /* it is a call on 32-bit processors */
      *result = (int64_t)((uint64_t)a * (uint64_t)b);
      return a == 0 || ((a != -1 || b != INT64_MIN) && *result / a == b);
#endif
    case LEAST: return *result = a < b ? a : b, 1;
    case MOST: return *result = a < b ? b : a, 1;
    case LESS: return *result = a < b, 1;
    case LESS_EQUAL: return *result = a <= b, 1;
    case EQUAL: return *result = a == b, 1;
    case UNEQUAL: return *result = a != b, 1;
    case NOT: return *result = a == 0, 1;
    default: break;
  }
  if (b == 0 || (b == -1 && a == INT64_MIN)) return 0;
  const int64_t rest = a % b, down = op <= FLOOR_REMAINDER && rest != 0 && (rest < 0) != (b < 0);
  *result = op == FLOOR_REMAINDER || op == REMAINDER ? rest + (down ? b : 0) : a / b - down;
  return 1;
}

/* The value of a formula, of symbols that are known or -1; 0: it has none. An operand without a value only counts where
   it is asked for. */
static int evaluate(const weft_program *p, int32_t number, const int64_t *symbols, int64_t *result) {
  const list of = ROWS(p, list, p->head->formulas)[number - 1];
  const int64_t *const code = ROWS(p, int64_t, of);
  int64_t value[64];
  char known[64];
  int32_t depth = 0;
  for (int32_t i = 0; i < of.count; ++i) {
    const int64_t op = code[i];
    const int32_t operands = op < ADD ? 0 : op < NOT ? 2 : op < SELECT ? 1 : 3;
    if (op < PUT || op > SELECT || depth < operands || depth - operands == 64 || (operands == 0 && ++i == of.count)) return 0;
    depth -= operands;
    int64_t *const v = value + depth;
    char *const k = known + depth++;
    if (operands == 0) {
      v[0] = code[i];
      k[0] = 1;
      if (op == SYMBOL) {
        k[0] = v[0] >= 0 && v[0] < p->head->symbols && symbols[v[0]] >= 0;
        if (k[0]) v[0] = symbols[v[0]];
      }
    } else if (op == AND || op == OR || op == SELECT) {
      /* the condition itself, or what it leads to */
      const int chosen = !k[0] ? 0 : op == SELECT ? (v[0] != 0 ? 1 : 2) : (v[0] != 0) == (op == OR) ? 0 : 1;
      v[0] = op == SELECT ? v[chosen] : v[chosen] != 0;
      k[0] = k[chosen];
    } else
      k[0] = k[0] && (operands == 1 || k[1]) && apply(op, v[0], operands == 2 ? v[1] : 0, v);
  }
  if (depth == 1) *result = value[0];
  return depth == 1 && known[0];
}
