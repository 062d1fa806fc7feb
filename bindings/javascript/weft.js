/**
 * Runs models that Weft compiled for WebAssembly (`weft export -o model.wasm`) in browsers, node and Deno.
 *
 * The modules of a model share one memory, one table of functions and one stack (WebAssembly tool-conventions,
 * DynamicLinking.md). The memory holds the stack at its beginning, so that one that is too long ends the call, and after
 * it the modules' data, constants, tensors and arenas. Structures are those of weft_abi.h, with pointers of 4 bytes:
 * they are written as words of 32 bits. The file's last section says what lies where, see weft_llvm/exports/wasm.py.
 */

const ABI_VERSION = 2, FORMAT = 1, HEAD = 17, PAGE = 65536, STACK = 131072;
const ERROR = 56; // where weft_context.error_code lies
const REMAINING = 2, MOST_THREADS = 64; // a word of weft_llvm/wasm_pool.py

/** What went wrong, and as far as they are known where, why and a hint, each also in the message. */
export class WeftError extends Error {
  name = "WeftError";
  constructor(what, more) {
    super(what + Object.entries(more).map(([k, v]) => (v ? `\n  ${k}: ${v}` : "")).join(""));
    Object.assign(this, more);
  }
}

const refuse = (what, where, hint, why) => {
  throw new WeftError(what, { where, why, hint });
};
const count = (shape) => shape.reduce((a, b) => a * b, 1);
/** What a function makes of a value or, later, of what a promise gives. */
const then = (value, f) => (value?.then ? value.then(f) : f(value));
const Longs = BigInt64Array;
const shown = ({ name, dtype, shape }) => `${name}: ${dtype}[${shape.join(", ")}]`;

/**
 * Loads a model.
 *
 * @param source a URL; or a Response, a Blob or the bytes of a file. Its code runs inside of WebAssembly: it sees its
 *   own memory and nothing else.
 * @param options those of `fetch`; { integrity } refuses every file of another hash. { threads }: how many may be used.
 *   { device }: the GPUDevice of a model for WebGPU.
 */
export async function load(source, options = {}) {
  // A URL has a href, and only a text can be trimmed.
  const response = source.href || source.trim ? await fetch(source, options) : source instanceof Response ? source : new Response(source);
  if (!response.ok) refuse(`${source} cannot be fetched`, response.status);
  try {
    const bytes = new Uint8Array(await response.arrayBuffer()), end = bytes.length - 4;
    const start = end - new DataView(bytes.buffer).getUint32(end, true), model = JSON.parse(new TextDecoder().decode(bytes.subarray(start, end)));
    if (model.format !== FORMAT || start - model.end !== HEAD) throw Error("its format differs");
    return await opened(model, bytes, options);
  } catch (error) {
    if (error instanceof WeftError) throw error;
    refuse("no model of Weft that runs here", source, "", error.message);
  }
}

// -- sizes

const OPERATIONS = {
  "+": (a, b) => a + b, "*": (a, b) => a * b, "/": (a, b) => (b ? Math.floor(a / b) : 0), "<": (a, b) => +(a < b), "=": (a, b) => +(a === b),
  ">": Math.max,
};

/** What a formula gives, from the sizes of symbols by number; NaN if they do not say it. */
function formula(code, symbols) {
  const stack = [];
  for (const word of `${code}`.split(" "))
    stack.push(OPERATIONS[word] ? OPERATIONS[word](...stack.splice(-2)) : word[0] === "$" ? symbols[word.slice(1)] : +word);
  return stack[0];
}

// -- steps that need no code

const truth = ({ data }) => (data.length === 1 ? !!data[0] : refuse(`a condition has ${data.length} elements`));

/** An array of `n` parts along an axis of a tensor, whose other sizes are `shape`: `copy` fills it piece by piece. */
function filled({ data, dtype }, shape, axis, n, copy) {
  const inner = count(shape.slice(axis)), outer = count(shape.slice(0, axis)), out = new data.constructor(n * inner * outer);
  for (let i = 0; i < outer; i++) copy(out, i, inner);
  return { data: out, shape, dtype };
}

