/**
 * Runs models that Weft compiled for WebAssembly: archives (`weft compile -t "llvm -mtriple=wasm32" -o model.weft`) and
 * modules (`weft export -f wasm`), in browsers, node and Deno.
 *
 * The modules of a model share one memory, one table of functions and one stack (WebAssembly tool-conventions,
 * DynamicLinking.md). The memory holds the stack at its beginning, so that one that is too long ends the call, and after
 * it the modules' data, constants, tensors and arenas. Structures are those of weft_abi.h, with pointers of 4 bytes.
 */

const ABI_VERSION = 2n, PAGE = 65536, STACK = 131072, MOST = 2 ** 32, SEQUENCE = -1;
const TENSOR_BYTES = 40, CONTEXT_BYTES = 136, HOST_BYTES = 16, ROOM_BYTES = 16;
const CONSTANTS = 24, ALLOCATE_ARENA = 32, ALLOCATE_OUTPUT = 36, ERROR = 56, ERROR_ARGS = 8, HOST = 128;
const SHAPE = 20, NDIM = 12, DEVICE = 4, CODE = 16;

/** By dtype: DLPack's code and bits, and the array that holds its elements. */
const TYPES = {
  bool: [6, 8, Uint8Array], int8: [0, 8, Int8Array], int16: [0, 16, Int16Array], int32: [0, 32, Int32Array],
  int64: [0, 64, BigInt64Array], uint8: [1, 8, Uint8Array], uint16: [1, 16, Uint16Array],
  uint32: [1, 32, Uint32Array], uint64: [1, 64, BigUint64Array],
  float16: [2, 16, globalThis.Float16Array ?? Uint16Array], bfloat16: [4, 16, Uint16Array],
  float32: [2, 32, Float32Array], float64: [2, 64, Float64Array], int4: [0, 4, Int8Array], uint4: [1, 4, Uint8Array],
  int2: [0, 2, Int8Array], uint2: [1, 2, Uint8Array], float8_e4m3fn: [10, 8, Uint8Array],
  float8_e4m3fnuz: [11, 8, Uint8Array], float8_e5m2: [12, 8, Uint8Array], float8_e5m2fnuz: [13, 8, Uint8Array],
  float8_e8m0fnu: [14, 8, Uint8Array], float4_e2m1fn: [17, 4, Uint8Array],
};

/** What went wrong: `what`, and as far as they are known `where`, `why` and `hint`. */
export class WeftError extends Error {
  constructor(what, { where, why, hint } = {}) {
    super([what, where && `  ${where}`, why && `  why: ${why}`, hint && `  hint: ${hint}`].filter(Boolean).join("\n"));
    this.name = "WeftError";
    Object.assign(this, { what, where, why, hint });
  }
}

const count = (shape) => shape.reduce((a, b) => a * b, 1);
const shown = (info) => `${info.name}: ${info.dtype}[${info.shape.join(", ")}]`;
const same = (a, b) => a.length === b.length && a.every((d, i) => d === b[i]);

// -- files

const number = (view, at) => {
  let value = 0;
  for (let shift = 0; ; shift += 7) {
    if (shift > 28) throw new RangeError("a number that has no end");
    const byte = view.getUint8(at++);
    value += (byte & 127) * 2 ** shift;
    if (byte < 128) return [value, at];
  }
};

/** The sections of a module: [kind, start, end], of custom ones with their names. */
function* sections(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  for (let at = 8; at < bytes.length; ) {
    const kind = view.getUint8(at);
    const [size, start] = number(view, at + 1);
    if ((at = start + size) > bytes.length) throw new RangeError("a section is cut off");
    if (kind) continue;
    const [length, text] = number(view, start);
    yield [new TextDecoder().decode(bytes.subarray(text, text + length)), text + length, at];
  }
}

