/**
 * Runs models that Weft compiled for WebAssembly: archives (`weft compile -t "llvm -mtriple=wasm32" -o model.weft`) and
 * modules (`weft export -o model.wasm`), in browsers, node and Deno.
 *
 * The modules of a model share one memory, one table of functions and one stack (WebAssembly tool-conventions,
 * DynamicLinking.md). The memory holds the stack at its beginning, so that one that is too long ends the call, and after
 * it the modules' data, constants, tensors and arenas. Structures are those of weft_abi.h, with pointers of 4 bytes:
 * they are written as words of 32 bits.
 */

const ABI_VERSION = 2, PAGE = 65536, STACK = 131072, MOST = 2 ** 32;
const ERROR = 56; // where weft_context.error_code lies
const CODES = { int: 0, uint: 1, float: 2, bfloat: 4, bool: 6, e4m3fn: 10, e4m3fnuz: 11, e5m2: 12, e5m2fnuz: 13, e8m0fnu: 14, e2m1fn: 17 };
const FAILURES = [
  , "input '{i}' has another rank or dtype", "input '{i}' has size {3} on axis {1}, expected {2}",
  "output '{o}' has size {2} on axis {1}, expected {3}", "no memory for {0} bytes", "no memory for output '{o}'",
  "kernel '{k}' returned {1}", "input '{i}' lacks element {1}", "a size is beyond 64 bits",
];

/** What went wrong, and as far as they are known where, why and a hint, each also in the message. */
export class WeftError extends Error {
  name = "WeftError";
  constructor(what, more = {}) {
    super(Object.entries(more).reduce((text, [k, v]) => text + (v ? `\n  ${k}: ${v}` : ""), what));
    Object.assign(this, more);
  }
}

export const refuse = (what, where, why, hint) => {
  throw new WeftError(what, { where, why, hint });
};
export const count = (shape) => shape.reduce((a, b) => a * b, 1);
const shown = ({ name, dtype, shape }) => `${name}: ${dtype}[${shape.join(", ")}]`;
const text = (bytes) => new TextDecoder().decode(bytes);
const viewOf = (bytes) => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);

/** Of a dtype: DLPack's code, its bits, and the class of arrays that hold its elements, or words of their size. */
export function typed(dtype) {
  const [, kind, digits = 8, special] = /^([a-z]+)(\d+)?_?(.*)$/.exec(dtype), bits = +digits;
  const name = kind === "int" ? "Int" : kind === "float" && bits > 16 ? "Float" : "Uint";
  const array = `${bits > 32 && name !== "Float" ? "Big" : ""}${name}${Math.max(8, bits)}Array`;
  return [CODES[special || kind], bits, globalThis[array]];
}

// -- files

/** An unsigned LEB128 number, and where it ends. */
function number(bytes, at) {
  let value = 0, scale = 1;
  do {
    if (at >= bytes.length || scale > 2 ** 28) throw new RangeError("a number has no end");
    value += (bytes[at] & 127) * scale;
    scale *= 128;
  } while (bytes[at++] > 127);
  return [value, at];
}

/** The custom sections of a module: [name, content]. */
function* sections(bytes) {
  for (let at = 8, size, start, length; at < bytes.length; at = start + size) {
    const kind = bytes[at];
    [size, start] = number(bytes, at + 1);
    if (start + size > bytes.length) throw new RangeError("a section is cut off");
    if (kind) continue;
    const [length, name] = number(bytes, start);
    yield [text(bytes.subarray(name, name + length)), bytes.subarray(name + length, start + size)];
  }
}