/** The k-th slice of a tensor along an axis. */
const slice = (x, axis, k, n = x.shape[axis]) =>
  filled(x, x.shape.toSpliced(axis, 1), axis, 1, (out, i, inner) => out.set(x.data.subarray((i * n + k) * inner, (i * n + k + 1) * inner), i * inner));

/** Tensors of one shape along a new axis; as `empty` where there are none. */
function stack(parts, axis, empty) {
  const n = parts.length, first = parts[0] ?? empty, { shape } = first;
  if (parts.some((p) => `${p.shape}` !== `${shape}`)) refuse("results of a loop differ in size");
  const copy = (out, i, inner) => parts.forEach((p, k) => out.set(p.data.subarray(i * inner, (i + 1) * inner), (i * n + k) * inner));
  return { ...filled(first, shape, axis, n, copy), shape: shape.toSpliced(axis, 0, n) };
}

// -- threads

/**
 * Starts workers, as far as there may be some.
 *
 * @param wanted threads, the caller's own included; by default as many as there are processors.
 * @param given the memory; modules with where they lie; the size of the table of functions.
 * @param put copies an array into the memory.
 * @param able whether the model has code for threads.
 * @returns { threads, state }, or { threads: 1, why }.
 */
async function start(wanted = globalThis.navigator?.hardwareConcurrency, given, put, able) {
  const threads = Math.min(wanted || 1, MOST_THREADS), workers = [];
  let why = able ? (threads < 2 ? "one is wanted" : "the page lacks the headers COOP and COEP") : "compiled without +atomics";
  if (able && threads > 1 && globalThis.crossOriginIsolated !== false)
    try {
      const state = put(new Int32Array(16)), Of = globalThis.Worker ?? (await import("node:worker_threads")).Worker;
      while (workers.length < threads - 1) {
        const worker = new Of(new URL("./worker.js", import.meta.url), { type: "module" });
        const number = workers.push(worker), stack = put(new Uint8Array(STACK)) + STACK;
        await new Promise((ready, failed) => {
          if (worker.on) worker.on("message", ready).on("error", failed);
          else [worker.onmessage, worker.onerror] = [ready, failed];
          worker.postMessage([...given, state / 4, stack, number]);
        });
        worker.unref?.();
      }
      return { threads, state };
    } catch (error) {
      workers.forEach((w) => w.terminate());
      why = `no worker starts: ${error.message}`;
    }
  return { threads: 1, why };
}

// -- models