/** The files of a zip that compresses nothing. */
function unzip(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength), found = {};
  let end = bytes.length - 22;
  while (view.getUint32(end, true) !== 0x06054b50) end--;
  let at = view.getUint32(end + 16, true);
  for (let k = view.getUint16(end + 10, true); k > 0; k--) {
    if (view.getUint32(at, true) !== 0x02014b50 || view.getUint16(at + 10, true)) throw new RangeError("not as Weft writes it");
    const size = view.getUint32(at + 24, true), name = view.getUint16(at + 28, true), local = view.getUint32(at + 42, true);
    const start = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
    if (start + size > bytes.length) throw new RangeError("a file is cut off");
    found[new TextDecoder().decode(bytes.subarray(at + 46, at + 46 + name))] = bytes.subarray(start, start + size);
    at += 46 + name + view.getUint16(at + 30, true) + view.getUint16(at + 32, true);
  }
  return found;
}

/** What a model's file holds: its manifest, its weights, its code by name. */
function content(bytes) {
  const code = {};
  let manifest, weights;
  if (bytes[0] === 0x50) {
    for (const [name, data] of Object.entries(unzip(bytes))) {
      if (name === "manifest.json") manifest = data;
      else if (name === "weights.safetensors") weights = data;
      else code[name.slice(5)] = data.subarray(0, data.length - 32); // the signature follows
    }
  } else if (bytes[0] === 0) {
    for (const [name, start, end] of sections(bytes)) {
      const data = bytes.subarray(start, end);
      if (name === "weft.manifest") manifest = data;
      else if (name === "weft.weights") weights = data;
      else if (name.startsWith("weft.code.")) code[name.slice(10)] = data;
    }
  }
  if (!manifest) throw new RangeError("it holds no model");
  manifest = JSON.parse(new TextDecoder().decode(manifest));
  if (bytes[0] === 0 && manifest.sections.main) code.main = bytes;
  return { manifest, weights, code };
}

async function fetched(source) {
  if (source instanceof ArrayBuffer) return new Uint8Array(source);
  if (ArrayBuffer.isView(source)) return new Uint8Array(source.buffer, source.byteOffset, source.byteLength);
  if (String(source).startsWith("file:")) return new Uint8Array(await (await import("node:fs/promises")).readFile(source));
  const response = typeof Response !== "undefined" && source instanceof Response ? source : await fetch(source);
  if (!response.ok) throw new WeftError(`${response.url} cannot be fetched`, { why: `status ${response.status}` });
  return new Uint8Array(await response.arrayBuffer());
}

const hex = (buffer) => Array.from(new Uint8Array(buffer), (b) => b.toString(16).padStart(2, "0")).join("");
const sha256 = async (data) => hex(await crypto.subtle.digest("SHA-256", data));

/**
 * Loads a model.
 *
 * @param source a URL, a Response, or the bytes of a file. Code in it runs inside of WebAssembly: it sees its own memory
 *   and nothing else.
 * @param options.expect "sha256:<hex>" of the file: any other is refused.
 */
export async function load(source, { expect } = {}) {
  const bytes = await fetched(source);
  if (expect && expect !== `sha256:${await sha256(bytes)}`)
    throw new WeftError("the model is not the one that is expected", { why: `its hash is sha256:${await sha256(bytes)}` });
  let parts;
  try {
    parts = content(bytes);
  } catch (error) {
    throw new WeftError("this is no model of Weft, or it is damaged", {
      why: error.message, hint: 'write one with weft compile -t "llvm -mtriple=wasm32", or weft export -f wasm',
    });
  }
  const { manifest, weights, code } = parts;
  if (manifest.format !== 6 || manifest.machine !== "wasm32")
    throw new WeftError(`'${manifest.name}' was compiled for ${manifest.machine}, format ${manifest.format}`, {
      hint: 'compile it with -t "llvm -mtriple=wasm32" and the Weft of this runtime',
    });
  const other = [manifest, ...manifest.plans].flatMap((p) => p.steps).find((s) => !["native", "if", "loop"].includes(s.kind));
  if (other)
    throw new WeftError(`'${manifest.name}' has a step of kind ${other.kind}`, {
      where: other.function ?? other.section, why: "it runs where Python is: strings, pictures, sequences, devices",
    });
  const memory = new Memory();
  const modules = {};
  for (const [name, image] of Object.entries(code)) modules[name] = await memory.load(image, name, manifest.features);
  return new Model(manifest, memory, modules, await memory.constants(manifest, weights));
}