/** The files of a zip that compresses nothing: [name, content]. */
function* files(bytes) {
  const view = viewOf(bytes), u16 = (at) => view.getUint16(at, true), u32 = (at) => view.getUint32(at, true);
  let end = bytes.length - 22;
  while (u32(end) !== 0x06054b50) end--;
  for (let k = u16(end + 10), at = u32(end + 16); k--; at += 46 + u16(at + 28) + u16(at + 30) + u16(at + 32)) {
    const local = u32(at + 42), start = local + 30 + u16(local + 26) + u16(local + 28), stop = start + u32(at + 24);
    if (stop > bytes.length || u16(at + 10)) throw new RangeError("a file is cut off or compressed");
    yield [text(bytes.subarray(at + 46, at + 46 + u16(at + 28))), bytes.subarray(start, stop)];
  }
}

/** What a model's file holds: its manifest, its weights, its code by name. */
function content(bytes) {
  const code = {}, zip = bytes[0] === 80;
  let manifest, weights;
  for (const [name, data] of zip ? files(bytes) : sections(bytes)) {
    if (/^(weft\.)?manifest/.test(name)) manifest = JSON.parse(text(data));
    else if (/^(weft\.)?weights/.test(name)) weights = data;
    else if (zip) code[name.slice(5)] = data.subarray(0, -32); // the signature follows
    else if (name.startsWith("weft.code.")) code[name.slice(10)] = data;
  }
  if (!zip && manifest.sections.main) code.main = bytes;
  return { manifest, weights, code };
}

/**
 * Loads a model.
 *
 * @param source a URL; or a Response, a Blob or the bytes of a file. Its code runs inside of WebAssembly: it sees its
 *   own memory and nothing else.
 * @param options those of `fetch`; { integrity } refuses every file of another hash.
 */
export async function load(source, options) {
  const named = source instanceof URL || typeof source === "string";
  const response = named ? await fetch(source, options) : source instanceof Response ? source : new Response(source);
  if (!response.ok) refuse(`${source} cannot be fetched`, response.status);
  try {
    const { manifest: m, weights, code } = content(new Uint8Array(await response.arrayBuffer()));
    if (m.format !== 6 || m.machine !== "wasm32") refuse(`'${m.name}' is of format ${m.format} for ${m.machine}`);
    return await opened(m, code, weights);
  } catch (error) {
    if (error instanceof WeftError) throw error;
    return refuse("this is no model of Weft for WebAssembly, or cannot run here", source, error.message);
  }
}

// -- sizes

const OPERATIONS = {
  "+": (a, b) => a + b, "-": (a, b) => a - b, "*": (a, b) => a * b, "//": (a, b) => Math.floor(a / b),
  "%": (a, b) => a - b * Math.floor(a / b), truncdiv: (a, b) => Math.trunc(a / b), truncmod: (a, b) => a % b,
  min: Math.min, max: Math.max, "<": (a, b) => +(a < b), "<=": (a, b) => +(a <= b), "==": (a, b) => +(a === b),
  "!=": (a, b) => +(a !== b), and: (a, b) => +!!(a && b), or: (a, b) => +!!(a || b), not: (a) => +!a, neg: (a) => -a,
  select: (c, a, b) => (c ? a : b),
};

/** A dimension, from the sizes of symbols by number; undefined if they do not say it. */
export function dimension(code, symbols) {
  const stack = [];
  for (const word of String(code).split(" ")) {
    const f = OPERATIONS[word];
    if (f) stack.push(f(...stack.splice(word === "select" ? -3 : -(f.length || 2))));
    else stack.push(word[0] === "$" ? symbols[word.slice(1)] : +word);
  }
  return stack[0] >= 0 && Number.isSafeInteger(stack[0]) ? stack[0] : undefined;
}

/** Adds what the shapes of values say of symbols. */
export function learn(symbols, infos, values) {
  infos.forEach((info, i) =>
    info?.shape.forEach((d, axis) => {
      if (/^\$\d+$/.test(d)) symbols[d.slice(1)] ??= values[i].shape[axis];
    }),
  );
  return symbols;
}

// -- models