/** The model that the last section of a file describes, in a memory of its own. */
async function opened(model, bytes, { threads, device }) {
  const { name, inputs, outputs, dtypes } = model, { Global, Memory, Table, instantiate } = WebAssembly, memory = new Memory(model.memory);
  const table = new Table({ initial: 1, element: "anyfunc" }), modules = {}, free = {}, rooms = {};
  const global = (v, mutable) => new Global({ value: "i32", mutable }, v), pointer = global(STACK, true), runs = [], loaded = [];
  let top = STACK, first;

  const view = (Of, at, n) => new Of(memory.buffer, at, n);
  /** The class of arrays that hold elements of a dtype. */
  const typed = (dtype) => globalThis[dtypes[dtype][1]];
  const gpu = model.gpu && (await (await import("./webgpu.js")).open(model, bytes, device, formula, count, typed, WeftError));

  /** The address of so many bytes, a multiple of 64, or 0 if there are none. */
  function reserve(size) {
    const step = Math.max(64, 2 ** (28 - Math.clz32(size))), room = Math.ceil((size || 1) / step) * step;
    if (free[room]?.length) return free[room].pop();
    const at = top, pages = Math.ceil((at + room) / PAGE) - memory.buffer.byteLength / PAGE;
    try {
      if (pages > 0) memory.grow(pages);
    } catch {
      return 0;
    }
    top += room;
    rooms[at] = room;
    return at;
  }
  const release = (at) => at && (free[rooms[at]] ??= []).push(at);
  const need = (size) => reserve(size) || refuse(`no memory for ${size} bytes`, name, "run smaller inputs");

  /** Reserves memory for the bytes of an array and copies them there. */
  function put({ buffer, byteOffset, byteLength }) {
    const at = need(byteLength);
    view(Uint8Array).set(new Uint8Array(buffer, byteOffset, byteLength), at);
    return at;
  }
  /** Writes words of 32 bits; what is left out is 0. */
  const words = (values) => put(Uint32Array.from(values));

  /** A copy of what lies at an address. */
  const copied = ({ at, shape, dtype }) => ({ data: view(typed(dtype), at, count(shape)).slice(), shape, dtype });

  /** Puts a function into the table; its number. */
  const numbered = (f) => (table.set(table.grow(1), f), table.length - 1);

  /** A native step: a function from values to results. */
  function segment(step, ins, outs) {
    const code = modules[step.section];
    const described = (infos) => {
      const all = infos.map(({ dtype, shape }) => {
        const sizes = need(8 * shape.length);
        return [words({ length: 10, 1: 1, 3: shape.length, 4: dtypes[dtype][0], 5: sizes }), sizes];
      });
      return [all, words(all.map(([at]) => at))];
    };
    const [from, given] = described(ins), [to, results] = described(outs);
    const host = words({ length: 4, 0: results, 1: words({ length: 4 * outs.length }), 2: outs.length });
    const context = words({
      length: 34, 0: ABI_VERSION, 6: words(step.constants.map((n) => model.constants[n].at)), 7: pool.run, 8: numbered(code.allocate_arena),
      9: numbered(code.allocate_output), 11: pool.state, 12: pool.threads, 32: host,
    });
    const bind = ([at, sizes], data, shape) => {
      view(Uint32Array, at)[0] = data;
      view(Longs, sizes).set(shape.map(BigInt));
    };
    const integers = (at, n) => Array.from(view(Longs, at, n), Number);
    return (values, symbols) => {
      const taken = [], take = (at) => taken[taken.push(at) - 1];
      try {
        values.forEach(({ data, shape }, i) => bind(from[i], take(put(data)), shape));
        outs.forEach((o, i) => {
          const shape = o.shape.map((d) => formula(d, symbols)), open = shape.some((d) => !(d >= 0));
          bind(to[i], open ? 0 : take(need(count(shape) * typed(o.dtype).BYTES_PER_ELEMENT)), open ? [] : shape);
        });
        let failed;
        try {
          failed = code[step.entry](context, given, results);
        } catch (error) {
          while (pool.state && Atomics.load(view(Int32Array, pool.state), REMAINING) > 1);
          pointer.value = STACK;
          refuse("compiled code ended by itself", name, "", error.message);
        }
        if (failed) {
          const [error, ...a] = integers(context + ERROR, 9), [k] = a;
          view(Longs, context + ERROR)[0] = 0n;
          const said = { i: ins[k]?.name, o: outs[k]?.name, k: step.items[k], ...a };
          const [what, hint] = (step.checks[error] ?? model.failures[error] ?? [`code ${error || failed}`]).map((t) => t.replace(/\{(\w)\}/g, (_, k) => said[k]));
          refuse(what, name, hint, values.map((v, i) => shown({ ...ins[i], ...v })).join("; "));
        }
        return outs.map(({ shape, dtype }, i) => copied({ at: view(Uint32Array, to[i][0])[0], shape: integers(to[i][1], shape.length), dtype }));
      } finally {
        taken.forEach(release);
      }
    };
  }

  for (const [section, begin, end, size, align, functions] of model.code) {
    const bases = { __memory_base: Math.ceil(need(size + align) / align) * align, __table_base: table.grow(functions) };
    const env = { memory, __indirect_function_table: table, __stack_pointer: pointer, weft_reserve: (n) => reserve(Number(n)), weft_release: (at) => release(at >>> 0) };
    for (const base in bases) env[base] = global(bases[base]);
    const { module, instance } = await instantiate(bytes.subarray(begin, end), { env });
    modules[section] = instance.exports;
    first ??= instance.exports.weft_parallel_for;
    loaded.push([module, bases]);
  }
  const pool = await start(threads, [memory, loaded, table.length], put, model.memory.shared && loaded[0]);
  if (pool.state) pool.run = numbered(first);
  for (const c of Object.values(model.constants)) c.at = put(bytes.subarray(...c.at));
  /** Steps by kind: each becomes a function from values to results. */
  const kinds = {
    native: segment,
    host: (s) =>
      s.function === "Sizes" ? ([{ shape }]) => [{ data: Longs.from(shape, BigInt), shape: [shape.length], dtype: "int64" }] : (values) => values, // WithSizes
    if: (s) => ([condition, ...values]) => (truth(condition) ? runs[s.then](values) : runs[s.orelse](values.slice(model.plans[s.then].inputs.length))),
    loop: (s) => {
      const { outputs, infos } = model.plans[s.body], rows = outputs.slice(s.tests + s.carried), axes = s.item_axes;
      return ([trips, condition, ...values], symbols) => {
        let carried = values.splice(0, s.carried), going = !condition || truth(condition);
        const items = values.splice(0, axes.length), lengths = items.map((x, i) => x.shape[axes[i]]), found = rows.map(() => []);
        if (new Set(lengths).size > 1 || (trips && trips.data.length !== 1)) refuse(`a loop of ${lengths} items, ${trips?.data} iterations`);
        const most = Math.min(...lengths, trips ? Number(trips.data[0]) : Infinity);
        for (let k = 0; going && k < most; k++) {
          const at = items.map((x, i) => slice(x, axes[i], s.item_backward[i] ? lengths[i] - 1 - k : k));
          const given = runs[s.body]([{ data: Longs.of(BigInt(k)), shape: [], dtype: "int64" }, ...carried, ...at, ...values]);
          if (s.tests) going = truth(given.shift());
          carried = given.splice(0, s.carried);
          given.forEach((value, i) => found[i].push(value));
        }
        return carried.concat(
          rows.map((name, i) => {
            const { dtype, shape } = infos[name];
            const empty = { data: new (typed(dtype))(0), shape: shape.map((d) => Math.max(0, formula(d, symbols) || 0)), dtype };
            return stack(s.result_backward[i] ? found[i].reverse() : found[i], s.result_axes[i], empty);
          }),
        );
      };
    },
    ...gpu?.kinds,
  };

  for (const { infos, inputs, outputs, steps, symbols: said } of model.plans) {
    const of = (all) => all.map((n) => infos[n]), functions = steps.map((s) => kinds[s.kind](s, of(s.inputs), of(s.outputs)));
    runs.push((given) => {
      const known = {}, symbols = {}, value = (n) => (n ? (known[n] ?? copied(model.constants[n])) : null);
      const learned = (places, results) => {
        places.forEach((n, k) => {
          known[n] = results[k];
          // What stands for a sum is no symbol's number.
          infos[n].shape.forEach((d, axis) => d.slice && (symbols[d.slice(1)] ??= results[k].shape[axis]));
        });
        for (const [symbol, value, index] of said) if (known[value]?.data) symbols[symbol] ??= Number(known[value].data[index]);
      };
      learned(inputs, given);
      const run = (before, s, i) => then(before, () => then(functions[i](s.inputs.map(value), symbols), (results) => learned(s.outputs, results)));
      return then(steps.reduce(run, 0), () => outputs.map(value));
    });
  }
  const last = runs.pop(), run = gpu?.queued(last) ?? last;
  /** An input as a tensor of its dtype and rank. */
  function tensor(info, given) {
    const { name, dtype, shape: wanted } = info;
    const data = given?.data ?? given, fixed = wanted.filter((d) => d >= 0), rest = data?.length / count(fixed);
    const shape = given?.shape ?? (wanted.length - fixed.length < 2 && wanted.map((d) => (d >= 0 ? d : rest)));
    if (!(data instanceof typed(dtype)) || shape?.length !== wanted.length || count(shape) !== data.length || shape.some((d) => !(d >= 0) || d % 1))
      refuse(`input '${name}' is ${data?.length} of ${data?.constructor.name}, shape [${shape || "?"}]`, shown(info), "give { data, shape }");
    return { data, shape, dtype };
  }
  return {
    name, inputs, outputs, threads: pool.threads, oneThread: pool.why,
    run(given) {
      const names = inputs.map((i) => i.name), wrong = [...names, ...Object.keys(given)].filter((n) => !(n in given && names.includes(n)));
      if (wrong[0]) refuse(`inputs do not match: ${wrong}`, inputs.map(shown).join("; "));
      const found = run(inputs.map((info) => tensor(info, given[info.name])));
      return then(found, (results) => Object.fromEntries(outputs.map((o, i) => [o.name, results[i]])));
    },
    close: gpu?.close,
  };
}