// -- memory

/** The memory of a model. */
class Memory {
  memory = new WebAssembly.Memory({ initial: STACK / PAGE + 1 });
  table = new WebAssembly.Table({ initial: 1, element: "anyfunc" });
  stack = new WebAssembly.Global({ value: "i32", mutable: true }, STACK);
  top = STACK;
  free = {};
  size = {};

  /** The address of so many bytes, a multiple of 64, or 0 if there are none. */
  reserve(bytes) {
    const size = Number(bytes);
    if (!(size >= 0 && size <= MOST)) return 0;
    const step = Math.max(64, 2 ** (Math.floor(Math.log2(size || 1)) - 3));
    const rounded = Math.ceil((size || 1) / step) * step;
    if (this.free[rounded]?.length) return this.free[rounded].pop();
    const at = this.top, pages = Math.ceil((at + rounded) / PAGE) - this.memory.buffer.byteLength / PAGE;
    if (at + rounded > MOST) return 0;
    try {
      if (pages > 0) this.memory.grow(pages);
    } catch {
      return 0;
    }
    this.top = at + rounded;
    this.size[at] = rounded;
    return at;
  }

  release(address) {
    const at = address >>> 0;
    if (at) (this.free[this.size[at]] ??= []).push(at);
  }

  need(size) {
    const at = this.reserve(size);
    if (!at) throw new WeftError(`no memory for ${size} bytes`, { hint: "run smaller inputs" });
    return at;
  }

  /** Reserves memory for bytes and copies them there. */
  place(bytes) {
    const at = this.need(bytes.length);
    new Uint8Array(this.memory.buffer).set(bytes, at);
    return at;
  }

  get view() {
    return new DataView(this.memory.buffer);
  }

  /** Places a module. */
  async load(image, name, features) {
    try {
      const view = new DataView(image.buffer, image.byteOffset, image.byteLength);
      const [found] = sections(image);
      if (found?.[0] !== "dylink.0") throw new RangeError("it does not begin with the section dylink.0");
      let values = [], at = number(view, found[1] + 1)[1];
      for (let k = 0; k < 3; k++) [values[k], at] = number(view, at);
      const [size, power, functions] = values, align = 2 ** power;
      const base = Math.ceil(this.need(size + align) / align) * align;
      const first = this.table.length;
      this.table.grow(functions);
      const env = {
        memory: this.memory, __indirect_function_table: this.table, __stack_pointer: this.stack,
        __memory_base: new WebAssembly.Global({ value: "i32" }, base),
        __table_base: new WebAssembly.Global({ value: "i32" }, first),
        weft_reserve: (n) => this.reserve(n), weft_release: (n) => this.release(n),
      };
      return (await WebAssembly.instantiate(image, { env })).instance.exports;
    } catch (error) {
      throw new WeftError(`the code '${name}' cannot run here`, {
        why: error.message, hint: features.length ? `it needs ${features.join(", ")}: compile it without, by -mattr` : undefined,
      });
    }
  }

  /** Where a function lies, for code that calls it. */
  address(f) {
    const at = this.table.grow(1);
    this.table.set(at, f);
    return at;
  }