/** The model of a manifest, its code and its weights, in a memory of their own. */
async function opened(manifest, code, weights) {
  const memory = new WebAssembly.Memory({ initial: STACK / PAGE + 1 }), { name } = manifest;
  const table = new WebAssembly.Table({ initial: 1, element: "anyfunc" }), modules = {}, constants = {}, free = {}, rooms = {};
  const i32 = { value: "i32" }, pointer = new WebAssembly.Global({ ...i32, mutable: true }, STACK);
  let top = STACK;

  /** The address of so many bytes, a multiple of 64, or 0 if there are none. */
  function reserve(size) {
    const step = Math.max(64, 2 ** (Math.floor(Math.log2(size || 1)) - 3)), room = Math.ceil((size || 1) / step) * step;
    if (free[room]?.length) return free[room].pop();
    const at = top, pages = Math.ceil((at + room) / PAGE) - memory.buffer.byteLength / PAGE;
    try {
      if (!(size >= 0 && at + room <= MOST)) return 0;
      if (pages > 0) memory.grow(pages);
    } catch {
      return 0;
    }
    top += room;
    rooms[at] = room;
    return at;
  }
  const release = (at) => at && (free[rooms[at]] ??= []).push(at);
  const need = (size) => reserve(size) || refuse(`no memory for ${size} bytes`, name, undefined, "run smaller inputs");

  /** Reserves memory for bytes and copies them there. */
  function put(bytes) {
    const at = need(bytes.length);
    new Uint8Array(memory.buffer).set(bytes, at);
    return at;
  }
  const words = (values) => put(new Uint8Array(Uint32Array.from(values).buffer));
  const zeros = (n) => Array(n).fill(0);
  const view = () => viewOf(new Uint8Array(memory.buffer));

  /** A copy of what lies at an address. */
  function copied(at, shape, dtype) {
    const of = typed(dtype)[2];
    return { data: new of(memory.buffer.slice(at, at + count(shape) * of.BYTES_PER_ELEMENT)), shape, dtype };
  }

  /** A native step: a function from values to results. */
  function segment(step, inputs, outputs) {
    const code = modules[step.section];
    const described = (infos) => {
      const all = infos.map(({ dtype, shape }) => {
        const [type, bits] = typed(dtype), sizes = need(8 * shape.length);
        return { sizes, at: words([0, 1, 0, shape.length, type | (bits << 8) | (1 << 16), sizes, 0, 0, 0, 0]) };
      });
      return [all, words(all.map((t) => t.at))];
    };
    const [ins, from] = described(inputs), [outs, to] = described(outputs);
    const functions = [code.allocate_arena, code.allocate_output].map((f) => {
      const at = table.grow(1);
      table.set(at, f);
      return at;
    });
    const host = words([to, words(zeros(4 * outputs.length)), outputs.length, 0]);
    const held = words(step.constants.map((n) => constants[n].at));
    const context = words([ABI_VERSION, 0, 0, 0, 0, 0, held, 0, ...functions, ...zeros(22), host, 0]);
    const bind = ({ at, sizes }, data, shape) => {
      view().setUint32(at, data, true);
      shape.forEach((d, k) => view().setBigInt64(sizes + 8 * k, BigInt(d), true));
    };
    const integers = (at, n) => zeros(n).map((_, k) => Number(view().getBigInt64(at + 8 * k, true)));
    return (values) => {
      const taken = [], symbols = learn({}, inputs, values);
      const take = (at) => (taken.push(at), at);
      try {
        values.forEach(({ data: d, shape }, i) => bind(ins[i], take(put(new Uint8Array(d.buffer, d.byteOffset, d.byteLength))), shape));
        outputs.forEach((o, i) => {
          const shape = o.shape.map((d) => dimension(d, symbols));
          if (shape.includes(undefined)) bind(outs[i], 0, []);
          else bind(outs[i], take(need(count(shape) * typed(o.dtype)[2].BYTES_PER_ELEMENT)), shape);
        });
        let failed;
        try {
          failed = code[step.entry](context, from, to);
        } catch (error) {
          pointer.value = STACK;
          refuse("compiled code ended by itself", name, error.message);
        }
        if (failed) {
          const [error, ...a] = integers(context + ERROR, 9);
          bind({ at: 0, sizes: context + ERROR }, 0, [0]);
          const said = { i: inputs[a[0]]?.name, o: outputs[a[0]]?.name, k: step.items[a[0]], ...a };
          const [what, hint] = (step.checks[error] ?? [FAILURES[error] ?? `code ${error || failed}`]).map((t) =>
            t.replace(/\{([0-7iok])\}/g, (_, k) => said[k]),
          );
          refuse(what, name, values.map((v, i) => shown({ ...inputs[i], ...v })).join("; "), hint);
        }
        return outputs.map(({ shape, dtype }, i) =>
          copied(view().getUint32(outs[i].at, true), integers(outs[i].sizes, shape.length), dtype),
        );
      } finally {
        taken.forEach(release);
      }
    };
  }

  for (const [section, image] of Object.entries(code)) {
    const [[first, needs]] = sections(image), said = [];
    if (first !== "dylink.0") throw new RangeError("its code does not begin with the section dylink.0");
    for (let at = number(needs, 1)[1], value; said.length < 3; said.push(value)) [value, at] = number(needs, at);
    const align = 2 ** said[1], start = need(said[0] + align);
    const env = {
      memory, __indirect_function_table: table, __stack_pointer: pointer,
      __memory_base: new WebAssembly.Global(i32, Math.ceil(start / align) * align),
      __table_base: new WebAssembly.Global(i32, table.grow(said[2])),
      weft_reserve: (n) => reserve(Number(n)), weft_release: (at) => release(at >>> 0),
    };
    modules[section] = (await WebAssembly.instantiate(image, { env })).instance.exports;
  }
  const begin = weights && 8 + Number(viewOf(weights).getBigUint64(0, true));
  const header = weights && JSON.parse(text(weights.subarray(8, begin)));
  for (const c of manifest.constants) {
    const data = weights.subarray(...header[c.name].data_offsets.map((at) => begin + at));
    constants[c.name] = { ...c, at: put(data) };
  }
  const [step, more] = manifest.steps, constant = (n, c = constants[n]) => copied(c.at, c.shape, c.dtype);
  const run =
    step.kind === "native" && !more
      ? segment(step, manifest.inputs, manifest.outputs)
      : (await import("./control.js")).prepare(manifest, segment, constant);
  const symbols = (d) => d.text ?? d.replace?.(/\$(\d+)/g, (_, k) => manifest.names[k]) ?? d;
  const named = (info) => ({ ...info, shape: info.shape.map(symbols) });
  const inputs = manifest.inputs.map(named), outputs = manifest.outputs.map(named);
  return {
    name, inputs, outputs,
    run(given) {
      const names = inputs.map((i) => i.name), wrong = names.filter((n) => !(n in given));
      wrong.push(...Object.keys(given).filter((n) => !names.includes(n)));
      if (wrong.length) refuse(`inputs of '${name}' do not match: ${wrong}`, inputs.map(shown).join("; "));
      const results = run(inputs.map((info) => tensor(info, given[info.name])));
      return Object.fromEntries(outputs.map((o, i) => [o.name, results[i]]));
    },
  };
}

/** An input as a tensor of its dtype and rank. */
function tensor(info, given) {
  const data = given?.data ?? given, of = typed(info.dtype)[2], fixed = info.shape.filter((d) => d >= 0);
  if (!(data instanceof of)) refuse(`input '${info.name}' is ${data?.constructor.name}, expected ${of.name}`, shown(info));
  const open = info.shape.length - fixed.length, shape = given.shape ?? info.shape.map((d) => (d >= 0 ? d : data.length / count(fixed)));
  if (shape.length !== info.shape.length || count(shape) !== data.length || shape.some((d) => !(d >= 0) || d % 1) || (open > 1 && !given.shape))
    refuse(`input '${info.name}' has ${data.length} elements of shape [${shape}]`, shown(info), undefined, "give { data, shape }");
  return { data, shape, dtype: info.dtype };
}