  /** Places the constants: name → { data, shape, dtype, bytes }. */
  async constants(manifest, weights) {
    const found = {};
    if (!manifest.constants.length) return found;
    const view = new DataView(weights.buffer, weights.byteOffset, weights.byteLength);
    const size = Number(view.getBigUint64(0, true));
    const header = JSON.parse(new TextDecoder().decode(weights.subarray(8, 8 + size)));
    for (const c of manifest.constants) {
      const [begin, end] = header[c.name].data_offsets;
      found[c.name] = { ...c, at: this.place(weights.subarray(8 + size + begin, 8 + size + end)) };
    }
    return found;
  }
}

// -- sizes

const OPERATIONS = {
  "+": (a, b) => a + b, "-": (a, b) => a - b, "*": (a, b) => a * b, "//": (a, b) => Math.floor(a / b),
  "%": (a, b) => a - b * Math.floor(a / b), truncdiv: (a, b) => Math.trunc(a / b), truncmod: (a, b) => a % b,
  min: Math.min, max: Math.max, "<": (a, b) => +(a < b), "<=": (a, b) => +(a <= b), "==": (a, b) => +(a === b),
  "!=": (a, b) => +(a !== b), and: (a, b) => +(a && b ? 1 : 0), or: (a, b) => +(a || b ? 1 : 0),
};

/** A dimension, from the symbols that are known; undefined if they do not say it. */
function dimension(code, symbols) {
  if (typeof code === "number") return code;
  if (typeof code !== "string") return undefined;
  const stack = [];
  for (const word of code.split(" ")) {
    if (word[0] === "$") stack.push(symbols[word.slice(1)]);
    else if (word === "not") stack.push(+!stack.pop());
    else if (word === "neg") stack.push(-stack.pop());
    else if (word === "select") {
      const [c, a, b] = stack.splice(-3);
      stack.push(c ? a : b);
    } else if (OPERATIONS[word]) stack.push(OPERATIONS[word](...stack.splice(-2)));
    else stack.push(Number(word));
  }
  return Number.isSafeInteger(stack[0]) ? stack[0] : undefined;
}

/** The sizes that inputs give to symbols, by number. */
function symbolsOf(infos, shapes) {
  const found = {};
  infos.forEach((info, i) =>
    info.shape.forEach((d, axis) => {
      if (/^\$\d+$/.test(d)) found[d.slice(1)] ??= shapes[i][axis];
    }),
  );
  return found;
}

// -- running

/** A native step of a plan. */
class Segment {
  constructor(model, step, inputs, outputs) {
    const m = (this.memory = model.memory), code = model.modules[step.section];
    Object.assign(this, { model, step, inputs, outputs, function: code[step.entry] });
    const words = (values) => m.place(new Uint8Array(Uint32Array.from(values).buffer));
    const described = (infos) => {
      const tensors = infos.map((info) => {
        const at = m.place(new Uint8Array(TENSOR_BYTES)), shape = m.need(8 * info.shape.length);
        const [type, bits] = TYPES[info.dtype], view = m.view;
        view.setInt32(at + DEVICE, 1, true);
        view.setInt32(at + NDIM, info.shape.length, true);
        view.setUint32(at + CODE, type | (bits << 8) | (1 << 16), true);
        view.setUint32(at + SHAPE, shape, true);
        return { at, shape };
      });
      return { tensors, at: words(tensors.map((t) => t.at)) };
    };
    this.ins = described(inputs);
    this.outs = described(outputs);
    const host = m.place(new Uint8Array(HOST_BYTES)), rooms = m.place(new Uint8Array(ROOM_BYTES * outputs.length));
    m.view.setUint32(host, this.outs.at, true);
    m.view.setUint32(host + 4, rooms, true);
    m.view.setBigInt64(host + 8, BigInt(outputs.length), true);
    this.context = m.place(new Uint8Array(CONTEXT_BYTES));
    const view = m.view;
    view.setBigInt64(this.context, ABI_VERSION, true);
    const constants = words(step.constants.map((n) => model.constants[n].at));
    m.view.setUint32(this.context + CONSTANTS, constants, true);
    m.view.setUint32(this.context + ALLOCATE_ARENA, m.address(code.allocate_arena), true);
    m.view.setUint32(this.context + ALLOCATE_OUTPUT, m.address(code.allocate_output), true);
    m.view.setUint32(this.context + HOST, host, true);
  }

  bind({ at, shape }, data, sizes) {
    const view = this.memory.view;
    view.setUint32(at, data, true);
    sizes.forEach((d, k) => view.setBigInt64(shape + 8 * k, BigInt(d), true));
  }

  sizes({ shape }, rank) {
    return Array.from({ length: rank }, (_, k) => Number(this.memory.view.getBigInt64(shape + 8 * k, true)));
  }

  run(values) {
    const m = this.memory, held = [];
    try {
      values.forEach((v, i) => {
        held.push(m.place(new Uint8Array(v.data.buffer, v.data.byteOffset, v.data.byteLength)));
        this.bind(this.ins.tensors[i], held.at(-1), v.shape);
      });
      const symbols = symbolsOf(this.inputs, values.map((v) => v.shape));
      this.outputs.forEach((o, i) => {
        const shape = o.shape.map((d) => dimension(d, symbols));
        const known = shape.every((d) => d >= 0);
        if (known) held.push(m.need(count(shape) * TYPES[o.dtype][2].BYTES_PER_ELEMENT));
        this.bind(this.outs.tensors[i], known ? held.at(-1) : 0, known ? shape : []);
      });
      let code;
      try {
        code = this.function(this.context, this.ins.at, this.outs.at);
      } catch (error) {
        m.stack.value = STACK;
        throw new WeftError("compiled code ended by itself", { where: this.model.name, why: error.message });
      }
      if (code) throw this.failure(code, values);
      return this.outputs.map((o, i) => {
        const t = this.outs.tensors[i], shape = this.sizes(t, o.shape.length), of = TYPES[o.dtype][2];
        const data = m.view.getUint32(t.at, true);
        return { data: new of(m.memory.buffer.slice(data, data + count(shape) * of.BYTES_PER_ELEMENT)), shape, dtype: o.dtype };
      });
    } finally {
      held.forEach((at) => m.release(at));
    }
  }

  /** The error that the context tells. */
  failure(returned, values) {
    const view = this.memory.view, at = this.context + ERROR, name = `'${this.model.name}'`;
    const code = Number(view.getBigInt64(at, true));
    const a = Array.from({ length: ERROR_ARGS }, (_, k) => Number(view.getBigInt64(at + 8 + 8 * k, true)));
    view.setBigInt64(at, 0n, true);
    const input = this.inputs[a[0]], output = this.outputs[a[0]], item = this.step.items[a[0]] ?? `item ${a[0]}`;
    const check = this.step.checks[code]?.map((t) => t.replace(/\{([0-7])\}/g, (_, k) => a[k]));
    if (check) return new WeftError(check[0], { where: this.model.name, hint: check[1] });
    const said = {
      1: () => `input '${input.name}' has another rank or dtype`,
      2: () => `input '${input.name}' has size ${a[3]} on axis ${a[1]}, expected ${a[2]}`,
      3: () => `output '${output.name}' has size ${a[2]} on axis ${a[1]}, its manifest says ${a[3]}`,
      4: () => `${name} cannot get ${a[0]} bytes of memory for intermediate results`,
      5: () => `no memory for output '${output.name}' of ${name}`,
      6: () => `kernel '${item}' of ${name} failed with ${a[1]}`,
      7: () => `input '${input.name}' has ${a[2]} elements, element ${a[1]} is needed`,
      8: () => `a size that ${name} needs is beyond 64 bits`,
    }[code];
    return new WeftError(said?.() ?? `${name} failed with code ${code || returned}`, {
      why: `its inputs are ${values.map((v, i) => `${this.inputs[i].name}: ${v.dtype}[${v.shape.join(", ")}]`).join("; ")}`,
    });
  }
}

/** The k-th slice of a tensor along an axis. */
function slice({ data, shape, dtype }, axis, k) {
  const inner = count(shape.slice(axis + 1)), outer = count(shape.slice(0, axis)), out = new data.constructor(inner * outer);
  for (let i = 0; i < outer; i++) out.set(data.subarray((i * shape[axis] + k) * inner, (i * shape[axis] + k + 1) * inner), i * inner);
  return { data: out, shape: shape.filter((_, d) => d !== axis), dtype };
}

/** Tensors of one shape along a new axis; `empty` where there are none. */
function stack(parts, axis, empty) {
  const first = parts[0] ?? empty, n = parts.length;
  if (parts.some((p) => !same(p.shape, first.shape))) throw new WeftError("a loop collects results of different sizes");
  const inner = count(first.shape.slice(axis)), outer = count(first.shape.slice(0, axis));
  const data = new first.data.constructor(n * inner * outer);
  parts.forEach((p, k) => {
    for (let i = 0; i < outer; i++) data.set(p.data.subarray(i * inner, (i + 1) * inner), (i * n + k) * inner);
  });
  return { data, shape: [...first.shape.slice(0, axis), n, ...first.shape.slice(axis)], dtype: first.dtype };
}

const truth = (value, what) => {
  if (value.data.length !== 1) throw new WeftError(`${what} is decided by one element, got [${value.shape.join(", ")}]`);
  return Boolean(value.data[0]);
};

/** A loaded model. */
export class Model {
  constructor(manifest, memory, modules, constants) {
    const named = (info) => ({
      ...info, shape: info.shape.map((d) => (/^\$\d+$/.test(d) ? manifest.names[d.slice(1)] : (d?.text ?? d))),
    });
    Object.assign(this, { name: manifest.name, manifest, memory, modules, constants });
    this.inputs = manifest.inputs.map(named);
    this.outputs = manifest.outputs.map(named);
    this.plans = [];
    for (const plan of [...manifest.plans, manifest]) this.plans.push(this.prepared(plan));
  }

  /** Makes the segments of a plan; gives a function of values in order. */
  prepared(plan) {
    const infos = Object.fromEntries([...plan.inputs, ...(plan.values ?? []), ...plan.outputs].map((i) => [i.name, i]));
    const alone = plan.steps.length === 1 && plan.steps[0].kind === "native";
    const segments = plan.steps.map((s) => {
      if (s.kind !== "native") return null;
      const [ins, outs] = [s.inputs, s.outputs].map((names) => names.map((n) => infos[n]));
      return alone ? new Segment(this, s, plan.inputs, plan.outputs) : new Segment(this, s, ins, outs);
    });
    if (alone) return (values) => segments[0].run(values);
    return (values) => {
      const known = Object.fromEntries(plan.inputs.map((info, i) => [info.name, values[i]]));
      const symbols = symbolsOf(plan.inputs, values.map((v) => v.shape));
      const value = (name) => (name ? (known[name] ?? this.constant(name)) : null);
      plan.steps.forEach((step, i) => {
        const given = step.inputs.map(value);
        const results = segments[i]?.run(given) ?? (step.kind === "if" ? this.branch(step, given) : this.repeat(step, given, symbols));
        step.outputs.forEach((name, k) => {
          if (name) known[name] = results[k];
        });
        Object.assign(symbols, { ...symbolsOf(step.outputs.map((n) => infos[n] ?? { shape: [] }), results.map((r) => r.shape)), ...symbols });
      });
      return plan.outputs.map((o) => value(o.name));
    };
  }

  constant(name) {
    const { at, dtype, shape } = this.constants[name], of = TYPES[dtype][2];
    return { data: new of(this.memory.memory.buffer.slice(at, at + count(shape) * of.BYTES_PER_ELEMENT)), shape, dtype };
  }

  branch(step, [condition, ...values]) {
    const first = this.manifest.plans[step.then].inputs.length;
    return truth(condition, "a branch") ? this.plans[step.then](values.slice(0, first)) : this.plans[step.orelse](values.slice(first));
  }

  repeat(step, [trips, condition, ...values], symbols) {
    const items = values.slice(step.carried, step.carried + step.item_axes.length), body = this.plans[step.body];
    const captured = values.slice(step.carried + items.length);
    let carried = values.slice(0, step.carried);
    const counts = items.map((x, i) => x.shape[step.item_axes[i]]);
    if (new Set(counts).size > 1) throw new WeftError(`a loop goes over items of different numbers: ${counts.join(", ")}`);
    const most = Math.min(...counts, trips ? Number(trips.data[0]) : Infinity);
    const found = step.result_axes.map(() => []);
    let going = condition === null || truth(condition, "a loop");
    for (let k = 0; going && k < most; k++) {
      const at = items.map((x, i) => slice(x, step.item_axes[i], step.item_backward[i] ? counts[i] - 1 - k : k));
      const given = body([{ data: BigInt64Array.of(BigInt(k)), shape: [], dtype: "int64" }, ...carried, ...at, ...captured]);
      if (step.tests) going = truth(given.shift(), "a loop");
      carried = given.slice(0, step.carried);
      given.slice(step.carried).forEach((value, i) => found[i].push(value));
    }
    const infos = this.manifest.plans[step.body].outputs.slice(step.tests + step.carried);
    return [
      ...carried,
      ...found.map((parts, i) => {
        const shape = infos[i].shape.map((d) => dimension(d, symbols) ?? 0), of = TYPES[infos[i].dtype][2];
        const empty = { data: new of(0), shape, dtype: infos[i].dtype };
        return stack(step.result_backward[i] ? parts.reverse() : parts, step.result_axes[i], empty);
      }),
    ];
  }

  /**
   * Runs the model.
   *
   * @param inputs by name: typed arrays of the input's dtype, or { data, shape } where a size is open and the length of
   *   the array does not say it.
   * @returns by name: { data, shape, dtype }, whose data is the caller's own.
   */
  run(inputs) {
    const names = this.inputs.map((i) => i.name), unknown = Object.keys(inputs).filter((n) => !names.includes(n));
    const missing = names.filter((n) => !(n in inputs));
    if (unknown.length || missing.length)
      throw new WeftError(`inputs of '${this.name}' do not match`, {
        where: this.inputs.map(shown).join("; "),
        why: [missing.length && `missing ${missing.join(", ")}`, unknown.length && `unknown ${unknown.join(", ")}`].filter(Boolean).join("; "),
      });
    const results = this.plans.at(-1)(this.inputs.map((info) => tensor(info, inputs[info.name])));
    return Object.fromEntries(this.outputs.map((o, i) => [o.name, results[i]]));
  }
}

/** An input as a tensor of its dtype and rank. */
function tensor(info, given) {
  const data = given?.data ?? given, of = TYPES[info.dtype][2];
  if (!(data instanceof of))
    throw new WeftError(`input '${info.name}' is ${data?.constructor?.name}, expected ${of.name}`, { where: shown(info) });
  let shape = given.shape;
  if (!shape) {
    const open = info.shape.filter((d) => typeof d !== "number"), fixed = count(info.shape.filter((d) => typeof d === "number"));
    if (open.length > 1)
      throw new WeftError(`input '${info.name}' has several open sizes`, { where: shown(info), hint: "give { data, shape }" });
    shape = info.shape.map((d) => (typeof d === "number" ? d : data.length / fixed));
  }
  if (shape.length !== info.shape.length || count(shape) !== data.length || !shape.every((d) => Number.isInteger(d) && d >= 0))
    throw new WeftError(`input '${info.name}' has ${data.length} elements and the shape [${shape.join(", ")}]`, { where: shown(info) });
  return { data, shape, dtype: info.dtype };
}
